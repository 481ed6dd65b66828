"""A session whose executor goes: it comes back, and says so when it cannot."""

import logging
import shutil

import pytest

from builders.null_models import (
    comes_true,
    fleet_of,
    num_descriptors,
    order,
    run_values,
    running,
    sums,
    write_null,
)
from fakes.null_faults import Fault
from ge_backend.errors import (
    ExecutorLost,
    GraphFailed,
    OutOfMemory,
)
from ge_backend.executor.protocol.arena import Segment
from ge_backend.executor.protocol.messages import PrepareInput
from ge_backend.executor.server.graphs import loaded_graphs


def inputs_of(*shape):
    return (PrepareInput(name="x", dtype="FP32", shape=shape, fill=1.0),)


def test_who_stops_early_as_the_executor_dies_goes_on_with_another(session, bench):
    """Losing the executor while waiting for outcomes nobody wants is no error."""
    bench.device.inject(Fault(on="run", do="sleep", ms=20, nth=3))
    session.reserve(4096)
    runs = running(session, [order(session, 7) for _ in range(20)])
    next(runs)
    bench.cut()
    runs.close()
    assert sums(run_values(session, 1)) == [3]
    assert bench.restarts == 1


def test_a_lost_executor_is_replaced_and_its_runs_repeated(session, bench, tmp_path):
    """After a loss the session loads, attaches and prepares again, and repeats what it had staged."""
    held = tmp_path / "held"
    bench.device.inject(Fault(on="run", do="hold", nth=2, file=str(held)))
    session.reserve(1024)
    orders = [order(session, value) for value in (1, 2, 3)]
    runs = running(session, orders)
    outcomes = dict([next(runs)])
    assert comes_true(held.exists)
    bench.cut()
    outcomes.update(runs)
    held.unlink()
    assert sums([outcomes[index] for index in range(3)]) == [3, 6, 9]
    assert (bench.restarts, len(bench.connections)) == (1, 2)


def test_a_loss_between_batches_is_noticed_at_the_next(session, bench):
    """An executor that died while idle costs the next batch a restart and nothing else."""
    run_values(session, 1)
    bench.cut()
    assert sums(run_values(session, 4, 5)) == [12, 15]
    assert bench.restarts == 1


def test_a_loss_while_growing_is_repaired(session, bench):
    """An executor that died before a larger arena was attached is replaced by the batch's runs."""
    bench.cut()
    assert sums(run_values(session, *range(100))) == [3.0 * v for v in range(100)]
    assert bench.restarts == 1


@pytest.mark.parametrize("where", ["executor", "stub"])
def test_where_there_is_no_room_for_the_arena_any_more_a_small_one_is_shown(session, bench, where):
    """Else no executor could be had again, however small the requests; a larger one asks anew."""
    session.reserve(1 << 20)
    bench.cut()

    def refuse(*_):
        raise OutOfMemory("no room")

    with pytest.MonkeyPatch.context() as patch:
        create, map_ = Segment.create, Segment.map
        if where == "stub":
            patch.setattr(Segment, "create", lambda n: (refuse if n > 4096 else create)(n))
        else:
            patch.setattr(Segment, "map", lambda d, n: (refuse if n > 4096 else map_)(d, n))
        with pytest.raises(ExecutorLost) as caught:
            session.in_flight().receive()
        session.lose(caught.value)
        session.reopen()
        assert session.arena.nbytes == 4096
        assert sums(run_values(session, 1)) == [3]
    session.reserve(1 << 20)
    assert session.arena.nbytes == 1 << 20
    assert (bench.restarts, len(bench.connections)) == (1, 2)


def test_static_shapes_are_prepared_again_after_a_loss(bench, tmp_path):
    """What was prepared before the executor died runs after it, without being measured again."""
    session = bench.session(write_null(tmp_path / "static.null", static_shapes=True))
    assert session.prepare(inputs_of(2, 3), 2).cost_ns > 0
    runs_before = bench.device.counts.runs
    bench.cut()
    assert sums(run_values(session, 1)) == [3]
    assert bench.device.counts.prepares == 2
    assert bench.device.counts.runs == runs_before + 2


class Copied:
    """A copy of a source in another folder."""

    def __init__(self, source, folder):
        self.closed = False
        self.folder = folder
        shutil.copy2(source.path, folder)

    def close(self):
        self.closed = True


def test_what_was_loaded_is_loaded_again_when_its_file_is_garbage(bench, tmp_path, caplog):
    """The copy is loaded in place of what lies there now, and let go of with the session."""
    source = write_null(tmp_path / "replaced.null")
    (tmp_path / "kept").mkdir()
    copy = Copied(source, tmp_path / "kept")
    session = bench.session(source)
    session.served.copy = copy
    (tmp_path / "replaced.null").write_text("garbage")
    bench.cut()
    assert sums(run_values(session, 1)) == [3]
    assert "loaded from their copy" in caplog.text
    fleet_of(session).close()
    assert copy.closed


def test_a_file_that_is_as_it_was_is_loaded_from_its_place(bench, tmp_path):
    """The copy is for the case that something else lies there."""
    source = write_null(tmp_path / "same.null")
    session = bench.session(source)
    (tmp_path / "kept").mkdir()
    session.served.copy = Copied(source, tmp_path / "kept")
    (tmp_path / "kept" / "same.null").write_text("garbage")
    bench.cut()
    assert sums(run_values(session, 1)) == [3]


def test_preparing_survives_one_death_but_not_two(session, bench, monkeypatch):
    """A measurement is repeated once; an executor that dies over it again is an error."""
    bench.cut()
    assert session.prepare(inputs_of(1, 1), 1).cost_ns > 0
    assert bench.restarts == 1
    bench.device.faults.strike = lambda event, *_: event == "prepare" and bench.cut()
    with pytest.raises(ExecutorLost, match="died 2 times over preparing"):
        session.prepare(inputs_of(2, 2), 1)


def kept_by(bench):
    """Return how many descriptors of the page with the outstanding work there are.

    Each executor has one and a mapping, which has its own, and so has the view of each link.
    """
    return 2 * len(bench.executors) + len(bench.connections)


def test_a_session_that_cannot_be_opened_leaves_nothing(bench, tmp_path):
    """A model that does not load is an error that keeps no descriptor and no connection."""
    source = write_null(tmp_path / "bad.null", faults=[{"on": "load", "do": "fail"}])
    before = num_descriptors()
    with pytest.raises(GraphFailed):
        bench.session(source)
    assert comes_true(lambda: num_descriptors() <= before + kept_by(bench))
    assert loaded_graphs(bench.executors[-1]) == []


def test_loading_survives_one_death_but_not_two(bench, caplog):
    """A model whose loading kills executors is not tried a third time."""
    attempts = []

    def connect():
        attempts.append(bench.connect())
        bench.cut()
        return attempts[-1]

    # Records that tests keep hold the errors, and these the frames that they came through.
    caplog.set_level(logging.CRITICAL, "ge_backend")
    before = num_descriptors()
    with pytest.raises(ExecutorLost, match="died 2 times over loading"):
        bench.session(connect=connect)
    assert (len(attempts), bench.restarts) == (2, 2)
    assert comes_true(lambda: num_descriptors() <= before + kept_by(bench))
