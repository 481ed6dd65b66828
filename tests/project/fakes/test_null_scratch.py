"""The null device's memory runs out, and overwritten scratch shows as wrong results."""

import itertools
import json
import threading

import numpy as np
import pytest

from fakes.null_device import NullDevice
from fakes.null_scratch import POISON, DeviceMemory
from ge_backend.device.base import NO_POOL, GraphSource, MemoryInfo, Range
from ge_backend.engines.null import device as null
from ge_backend.errors import ModelError, OutOfMemory

ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)


class Places:
    """A workspace that puts every graph where the test says, whatever else lies there."""

    def __init__(self, offset=0):
        self.offset = offset
        self.asked = []

    def place(self, nbytes):
        self.asked.append(nbytes)
        return Range(offset=self.offset, nbytes=nbytes)


def load(folder, device, workspace=NO_POOL, **given):
    model = {
        "inputs": [{"name": "x", "dtype": "FP32", "dims": ["batch", "length"]}],
        "outputs": [{"name": "y", "dtype": "FP32", "dims": ["batch"], "compute": "sum", "of": "x"}],
        **given,
    }
    path = folder / f"{len(list(folder.iterdir()))}.null"
    path.write_text(json.dumps(model))
    return device.load(GraphSource.of(path), workspace)


def result(graph):
    return graph.run({"x": ROWS}, {}, exclusive=False)["y"].tolist()


def test_weights_are_taken_while_a_graph_is_loaded(tmp_path):
    """The second model does not fit, until the first one is closed."""
    device = NullDevice(memory_bytes=1000)
    first = load(tmp_path, device, weights_bytes=600)
    assert device.memory() == MemoryInfo(free_bytes=400, total_bytes=1000)
    with pytest.raises(OutOfMemory, match=r"weights of .* takes 600 bytes, 400 are free"):
        load(tmp_path, device, weights_bytes=600)
    first.close()
    load(tmp_path, device, weights_bytes=1000).close()
    assert device.memory().free_bytes == 1000


def test_without_a_pool_scratch_is_the_devices(tmp_path):
    """A model whose workspace finds no room does not load, and leaves no weights behind."""
    device = NullDevice(memory_bytes=1000)
    graph = load(tmp_path, device, weights_bytes=200, workspace_bytes=500)
    with pytest.raises(OutOfMemory, match=r"workspace of .* takes 500 bytes, 200 are free"):
        load(tmp_path, device, weights_bytes=100, workspace_bytes=500)
    assert device.memory().free_bytes == 300
    graph.close()
    assert device.memory().free_bytes == 1000


def test_a_pool_is_taken_from_the_device_once(tmp_path):
    """What is in the pool costs a model nothing more."""
    device = NullDevice(memory_bytes=1000)
    assert device.reserve(600) == 600
    graph = load(tmp_path, device, Places(), weights_bytes=400, workspace_bytes=600)
    assert device.memory().free_bytes == 0
    graph.close()
    with pytest.raises(OutOfMemory, match="the workspace pool takes 900 bytes"):
        NullDevice(memory_bytes=800).reserve(900)


def test_no_pool_is_none(tmp_path):
    """Reserving nothing sets nothing aside."""
    device = NullDevice()
    assert device.reserve(0) == 0
    assert device.store.pool is None


def test_an_offline_model_takes_its_place_when_it_is_loaded(tmp_path):
    """One number is one range, for every shape."""
    device, places = NullDevice(), Places()
    device.reserve(1000)
    graph = load(tmp_path, device, places, workspace_bytes=300)
    assert places.asked == [300]
    assert graph.workspace_bytes({"x": (7, 7)}) == 300


def test_a_compiled_model_takes_its_place_for_the_largest_of_its_shapes(tmp_path):
    """With static shapes a need per shape is known when they are compiled."""
    device, places = NullDevice(), Places()
    device.reserve(1000)
    needs = {"2x3": 100, "4x3": 200, "*": 50}
    graph = load(tmp_path, device, places, workspace_bytes=needs, static_shapes=True)
    assert places.asked == []
    graph.compile([{"x": (2, 3)}, {"x": (4, 3)}, {"x": (1, 1)}])
    assert places.asked == [200]
    assert [graph.workspace_bytes({"x": shape}) for shape in ((2, 3), (9, 9))] == [100, 50]


def test_an_engine_with_scratch_of_its_own_only_tells_it(tmp_path):
    """With dynamic shapes nothing is placed by the graph; the executor measures."""
    device, places = NullDevice(), Places()
    device.reserve(1000)
    graph = load(tmp_path, device, places, workspace_bytes={"2x3": 100})
    graph.compile([{"x": (2, 3)}])
    assert places.asked == []
    assert graph.workspace_bytes({"x": (2, 3)}) == 100
    assert graph.workspace_bytes({"x": (1, 1)}) == 0


def test_what_is_no_need_is_refused(tmp_path):
    """Only bytes, and bytes by shape."""
    for given in ("much", {"*": "much"}, [1]):
        with pytest.raises(ModelError, match="expected bytes, or bytes by shape"):
            load(tmp_path, NullDevice(), workspace_bytes=given)


def test_scratch_in_flight_is_counted(tmp_path):
    """How much runs need at once is what a pool has to hold."""
    device = NullDevice()
    graph = load(tmp_path, device, workspace_bytes={"*": 100}, cost_ms={"*": 50})
    threads = [threading.Thread(target=result, args=(graph,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert device.counts.scratch == 0
    assert 100 <= device.counts.most_scratch <= 200


def test_a_run_leaves_poison_and_right_results(tmp_path):
    """Alone in its range it computes what it should, again and again."""
    device = NullDevice()
    device.reserve(256)
    graph = load(tmp_path, device, Places(64), workspace_bytes=128)
    assert [result(graph) for _ in range(3)] == [[3.0, 12.0]] * 3
    assert (device.store.pool == POISON).all()
    assert device.counts.overwritten == 0


def test_two_runs_in_one_range_give_a_wrong_result(tmp_path, monkeypatch):
    """What a pool has to prevent, done on purpose: a run finds its scratch overwritten."""
    device = NullDevice()
    device.reserve(256)
    slow = load(tmp_path, device, Places(0), workspace_bytes=128, cost_ms={"*": 300})
    quick = load(tmp_path, device, Places(64), workspace_bytes=128)
    meanwhile = []

    def sleep(seconds):
        if seconds:
            meanwhile.append(result(quick))

    monkeypatch.setattr(null.time, "sleep", sleep)
    assert result(slow) == [4.0, 13.0]
    assert meanwhile == [[3.0, 12.0]]
    assert device.counts.overwritten == 1


def test_a_run_that_fails_leaves_poison_too(tmp_path):
    """Nothing of it is left for the next one to find."""
    device = NullDevice()
    device.reserve(128)
    faults = [{"on": "run", "do": "out_of_memory", "nth": 1}]
    graph = load(tmp_path, device, Places(), workspace_bytes=128, faults=faults)
    with pytest.raises(OutOfMemory):
        result(graph)
    assert (device.store.pool == POISON).all()
    assert result(graph) == [3.0, 12.0]


def test_marks_differ_and_are_never_poison():
    """Two runs in a row, and the bytes between runs, can be told apart."""
    memory = DeviceMemory(100)
    memory.reserve(10)
    values = [memory.mark(Range(offset=0, nbytes=10)).value for _ in range(300)]
    assert POISON not in values
    assert all(a != b for a, b in itertools.pairwise(values))
