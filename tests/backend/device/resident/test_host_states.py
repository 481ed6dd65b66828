"""State in host memory: gathered, run, kept."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from ge_backend.device.resident.host_states import _Growing
from ge_backend.device.resident.state_layout import StateLayout
from ge_backend.device.resident.states import open_states
from ge_backend.errors import GraphFailed
from ge_backend.model.config.sequence_batching import State
from ge_backend.tensors import DATA_TYPES


def state(dims=(2,), dtype="FP32", initial_dims=None, file=""):
    begin = tuple(max(d, 0) for d in dims) if initial_dims is None else initial_dims
    return State(
        input="h",
        output="h_next",
        dtype=DATA_TYPES[dtype],
        dims=dims,
        initial_dims=begin,
        initial_file=file,
    )


class Accumulator:
    """h_next = h + x; y is the same."""

    def __init__(self, batched=True):
        self.axis = 1 if batched else 0
        self.batches = []

    def run(self, inputs, outputs, *, exclusive):
        self.batches.append(inputs["h"].copy())
        if (inputs["x"] == 666).any():
            raise GraphFailed("no")
        total = inputs["h"] + inputs["x"]
        return {"y": total, "h_next": total.copy()}


class Collector:
    """h_next = h with x behind it."""

    def run(self, inputs, outputs, *, exclusive):
        longer = np.concatenate([inputs["h"], inputs["x"]], axis=1)
        return {"y": longer.sum(axis=1), "h_next": longer}


def slots_of(graph, *states, count=1, batched=True, hidden=("h_next",)):
    layout = StateLayout(states=states, count=count, batched=batched, hidden=frozenset(hidden))
    return open_states(graph, layout)


def run(slots, x, ids, starting=(), rows=None):
    x = np.array(x, np.float32)
    return slots.run({"x": x}, {}, ids, starting, rows=rows or len(x), exclusive=False)


def test_every_slot_goes_on_from_its_own_state():
    """Whoever shares the batch, in whatever order."""
    slots = slots_of(Accumulator(), state(), count=3)
    run(slots, [[1, 1], [10, 10]], [2, 0], starting=[2, 0])
    results, shapes = run(slots, [[5, 5], [2, 2]], [0, 2])
    assert results["y"].tolist() == [[15, 15], [3, 3]]
    assert list(results) == ["y"]
    assert shapes == {}


def test_a_starting_slot_begins_with_the_initial_value(tmp_path):
    """From a file, raw and in C order, again at every START."""
    (tmp_path / "first").write_bytes(np.array([3, 4], np.float32).tobytes())
    slots = slots_of(Accumulator(), state(file=str(tmp_path / "first")))
    for _ in range(2):
        assert run(slots, [[1, 1]], [0], starting=[0])[0]["y"].tolist() == [[4, 5]]
        assert run(slots, [[1, 1]], [0])[0]["y"].tolist() == [[5, 6]]


def test_padding_rows_touch_no_state():
    """A batch that was padded to a bucket has more rows than sequences."""
    graph = Accumulator()
    slots = slots_of(graph, state(), count=2, hidden=())
    run(slots, [[1, 1], [7, 7]], [1], starting=[1], rows=2)
    run(slots, [[1, 1]], [0], starting=[0])
    assert run(slots, [[0, 0], [0, 0]], [0, 1])[0]["y"].tolist() == [[1, 1], [1, 1]]
    assert graph.batches[0].tolist() == [[0, 0], [0, 0]]


def test_a_failed_run_leaves_the_states_alone():
    """The step can be repeated."""
    slots = slots_of(Accumulator(), state())
    run(slots, [[1, 1]], [0], starting=[0])
    with pytest.raises(GraphFailed):
        run(slots, [[666, 1]], [0])
    assert run(slots, [[1, 1]], [0])[0]["y"].tolist() == [[2, 2]]


def test_without_a_batch_dimension_there_is_one_sequence_per_run():
    """State and inputs have the graph's own shapes."""
    slots = slots_of(Accumulator(batched=False), state(), count=2, batched=False)
    slots.run({"x": np.ones(2, np.float32)}, {}, [1], [1], rows=1, exclusive=False)
    results, _ = slots.run({"x": np.ones(2, np.float32)}, {}, [1], [], rows=1, exclusive=False)
    assert results["y"].tolist() == [2, 2]


