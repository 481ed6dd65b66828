"""One model, loaded as often as runs of it are to be in flight."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from acl_simulator import Accumulate, Encoder, MatMul, Ranges, Static
from builders.npu import KINDS, Npu, encoder, floats, kinds, run, tokens
from builders.npu_states import GEARS, WIDTH, state_layout
from ge_backend.device.resident.buffers import NOTHING_BOUND
from ge_backend.device.resident.states import open_states
from ge_backend.engines.acl.copies import Copies, loaded_copies
from ge_backend.errors import DeviceFault, GraphFailed, OutOfMemory
from ge_backend.tensors import ShapePolicy


@pytest.fixture
def npu(tmp_path):
    npu = Npu(tmp_path, lanes=3, copies=3)
    yield npu
    npu.close()


def in_flight(npu):
    return sum("run of" in task for task in npu.sim.in_flight())


def test_as_many_runs_as_copies_are_in_flight(npu):
    """Each on a stream and in memory of its own, and all are right."""
    graph = npu.load(encoder(npu.folder))
    results = {}

    def work(seed):
        inputs = tokens(4, 32, seed)
        expected = Encoder().expected(**inputs)["y"]
        results[seed] = np.array_equal(run(graph, **inputs)["y"], expected)

    with npu.sim.paused():
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(5)]
        for thread in threads:
            thread.start()
        assert npu.sim.wait_until(lambda: in_flight(npu) == 3)
    for thread in threads:
        thread.join()
    assert results == dict.fromkeys(range(5), True)


def test_weights_are_there_once_and_the_rest_three_times(npu):
    """As the blocks on the device show."""
    npu.load(npu.write(MatMul(rows=64, columns=64), Static({"x": (2, 64)}), work_bytes=8192))
    sizes = [block.size for block in npu.sim.allocations()]
    assert sizes.count(64 * 64 * 4) == 1
    assert sizes.count(8192) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_copies_are_the_graph_itself(npu, kind):
    """Signature, shapes, preparing and results are those of one."""
    path, inputs, expected = kinds(npu.folder)[kind]
    graph = npu.load(path)
    graph.prepare(inputs)
    assert isinstance(graph, Copies)
    assert [spec.name for spec in graph.signature.outputs] == ["y"]
    assert graph.shape_policy.prepared == bool(graph.shape_policy.fixed)
    shapes = {name: array.shape for name, array in inputs.items()}
    planned = (
        graph.shape_policy.prepared and kind != "static_v2"
    )  # of which RuntimeV2 takes its own
    assert (graph.workspace_bytes(shapes) > 0) == planned
    before = npu.sim.calls.copy()
    for _ in range(4):
        assert np.array_equal(run(graph, **inputs)["y"], expected["y"])
    if kind != "unknown":
        assert not [name for name in npu.sim.calls - before if "malloc" in name]


def test_copies_say_of_themselves_what_one_says():
    """However the graph that is loaded several times wants its rows."""
    one = SimpleNamespace(signature="s", shape_policy=ShapePolicy(fixed=({"x": (1,)},)))
    graph = Copies([one, one])
    assert {name: getattr(graph, name) for name in vars(one)} == vars(one)


def test_in_a_pool_there_is_one(tmp_path):
    """A graph has one place there."""
    npu = Npu(tmp_path, copies=3)
    npu.device.reserve(1 << 20)
    assert not isinstance(npu.load(encoder(tmp_path)), Copies)
    npu.close()


def test_copies_that_do_not_fit_are_done_without(tmp_path, caplog):
    """The model serves with those that do."""
    npu = Npu(tmp_path, hbm_bytes=1 << 18, copies=9)
    path = npu.write(MatMul(rows=128, columns=64), Static({"x": (4, 128)}), work_bytes=1 << 16)
    graph = npu.load(path)
    assert "of 9 runs at once: no room for" in caplog.text
    x = floats(4, 128)
    expected = MatMul(rows=128, columns=64).expected(x=x)["y"]
    assert np.array_equal(run(graph, x=x)["y"], expected)
    npu.close()


def test_a_refused_run_gives_its_copy_back(npu):
    """More refusals than copies, and the next run is right."""
    graph = npu.load(encoder(npu.folder))
    npu.sim.fail("mdl.execute_async", 100000, times=5)
    for _ in range(5):
        with pytest.raises(GraphFailed):
            run(graph, **tokens(1, 16))
    assert run(graph, **tokens(1, 16))["y"].shape == (1, 8)


def test_a_copy_that_fails_to_load_takes_the_others_with_it():
    """Unless it is for memory alone."""

    class Loaded:
        def __init__(self):
            self.closed = False

        def close(self):
            self.closed = True

    made = []

    def load(error):
        if len(made) == 2:
            raise error
        made.append(Loaded())
        return made[-1]

    with pytest.raises(DeviceFault):
        loaded_copies(lambda: load(DeviceFault("broken")), 3)
    assert [one.closed for one in made] == [True, True]
    with pytest.raises(OutOfMemory):
        loaded_copies(lambda: load(OutOfMemory("none at all")), 3)


def test_states_are_kept_for_all_copies(npu):
    """In one place: a sequence's next step may run on another copy, beside others'."""
    graph = npu.load(npu.write(Accumulate(), GEARS))
    slots = open_states(graph, state_layout(graph.signature))
    assert slots.on_device == ("h",)

    def step(slot, starting=()):
        x = np.ones((1, WIDTH), np.float32)
        results, _ = slots.run({"x": x}, {}, [slot], starting, rows=1, exclusive=False)
        (y,) = results.values()
        found.setdefault(slot, []).append(y[0, 0])

    found = {}
    for slot in range(3):
        step(slot, starting=[slot])
    with npu.sim.paused():
        threads = [threading.Thread(target=step, args=(slot,)) for slot in range(3)]
        for thread in threads:
            thread.start()
        assert npu.sim.wait_until(lambda: in_flight(npu) == 3)
    for thread in threads:
        thread.join()
    assert found == {slot: [1, 2] for slot in range(3)}
    slots.close()


def test_states_of_copies_of_any_shape_are_kept_in_host_memory(npu):
    """As those of one of them are."""
    free = ((1, 8), (1, 64))
    graph = npu.load(npu.write(Accumulate(), Ranges({"x": free, "h": free, "n": free})))
    assert isinstance(graph, Copies)
    assert graph.device_memory() is None
    assert open_states(graph, state_layout(graph.signature)).on_device == ()
    with pytest.raises(GraphFailed, match="no tensor of this graph can stay"):
        graph.run_bound({}, {}, NOTHING_BOUND)
