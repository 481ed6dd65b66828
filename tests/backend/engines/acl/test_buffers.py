"""Device buffers on a simulated NPU, with states in them: what is copied where, and the results."""

import contextlib
import threading
from dataclasses import replace

import numpy as np
import pytest

from acl_simulator import Accumulate, DimsGears, Static
from builders.npu import INVALID
from builders.npu_states import GEARS, WIDTH, state, state_layout
from ge_backend.device.resident.states import StateStore, open_states
from ge_backend.engines.acl.buffers import AclMemory
from ge_backend.errors import DeviceFault, GraphFailed, ModelError, OutOfMemory


@pytest.fixture
def graph(npu):
    return npu.load(npu.write(Accumulate(), GEARS))


@pytest.fixture
def open_(npu):
    """A function that opens slots; they are closed at the end."""
    with contextlib.ExitStack() as closing:

        def open_(graph, given):
            slots = closing.enter_context(contextlib.closing(open_states(graph, given)))
            assert "h" in slots.on_device
            return slots

        yield open_


@pytest.fixture
def slots(graph, open_):
    return open_(graph, state_layout(graph.signature))


def step(slots, values, ids, starting=(), rows=None):
    """Run a batch padded with ones; return the sums of its real rows."""
    x = np.ones((rows or len(values), WIDTH), np.float32)
    x[: len(values)] = np.array(values, np.float32)[:, None]
    results, shapes = slots.run({"x": x}, {}, ids, starting, rows=len(x), exclusive=False)
    assert shapes == {}
    (y,) = results.values()
    assert (y == y[:, :1]).all()
    return y[: len(values), 0].tolist()


def test_every_slot_goes_on_from_its_own_state(slots):
    """Whoever shares the batch, in whatever order, in whatever gear."""
    assert step(slots, [1, 10, 100, 1000], [5, 0, 1, 2], starting=[5, 0, 1, 2]) == [
        1,
        10,
        100,
        1000,
    ]
    assert step(slots, [2], [0]) == [12]
    assert step(slots, [3, 4], [2, 5], rows=4) == [1003, 5]
    assert step(slots, [0, 0, 0, 0], [0, 1, 2, 5]) == [12, 100, 1003, 5]
    assert step(slots, [7], [2], starting=[2]) == [7]
    assert step(slots, [1], [2]) == [8]


def test_states_never_cross_the_bus(npu, slots):
    """Only x and y do, and the small state that cannot stay; and nothing is allocated."""
    step(slots, [1, 2, 3, 4], [0, 1, 2, 3], starting=[0, 1, 2, 3])
    sim = npu.sim
    moved = sim.uploaded_bytes, sim.downloaded_bytes
    allocated = sim.calls["rt.malloc"], sim.calls["rt.malloc_host"]
    for _ in range(3):
        step(slots, [1, 2, 3, 4], [3, 1, 0, 2])
    batch = 4 * (WIDTH + 1) * 4
    assert (sim.uploaded_bytes - moved[0], sim.downloaded_bytes - moved[1]) == (3 * batch,) * 2
    assert (sim.calls["rt.malloc"], sim.calls["rt.malloc_host"]) == allocated


TENSORS = {"x": (4, WIDTH), "h": (4, WIDTH), "n": (4, 1)}


@pytest.mark.parametrize(
    ("shapes", "rows"),
    [
        (Static(TENSORS), 4),
        (GEARS, 1),
        (GEARS, 4),
        (DimsGears({"x": (-1, WIDTH), "h": (-1, WIDTH), "n": (-1, 1)}, [(1, 1, 1), (4, 4, 4)]), 4),
    ],
    ids=["static batch", "batch gear of 1", "batch gear of 4", "dims gear of 4"],
)
def test_a_step_moves_its_inputs_and_the_outputs_that_were_asked_for(npu, open_, shapes, rows):
    """To the byte and to the copy; what nobody asked for stays, and so does the state."""
    graph = npu.load(npu.write(Accumulate(), shapes))
    given = state_layout(graph.signature, state("h", WIDTH))
    nobodys = {spec.name for spec in graph.signature.outputs if spec.name.endswith("n_next")}
    slots = open_(graph, replace(given, hidden=given.hidden | nobodys))
    inputs = {"x": np.ones((rows, WIDTH), np.float32), "n": np.zeros((rows, 1), np.float32)}

    def moved(starting=()):
        sim = npu.sim
        before = sim.calls["rt.memcpy_async"], sim.uploaded_bytes, sim.downloaded_bytes
        results, _ = slots.run(inputs, {}, [2], starting, rows=rows, exclusive=False)
        after = sim.calls["rt.memcpy_async"], sim.uploaded_bytes, sim.downloaded_bytes
        return results, [new - old for new, old in zip(after, before, strict=True)]

    moved(starting=[2])
    results, (copies, up, down) = moved()
    (y,) = results.values()
    assert (y[0] == 2).all()
    into_batch = 1 if rows == 1 else 2  # the sequence's row, and all of the padding at once
    assert copies == len(inputs) + into_batch + 1 + len(results)
    assert (up, down) == (rows * (WIDTH + 1) * 4, rows * WIDTH * 4)


