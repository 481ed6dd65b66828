"""What a lane does: outputs land in their places or are spilled, deadlines and costs are kept."""

import os
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_backend.device.base import ROW_ERRORS
from ge_backend.errors import DeadlineExceeded, GraphFailed, OutOfMemory, ProtocolError
from ge_backend.executor.protocol.arena import Segment
from ge_backend.executor.protocol.messages import (
    NO_SPILL,
    Prepare,
    PrepareInput,
    Run,
    SpillRange,
    TensorRef,
)
from ge_backend.executor.server import runs as runs_module
from ge_backend.executor.server.queue import Grant
from ge_backend.executor.server.runs import TEXT, HeldGraph, measure, run
from ge_backend.tensors import ANY_SHAPE, DATA_TYPES, Signature, TensorSpec


class Graph:
    """Answers what it is told to, and remembers what it was asked."""

    shape_policy = ANY_SHAPE

    def __init__(self, **answers):
        self.answers = answers
        self.calls, self.prepared = [], []
        self.signature = Signature(
            inputs=(),
            outputs=tuple(spec(name, value) for name, value in answers.items()),
            axis_limits={},
        )

    def prepare(self, inputs):
        self.prepared.append({name: value.shape for name, value in inputs.items()})

    def workspace_bytes(self, shapes):
        return 42

    def run(self, inputs, outputs, *, exclusive):
        self.calls.append((inputs, outputs, exclusive))
        return {
            name: value(inputs, outputs) if callable(value) else value
            for name, value in self.answers.items()
        }


def spec(name, value):
    array = value if isinstance(value, np.ndarray) else np.zeros(1, np.float32)
    dtype = next(d for d in DATA_TYPES.values() if d.numpy == array.dtype)
    return TensorSpec(name=name, dtype=dtype, dims=(-1,) * array.ndim, axes=("",) * array.ndim)


def held(graph):
    return HeldGraph(graph)


def measured_by(graph):
    """Return what measures a graph, and remembers."""
    costs = {}
    return lambda asked: measure(graph, costs, asked)


@pytest.fixture
def segment():
    segment, descriptor = Segment.create(4096)
    os.close(descriptor)
    return segment


def grant(*, waited_ns=0, **changes):
    return Grant(came_ns=time.monotonic_ns() - waited_ns, **changes)


def place(name="y", shape=(2, 3), dtype="FP32", offset=256):
    nbytes = int(np.prod(shape)) * (DATA_TYPES[dtype].itemsize or 1)
    return TensorRef(name=name, dtype=dtype, shape=shape, offset=offset, nbytes=nbytes)


def run_with(graph, segment, *places, deadline_ns=0, inputs=(), spill=NO_SPILL):
    message = Run(
        id=7,
        graph=1,
        arena=0,
        inputs=inputs,
        outputs=places,
        deadline_ns=deadline_ns,
        spill=spill,
    )
    return run(held(graph), segment, message, grant(alone=True))


def spilled(done, descriptor):
    segment = Segment.map(descriptor, os.fstat(descriptor).st_size)
    os.close(descriptor)
    return {ref.name: segment.view(ref) for ref in done.spilled}


VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_a_result_written_in_place_is_not_copied(segment):
    """A graph that writes into its place and returns it has settled it."""

    def write(_, outputs):
        outputs["y"][...] = VALUES
        return outputs["y"]

    done, descriptor = run_with(Graph(y=write), segment, place())
    assert (done.settled, done.spilled, descriptor) == (("y",), (), None)
    assert (segment.view(place()) == VALUES).all()


@pytest.mark.parametrize("value", [VALUES, VALUES.T.copy().T, np.asfortranarray(VALUES)])
def test_a_fresh_result_of_the_predicted_shape_is_copied_to_its_place(segment, value):
    """An array of the graph's own ends up in the arena, whatever its strides are."""
    done, descriptor = run_with(Graph(y=value), segment, place())
    assert (done.settled, descriptor) == (("y",), None)
    assert (segment.view(place()) == VALUES).all()


def test_results_without_a_place_or_of_another_shape_or_type_are_spilled(segment):
    """What could not be predicted comes in a segment of its own, whole."""
    graph = Graph(
        y=VALUES,
        shape=np.ones((5, 1), np.int64),
        dtype=np.ones((2, 3), np.float16),
        text=np.array([b"ab", b""], dtype=object),
        empty=np.zeros((0, 4), np.float32),
        transposed=VALUES.T,
    )
    places = (
        place(),
        place("shape", (4, 1), "INT64", 512),
        place("dtype", (2, 3), "FP32", 768),
        place("text", (2,), "BYTES", 1024),
    )
    done, descriptor = run_with(graph, segment, *places)
    assert done.settled == ("y",)
    results = spilled(done, descriptor)
    assert list(results) == ["shape", "dtype", "text", "empty", "transposed"]
    for name, value in results.items():
        assert value.shape == graph.answers[name].shape
        assert value.dtype == graph.answers[name].dtype
        assert value.tolist() == graph.answers[name].tolist()