def test_a_state_that_is_declared_as_an_output_is_one_too():
    """It is not hidden then."""
    slots = slots_of(Accumulator(), state(), hidden=())
    place = {"h_next": np.empty((1, 2), np.float32)}
    results, _ = slots.run(
        {"x": np.ones((1, 2), np.float32)}, place, [0], [0], rows=1, exclusive=False
    )
    assert sorted(results) == ["h_next", "y"]


def test_growing_state_grows_for_each_sequence():
    """Sizes are each sequence's own; those of one run are equal."""
    slots = slots_of(Collector(), state(dims=(-1,)), count=2)
    run(slots, [[1], [2]], [0, 1], starting=[0, 1])
    for step in range(2, 20):
        results, shapes = run(slots, [[1], [2]], [0, 1])
        assert results["y"].tolist() == [step, 2 * step]
        assert shapes == {"h": (step,)}
    run(slots, [[5]], [1], starting=[1])
    with pytest.raises(GraphFailed, match="different sizes"):
        run(slots, [[1], [2]], [0, 1])


def test_a_sequence_that_begins_gives_back_what_the_one_before_it_took():
    """Else each slot would hold for ever as much as the longest sequence that it ever had."""
    slots = slots_of(Collector(), state(dims=(-1,)), count=1)
    tracemalloc.start()
    try:
        run(slots, [[1.0] * 500_000], [0], starting=[0])
        held, _ = tracemalloc.get_traced_memory()
        for size in range(1, 4):
            results, _ = run(slots, [[1] * size], [0], starting=[0])
            assert results["y"].tolist() == [size]
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held > 2_000_000
    assert left < 100_000


def test_a_buffer_of_about_the_size_that_is_needed_is_kept():
    """Where a sequence begins with a quarter of what the one before it took, nothing is allocated."""
    kept = _Growing(np.zeros(300, np.float32), 1)
    kept.scatter([0], np.zeros((1, 1000), np.float32))
    buffer = kept._buffers[0]
    kept.gather([0], [0], 1)
    assert kept._buffers[0] is buffer


def test_growing_texts_are_padded_with_empty_ones():
    """A row that is nobody's has texts as well, and a graph may look at them."""
    seen = []

    class Words:
        def run(self, inputs, outputs, *, exclusive):
            seen.append(inputs["h"].tolist())
            return {"h_next": np.array([[b"a"], [b"b"], [b"c"]], object)}

    slots = slots_of(Words(), state(dims=(-1,), dtype="BYTES"), count=2)
    for starting in ([0, 1], []):
        slots.run({"x": np.ones((3, 1))}, {}, [0, 1], starting, rows=3, exclusive=False)
    assert seen[1] == [[b"a"], [b"b"], [b""]]


def test_a_state_of_another_shape_or_type_is_refused():
    """What the graph gave and what was declared are named."""
    wrong = slots_of(Accumulator(), state(dims=(3,), dtype="INT32"))
    with pytest.raises(GraphFailed, match=r"float64 \[1, 3\].*INT32 \[3\]"):
        run(wrong, [[1, 1, 1]], [0], starting=[0])
    none = slots_of(Nothing(), state(dims=(3,)))
    with pytest.raises(GraphFailed, match="no output"):
        run(none, [[1, 1, 1]], [0], starting=[0])


class Nothing:
    def run(self, inputs, outputs, *, exclusive):
        return {}


class Stacked:
    """h_next = h + x, of which each row is a place of the second dimension."""

    def run(self, inputs, outputs, *, exclusive):
        assert inputs["h"].flags.c_contiguous
        total = inputs["h"] + inputs["x"][None, :, :]
        return {"y": total.sum(axis=0), "h_next": total}


@pytest.mark.parametrize("varies", [False, True])
def test_a_state_may_have_the_batch_behind_its_first_dimension(varies):
    """Each sequence's part of `[2, batch, 3]` is its own, also where there are two rows."""
    kept = state((2, -1) if varies else (2, 3), initial_dims=(2, 3))
    slots = slots_of(Stacked(), replace(kept, axis=1), count=4)
    run(slots, [[1] * 3, [10] * 3], [2, 0], starting=[2, 0])
    results, shapes = run(slots, [[5] * 3, [2] * 3], [0, 2])
    assert results["y"].tolist() == [[30] * 3, [6] * 3]
    assert shapes == ({"h": (2, 3)} if varies else {})