def test_more_padding_than_slots_begins_with_the_initial_value_too(npu, open_):
    """In as many copies as it takes; no more of it is kept than slots."""
    shapes = Static({"x": (8, WIDTH), "h": (8, WIDTH), "n": (8, 1)})
    graph = npu.load(npu.write(Accumulate(), shapes))
    first = np.arange(WIDTH, dtype=np.float32)
    (npu.folder / "first").write_bytes(first.tobytes())
    states = state("h", WIDTH, file=str(npu.folder / "first")), state("n", 1)
    slots = open_(graph, state_layout(graph.signature, *states, count=3))
    x = np.ones((8, WIDTH), np.float32)
    for total in (1, 2):
        results, _ = slots.run({"x": x}, {}, [1], [1] * (total == 1), rows=8, exclusive=False)
        (y,) = results.values()
        assert np.array_equal(y[0], first + total)
        assert np.array_equal(y[1:], np.stack([first + 1] * 7))


def test_neighbouring_slots_share_a_copy(npu, slots):
    """Four slots in order are one copy each way; in reverse order they are four."""
    step(slots, [1, 2, 3, 4], [0, 1, 2, 3], starting=[0, 1, 2, 3])

    def copies(ids):
        before = npu.sim.calls["rt.memcpy_async"]
        step(slots, [1, 2, 3, 4], ids)
        return npu.sim.calls["rt.memcpy_async"] - before

    assert copies([3, 2, 1, 0]) - copies([0, 1, 2, 3]) == 2 * (4 - 1)


def test_it_computes_what_host_memory_does(graph, slots):
    """A hundred random batches, to the bit."""
    host = StateStore(graph, state_layout(graph.signature), None)
    generator = np.random.default_rng(11)
    known = set()
    for _ in range(100):
        ids = generator.permutation(8)[: generator.integers(1, 5)].tolist()
        starting = [slot for slot in ids if slot not in known or generator.random() < 0.1]
        known.update(ids)
        rows = 1 if len(ids) == 1 else 4
        x = generator.standard_normal((rows, WIDTH)).astype(np.float32)
        (ours,), (theirs,) = (
            one.run({"x": x}, {}, ids, starting, rows=rows, exclusive=False)[0].values()
            for one in (slots, host)
        )
        assert ours[: len(ids)].tobytes() == theirs[: len(ids)].tobytes()


def test_a_sequence_begins_with_its_file(npu, graph, open_):
    """Every time it begins; so does padding."""
    first = np.arange(WIDTH, dtype=np.float32)
    (npu.folder / "first").write_bytes(first.tobytes())
    states = state("h", WIDTH, file=str(npu.folder / "first")), state("n", 1)
    slots = open_(graph, state_layout(graph.signature, *states))
    x = np.ones((4, WIDTH), np.float32)
    for _ in range(2):
        for number, starting in ((1, [3]), (2, [])):
            results, _ = slots.run({"x": x}, {}, [3], starting, rows=4, exclusive=False)
            (y,) = results.values()
            assert np.array_equal(y[0], first + number)
            assert np.array_equal(y[1:], np.stack([first + 1] * 3))


def test_a_state_may_be_an_output_as_well(graph, open_):
    """It is downloaded then, into its place, and kept."""
    given = replace(state_layout(graph.signature), hidden=frozenset())
    name = given.states[0].output
    place = np.zeros((1, WIDTH), np.float32)
    slots = open_(graph, given)
    for total, starting in ((1, [0]), (2, [])):
        x = np.ones((1, WIDTH), np.float32)
        results, _ = slots.run({"x": x}, {name: place}, [0], starting, rows=1, exclusive=False)
        assert len(results) == 3
        assert results[name] is place
        assert place.tolist() == [[total] * WIDTH]