@given(st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=1, max_size=4))
def test_spilled_results_are_what_the_graph_gave(shapes):
    """However many results of whatever shapes are spilled, each arrives as it was."""
    segment, descriptor = Segment.create(4096)
    os.close(descriptor)
    answers = {
        str(index): np.random.default_rng(index).integers(0, 9, shape)
        for index, shape in enumerate(shapes)
    }
    results = spilled(*run_with(Graph(**answers), segment))
    assert {n: v.tolist() for n, v in results.items()} == {
        n: v.tolist() for n, v in answers.items()
    }


@pytest.mark.parametrize(("short", "fits"), [(0, True), (1, False)])
def test_results_without_a_place_go_into_the_runs_room_if_all_of_them_fit(segment, short, fits):
    """Texts, too, each at a boundary; a byte too little, and they have a segment of their own."""
    graph = Graph(y=VALUES, text=np.array([b"ab", b""], object), long=np.arange(40))
    before = segment.view(TensorRef(name="", dtype="UINT8", shape=(4096,), offset=0, nbytes=4096))
    before[...] = 7
    spill = SpillRange(offset=512, nbytes=64 + 64 + 320 - short)
    done, descriptor = run_with(graph, segment, spill=spill)
    assert (descriptor is None) == fits
    if fits:
        assert [ref.offset for ref in done.spilled] == [512, 576, 640]
        results = {ref.name: segment.view(ref) for ref in done.spilled}
    else:
        assert (before == 7).all()
        results = spilled(done, descriptor)
    assert {name: value.tolist() for name, value in results.items()} == {
        name: value.tolist() for name, value in graph.answers.items()
    }
    assert (before[:512] == 7).all()
    assert (before[960:] == 7).all()


def test_a_room_that_does_not_lie_in_the_arena_is_refused(segment):
    """Before the graph runs: what it gives could not be told of afterwards."""
    graph = Graph(y=VALUES)
    with pytest.raises(ProtocolError, match="4096 bytes"):
        run_with(graph, segment, spill=SpillRange(offset=4000, nbytes=97))
    assert not graph.calls
    run_with(graph, segment, spill=SpillRange(offset=4000, nbytes=96))


def test_a_result_that_contradicts_the_signature_is_the_graphs_failure(segment):
    """A type or name that the signature does not have is named, not reinterpreted."""
    graph = Graph(y=VALUES)
    graph.answers = {"y": VALUES.astype(np.float64)}
    with pytest.raises(GraphFailed, match="float64"):
        run_with(graph, segment)
    graph.answers = {"z": VALUES}
    with pytest.raises(GraphFailed, match="'z'"):
        run_with(graph, segment)


def test_reasons_why_rows_are_refused_are_no_output_and_yet_come_back(segment):
    """The signature does not name them; they are texts."""
    reasons = np.array([b"", b"not UTF-8"], object)
    graph = Graph(y=np.zeros(2, np.float32), **{ROW_ERRORS: lambda *_: reasons})
    graph.signature = replace(graph.signature, outputs=graph.signature.outputs[:1])
    done, descriptor = run_with(graph, segment)
    assert spilled(done, descriptor)[ROW_ERRORS].tolist() == [b"", b"not UTF-8"]


def test_inputs_are_views_of_the_arena(segment):
    """The graph reads the stub's memory itself."""
    graph = Graph(y=VALUES)
    given_ref = place("x", offset=0)
    segment.view(given_ref)[...] = 5
    run_with(graph, segment, place(), inputs=(given_ref,))
    inputs, outputs, exclusive = graph.calls[0]
    assert np.shares_memory(inputs["x"], segment.view(given_ref))
    assert np.shares_memory(outputs["y"], segment.view(place()))
    assert exclusive is True


def test_a_run_that_is_too_late_does_not_start(segment):
    """Past its deadline a run fails without touching the graph, and says how late it was."""
    graph = Graph(y=VALUES)
    with pytest.raises(DeadlineExceeded, match="ms too late"):
        run_with(graph, segment, place(), deadline_ns=time.monotonic_ns() - 5_000_000)
    assert graph.calls == []
    run_with(graph, segment, place(), deadline_ns=time.monotonic_ns() + 10**9)
    assert len(graph.calls) == 1


@pytest.fixture
def passes(monkeypatch):
    """A function that lets seconds pass on the clock of runs, which stands still else."""
    clock = SimpleNamespace(now_ns=time.monotonic_ns())
    monkeypatch.setattr(runs_module, "time", SimpleNamespace(monotonic_ns=lambda: clock.now_ns))

    def passes(seconds):
        clock.now_ns += round(seconds * 1e9)

    passes.clock = clock
    return passes


