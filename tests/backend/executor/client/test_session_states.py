"""Runs whose state stays in the executor between them."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from builders.null_models import order, running, sums, write_null
from ge_backend.errors import ExecutorLost, ModelError, OutOfMemory, ProtocolError, StateLost
from ge_backend.executor.client.served_files import ServedFiles
from ge_backend.executor.protocol.arena import Segment
from ge_backend.model.config.sequence_batching import State
from ge_backend.model.files.model_file import stamp_of
from ge_backend.tensors import DATA_TYPES

STATE = State(input="h", output="h_next", dtype=DATA_TYPES["FP32"], dims=(), initial_dims=())


@pytest.fixture
def accumulator(tmp_path):
    """Return a model whose sums go on: y = h + sum(x), and h_next is the same."""
    total = {"dtype": "FP32", "dims": ["batch"], "compute": "accumulate", "of": "x", "from": "h"}
    return write_null(
        tmp_path / "accumulator.null",
        inputs=[
            {"name": "x", "dtype": "FP32", "dims": ["batch", "length"]},
            {"name": "h", "dtype": "FP32", "dims": ["batch"]},
        ],
        outputs=[{"name": "y", **total}, {"name": "h_next", **total}],
    )


@pytest.fixture
def session(bench, accumulator):
    session = bench.session(accumulator)
    session.keep_states([STATE], 4, batched=True, hidden=["h_next"])
    return session


def order_in(session, value, slot, *, starting=False):
    staged = order(session, value, rows=1)
    return replace(staged, slots=(slot,), starting=(slot,) if starting else (), rows=1)


def step(session, values, slots, starting=()):
    """Run one batch; return its sums."""
    session.reserve(4096)
    orders = [
        order_in(session, value, slot, starting=slot in starting)
        for value, slot in zip(values, slots, strict=True)
    ]
    return sums(
        [outcome for _, outcome in sorted(running(session, orders), key=lambda ended: ended[0])]
    )


def test_each_slot_goes_on_from_its_own_state(session):
    """A run finds what the one before it in its slot has left."""
    assert step(session, [1, 2], [0, 3], starting=[0, 3]) == [3, 6]
    assert step(session, [1, 2], [3, 0]) == [9, 9]


def test_a_hidden_state_is_not_sent(session):
    """Only the output that was declared comes back, and no shape that is known beforehand."""
    session.reserve(4096)
    ((_, outcome),) = running(session, [order_in(session, 1, 0, starting=True)])
    assert list(outcome.outputs) == ["y"]
    assert outcome.done.states == {}


def test_states_stay_where_the_executor_cannot_map_a_larger_arena(bench, session, monkeypatch):
    """The batch that wanted it fails, and the sequences go on."""
    assert step(session, [1], [0], starting=[0]) == [3]

    def refuse(*_):
        raise OutOfMemory("no more mappings")

    with monkeypatch.context() as patch:
        patch.setattr(Segment, "map", refuse)
        with pytest.raises(OutOfMemory, match="no more mappings"):
            session.reserve(1 << 16)
    assert step(session, [2], [0]) == [9]
    assert bench.restarts == 0


def test_states_go_where_the_executor_answers_a_larger_arena_with_nonsense(
    bench, session, monkeypatch
):
    """The connection goes, and they with it: whoever counts on them is told."""
    step(session, [1], [0], starting=[0])

    def refuse(*_):
        raise ProtocolError("no descriptor came")

    with monkeypatch.context() as patch:
        patch.setattr(Segment, "map", refuse)
        with pytest.raises(ProtocolError, match="no descriptor came"):
            session.reserve(1 << 16)
    assert bench.restarts == 1
    session.reopen()
    session.reserve(4096)
    ((_, outcome),) = running(session, [order_in(session, 1, 0)])
    assert isinstance(outcome.error, StateLost)
    assert step(session, [5], [0], starting=[0]) == [15]


def test_state_lost_with_its_executor_is_an_error(bench, session):
    """Nothing is repeated that would go on from a state that is gone; what begins anew works."""
    step(session, [1], [0], starting=[0])
    bench.cut()
    session.reserve(4096)
    ((_, outcome),) = running(session, [order_in(session, 1, 0)])
    assert isinstance(outcome.error, ExecutorLost)
    assert "begin the sequence again" in str(outcome.error)
    assert step(session, [5], [0], starting=[0]) == [15]


def test_whoever_counts_on_states_is_told_when_they_are_lost(bench, accumulator):
    """Once, however many executors die before there is one again that keeps them."""
    lost, dying = [], []

    def connect():
        connection = bench.connect()
        if dying:
            bench.cut()
        return connection

    session = bench.session(accumulator, connect)
    session.keep_states([STATE], 4, batched=True, hidden=[], on_lost=lambda: lost.append("all"))
    dying.append("the next ones")
    session.lose(ExecutorLost("gone"))
    for _ in range(2):
        with pytest.raises(ExecutorLost):
            session.reopen()
    dying.clear()
    session.reopen()
    assert (lost, bench.restarts) == (["all"], 3)
    session.lose(ExecutorLost("gone"))
    assert (lost, bench.restarts) == (["all"] * 2, 4)


def test_a_bad_initial_value_is_refused(bench, accumulator, tmp_path):
    """At load, with the file's name."""
    missing = replace(STATE, initial_file=str(tmp_path / "gone"))
    with pytest.raises(ModelError, match="gone"):
        bench.session(accumulator).keep_states([missing], 1, batched=True, hidden=[])


def test_sequences_begin_with_the_value_that_was_loaded(bench, accumulator, tmp_path):
    """Its file is read again from a copy, once something else lies in its place."""
    file, copy = tmp_path / "states" / "ten", tmp_path / "kept" / "ten"
    for path in (file, copy):
        path.parent.mkdir()
        path.write_bytes(np.float32(10).tobytes())
    session = bench.session(accumulator)
    starting = replace(STATE, initial_file=str(file))
    session.keep_states([starting], 4, batched=True, hidden=["h_next"])
    session.initial = ServedFiles(
        file.parent, lambda: [file], stamp_of([file]), Copied(copy.parent)
    )
    assert step(session, [1], [0], starting=[0]) == [13]
    file.write_bytes(b"another")
    bench.cut()
    assert step(session, [1], [0], starting=[0]) == [13]
    session.close()
    assert not copy.exists()


@dataclass
class Copied:
    folder: Path

    def close(self):
        shutil.rmtree(self.folder)


def test_sessions_have_slots_of_their_own(bench, accumulator, session):
    """Slot 0 of one stub is not slot 0 of another."""
    other = bench.session(accumulator)
    other.keep_states([STATE], 4, batched=True, hidden=["h_next"])
    step(session, [1], [0], starting=[0])
    step(other, [10], [0], starting=[0])
    assert step(session, [1], [0]) == [6]