def test_without_a_batch_dimension_a_state_of_any_size_stays(npu, open_):
    """There is one row, so that all copies begin where they must."""
    shapes = Static({"x": (WIDTH,), "h": (WIDTH,), "n": (1,)})
    graph = npu.load(npu.write(Accumulate(), shapes))
    slots = open_(graph, state_layout(graph.signature, batched=False))
    x = np.ones(WIDTH, np.float32)
    for slot, total in ((2, 1), (1, 1), (2, 2), (2, 3), (1, 2)):
        before = npu.sim.uploaded_bytes
        starting = [slot] if total == 1 else []
        results, _ = slots.run({"x": x}, {}, [slot], starting, rows=1, exclusive=False)
        (y,) = results.values()
        assert y.tolist() == [total] * WIDTH
        assert npu.sim.uploaded_bytes - before == x.nbytes


def test_a_failed_run_leaves_the_states_alone(npu, slots):
    """The step can be repeated."""
    step(slots, [5], [0], starting=[0])
    npu.sim.fail("mdl.execute_async", INVALID)
    with pytest.raises(GraphFailed):
        step(slots, [1], [0])
    npu.sim.heal()
    assert step(slots, [1], [0]) == [6]


@pytest.mark.parametrize("copied", range(6))
def test_a_refused_copy_leaves_the_states_alone(npu, slots, copied):
    """Whichever it is: x or n up, h in, y or n down, h out."""
    step(slots, [5], [0], starting=[0])
    npu.sim.fail("rt.memcpy_async", INVALID, after=copied)
    with pytest.raises(GraphFailed):
        step(slots, [1], [0])
    npu.sim.heal()
    assert step(slots, [1], [0]) == [6]


def test_a_state_of_another_size_is_refused(graph, open_):
    """Before anything is written past its slot."""
    crossed = state("h", WIDTH, output="n_next"), state("n", 1, output="h_next")
    slots = open_(graph, state_layout(graph.signature, *crossed))
    with pytest.raises(GraphFailed, match=r"was to be \[1, 16\] and is \[1, 1\]"):
        step(slots, [1], [0], starting=[0])


def test_slots_are_freed_when_the_last_run_is_over(npu, slots):
    """A run that comes later is told so."""
    closing = threading.Thread(target=slots.close)
    with npu.sim.paused():
        running = threading.Thread(target=step, args=(slots, [1], [0]), kwargs={"starting": [0]})
        running.start()
        assert npu.sim.wait_until(lambda: any("run of" in task for task in npu.sim.in_flight()))
        taken = len(npu.sim.allocations())
        closing.start()
        assert len(npu.sim.allocations()) == taken
    running.join()
    closing.join()
    assert len(npu.sim.allocations()) < taken
    with pytest.raises(GraphFailed, match="given back"):
        step(slots, [1], [0])


def test_too_many_sequences_are_refused_with_the_numbers(graph, open_):
    """And nothing of them stays taken, which is seen at the end."""
    with pytest.raises(OutOfMemory, match=r"state 'h' of 100000000 sequences: .* needed"):
        open_(graph, state_layout(graph.signature, count=100_000_000))


def test_a_bad_initial_value_is_refused(npu, graph, open_):
    """With nothing taken."""
    states = state("h", WIDTH, file=str(npu.folder / "gone")), state("n", 1)
    with pytest.raises(ModelError, match="gone"):
        open_(graph, state_layout(graph.signature, *states))


@pytest.mark.parametrize("call", ["rt.malloc_host", "rt.memcpy_async"])
def test_an_initial_value_that_does_not_get_there_leaves_nothing(npu, graph, call):
    """Neither slots nor the pinned memory that it was copied from."""
    before = npu.sim.allocations()
    npu.sim.fail(call, INVALID)
    with pytest.raises(GraphFailed):
        open_states(graph, state_layout(graph.signature))
    npu.sim.heal()
    assert npu.sim.allocations() == before


def test_an_upload_that_a_fault_ends_is_settled_before_its_source_is_freed(npu):
    """The copy may still be in flight then."""
    memory = AclMemory(npu.device._device, 1000)
    buffer = memory.allocate(4096, "test")
    before = len(npu.sim.allocations())
    npu.sim.fail("rt.synchronize_stream_with_timeout", 507046)
    with pytest.raises(DeviceFault, match="507046"):
        memory.upload(buffer, np.zeros(4096, np.uint8))
    assert npu.sim.in_flight() == []
    assert len(npu.sim.allocations()) == before
    buffer.close()