def test_waiting_and_running_are_timed_apart(segment, passes):
    """The reply tells how long the run waited and how long it ran."""

    def slow(_, outputs):
        passes(0.02)
        return VALUES

    graph = held(Graph(y=slow))
    message = Run(id=7, graph=1, arena=0, inputs=(), outputs=(place(),))
    came_ns = passes.clock.now_ns - 50_000_000
    done, _ = run(graph, segment, message, Grant(came_ns=came_ns, held_up_ns=7))
    assert done.queue_ns == 50_000_000
    assert done.held_up_ns == 7
    assert done.run_ns == 20_000_000


def ask(*, repeats=3, shape=(1, 2), fill=1.0, dtype="FP32", alone=True):
    given_input = PrepareInput(name="x", dtype=dtype, shape=shape, fill=fill)
    return Prepare(id=9, graph=1, inputs=(given_input,), repeats=repeats, alone=alone)


def test_a_measurement_is_the_shortest_of_the_repeats(passes):
    """Slow runs among the measured ones do not count, nor does the first, unmeasured one."""
    taken = iter([0.001, 0.08, 0.08, 0.002])

    def slow(_, __):
        passes(next(taken))
        return VALUES

    graph = Graph(y=slow)
    prepared = measure(graph, {}, ask())
    assert prepared.cost_ns == 2_000_000
    assert (prepared.cached, prepared.workspace_bytes) == (False, 42)
    assert len(graph.calls) == 4


def test_shapes_are_measured_once_for_all():
    """The same inputs again give the same cost without a run; other inputs are measured."""
    graph = Graph(y=VALUES)
    measuring = measured_by(graph)
    first, again = measuring(ask()), measuring(ask())
    assert (again.cached, again.cost_ns) == (True, first.cost_ns)
    assert len(graph.prepared) == 1
    assert not measuring(ask(shape=(1, 3))).cached
    assert not measuring(ask(dtype="INT64")).cached
    assert len(graph.prepared) == 3


def test_without_repeats_it_is_prepared_once_and_measured_later():
    """Preparing alone is remembered, but a measurement asked for afterwards is made."""
    graph = Graph(y=VALUES)
    measuring = measured_by(graph)
    assert measuring(ask(repeats=0)).cost_ns == 0
    assert measuring(ask(repeats=0)).cached
    assert len(graph.prepared) == 1
    measured = measuring(ask(repeats=2))
    assert (measured.cached, measured.cost_ns > 0) == (False, True)
    assert measuring(ask(repeats=0)).cached


def test_a_rough_figure_is_not_remembered():
    """What was measured beside others is measured again, and used where it was measured before."""
    graph = Graph(y=VALUES)
    measuring = measured_by(graph)
    assert measuring(ask(repeats=1, alone=False)).cost_ns > 0
    measured = measuring(ask())
    assert not measured.cached
    again = measuring(ask(repeats=1, alone=False))
    assert (again.cached, again.cost_ns) == (True, measured.cost_ns)


def test_a_slow_shape_is_not_repeated_for_long(passes):
    """Once the runs have taken the budget no more are made; a first one that did is the cost."""

    def slow(seconds):
        def run(_, __):
            passes(seconds)
            return VALUES

        return run

    graph = Graph(y=slow(0.25))
    measure(graph, {}, ask(repeats=50))
    assert len(graph.calls) == 2
    graph = Graph(y=slow(0.45))
    assert measure(graph, {}, ask(repeats=50)).cost_ns == 450_000_000
    assert len(graph.calls) == 1


@pytest.mark.parametrize("dtype", list(DATA_TYPES))
def test_synthetic_inputs_have_the_type_that_was_asked_for(dtype):
    """Every data type can be filled."""
    graph = Graph(y=VALUES)
    measure(graph, {}, ask(dtype=dtype))
    value = graph.calls[0][0]["x"]
    assert (value.shape, value.dtype) == ((1, 2), DATA_TYPES[dtype].numpy)
    assert value.reshape(-1)[0] == (TEXT if dtype == "BYTES" else 1)


def test_a_graph_of_texts_is_measured_with_a_sentence():
    """One that takes its time from the texts costs nothing with empty ones."""
    graph = Graph(y=VALUES)
    measure(graph, {}, ask(dtype="BYTES"))
    assert all(len(text.split()) > 10 for text in graph.calls[0][0]["x"].flat)


@pytest.mark.parametrize("fill", [float("inf"), 1e300], ids=str)
def test_a_filling_that_the_type_cannot_hold_is_refused(fill):
    """No number stands for infinity among whole ones; the message is wrong, not the graph."""
    graph = Graph(y=np.zeros(1, np.float32))
    with pytest.raises(ProtocolError, match="cannot be filled"):
        measure(graph, {}, ask(dtype="INT64", fill=fill))


def test_a_tensor_larger_than_the_machine_is_refused_before_it_is_made(monkeypatch):
    """The system would promise the memory, and kill somebody when it is written."""
    monkeypatch.setattr(np, "full", pytest.fail)
    graph = Graph(y=VALUES)
    with pytest.raises(OutOfMemory, match=r"input 'x', FP32 .* takes 1024 TiB, and the machine"):
        measure(graph, {}, ask(shape=(2**24, 2**24)))
    assert graph.calls == []
