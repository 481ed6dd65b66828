"""Stores of device tensors: what lies there, whose it is, and that its memory is used again and given back."""

import threading
from dataclasses import dataclass, field

import numpy as np
import pytest

from ge_backend.errors import GraphFailed, OutOfMemory, ProtocolError, TensorsLost
from ge_backend.executor.protocol.messages import (
    DeviceRows,
    GatherInput,
    RetainOutput,
    RetainTensors,
    Run,
)
from ge_backend.executor.server.device_tensors import MAX_FREED, DeviceTensorStores, RetainedTensors

MOST = 4096


@dataclass(eq=False)
class Buffer:
    memory: "Memory"
    nbytes: int
    value: np.ndarray | None = None
    closed: bool = False

    def close(self):
        assert not self.closed
        self.closed = True
        self.memory.used -= self.nbytes


@dataclass
class Memory:
    name: str = "fake"
    alignment: int = 1
    used: int = 0
    allocations: int = 0

    def allocate(self, nbytes, what):
        assert what == "tensors between the steps of an ensemble"
        if self.used + nbytes > MOST:
            raise OutOfMemory("no room")
        self.used += nbytes
        self.allocations += 1
        return Buffer(self, nbytes)

    def upload(self, buffer, content):
        raise NotImplementedError


@dataclass
class Graph:
    """Keeps x, or what is given as x, with one added."""

    memory: Memory | None
    error: Exception | None = None
    running: list = field(default_factory=list)

    def device_memory(self):
        return self.memory

    def run_bound(self, inputs, outputs, bound):
        for action in self.running:
            action()
        if self.error is not None:
            raise self.error
        given = {name: item.copies[0].buffer.value for name, item in bound.inputs.items()}
        result = {**inputs, **given}["x"] + 1
        for item in bound.outputs.values():
            item.copies[0].buffer.value = result
        return {} if "y" in bound.hidden else {"y": result}


class Stub:
    """A connection with one graph in its owner's store."""

    def __init__(self, stores, graph, owner="one", buffer_bytes=()):
        self.retained = RetainedTensors(stores)
        asked = RetainTensors(id=1, graph=7, owner=owner, buffer_bytes=buffer_bytes)
        self.memory = self.retained.open(asked, graph)

    def run(self, *, x=None, take=0, keep=0, size=4, dtype="FP32"):
        gathered = (
            GatherInput(name="x", dtype=dtype, shape=(1, size), fill=0, rows=(row(take, size),)),
        )
        retained = (
            RetainOutput(name="y", dtype="FP32", shape=(1, size), key=keep, also_to_host=False),
        )
        message = Run(
            id=2,
            graph=7,
            arena=0,
            inputs=(),
            outputs=(),
            gathered=gathered if take else (),
            retained=retained if keep else (),
        )
        inputs = {} if x is None else {"x": np.float32(x)}
        return self.retained.runs.run(message, inputs, {})

    def free(self, *keys):
        self.retained.free(keys)


def row(key, size):
    return DeviceRows(key=key, first=0, count=1, length=size)


@pytest.fixture
def device():
    return Memory()


@pytest.fixture
def stores():
    return DeviceTensorStores()


@pytest.fixture
def open_(stores, device):
    """A function that opens a connection; at the end all of them leave, and no memory is left."""
    stubs = []

    def open_(**options):
        stubs.append(Stub(stores, options.pop("graph", None) or Graph(device), **options))
        return stubs[-1]

    yield open_
    for stub in stubs:
        stub.retained.close()
    assert (device.used, stores.figures()) == (0, (0, 0))


def test_what_one_connection_keeps_another_takes(open_, stores):
    """Both are the owner's; nothing comes to the host."""
    first, second = open_(), open_()
    assert first.run(x=1, keep=5) == {}
    assert second.run(take=5) == {"y": 3}
    assert stores.figures() == (1, 16)


def test_another_owner_sees_nothing(open_):
    """The same key is another tensor there."""
    first, other = open_(), open_(owner="other")
    first.run(x=1, keep=5)
    with pytest.raises(TensorsLost, match="no longer on the device"):
        other.run(take=5)


def test_a_freed_tensor_is_gone_and_its_buffer_serves_the_next(open_, device):
    """After the first one nothing is allocated, for tensors that are no larger."""
    stub = open_()
    for key, size in enumerate((4, 4, 1, 3), start=1):
        stub.run(x=1, keep=key, size=size)
        stub.free(key)
        with pytest.raises(TensorsLost):
            stub.run(take=key)
    assert device.allocations == 1


def test_a_larger_tensor_takes_the_place_of_an_idle_buffer(open_, device):
    """So that memory does not grow with every size that comes."""
    stub = open_()
    stub.run(x=1, keep=1, size=4)
    stub.free(1)
    stub.run(x=1, keep=2, size=100)
    assert device.used == 400


def test_buffers_are_set_aside_beforehand(open_, device):
    """Then the first runs allocate nothing either."""
    stub = open_(buffer_bytes=(16, 400))
    assert (device.used, device.allocations) == (416, 2)
    stub.run(x=1, keep=1, size=4)
    stub.run(x=1, keep=2, size=100)
    assert device.allocations == 2


def test_buffers_are_set_aside_all_or_none(stores, device):
    """Who has no room for one tensor keeps none, and takes no memory for others."""
    with pytest.raises(OutOfMemory):
        Stub(stores, Graph(device), buffer_bytes=(16, MOST))
    assert device.used == 0


def test_a_run_that_fails_keeps_nothing(open_, stores, device):
    """And its buffer is not lost."""
    graph = Graph(device, error=GraphFailed("no"))
    stub = open_(graph=graph)
    for _ in range(3):
        with pytest.raises(GraphFailed):
            stub.run(x=1, keep=1)
    assert (stores.figures(), device.allocations) == ((0, 16), 1)
    graph.error = None
    stub.run(x=1, keep=1)
    assert stub.run(take=1) == {"y": 3}


def test_a_key_that_is_used_again_is_another_tensor(open_, device):
    """The former one's buffer is free then."""
    stub = open_()
    stub.run(x=1, keep=1)
    stub.run(x=10, keep=1)
    assert stub.run(take=1) == {"y": 12}
    stub.run(x=1, keep=2)
    assert device.allocations == 2


def test_a_tensor_that_was_freed_before_its_run_ended_is_not_kept(open_, device, stores):
    """Whoever gave the run up has freed it already, and nobody would again."""
    graph = Graph(device)
    stub = open_(graph=graph)
    for key in range(1, 6):
        graph.running = [lambda key=key: stub.free(key)]
        assert stub.run(x=1, keep=key) == {}
        assert stores.figures()[0] == 0
        assert device.allocations == 1  # the buffer serves the next one
    graph.running = []
    stub.run(x=1, keep=9)
    assert stub.run(take=9) == {"y": 3}
    with pytest.raises(TensorsLost):
        stub.run(take=5)


def test_only_so_many_freed_tensors_that_never_were_are_remembered(open_, device, stores):
    """The newest ones: runs in flight are few."""
    graph = Graph(device)
    stub = open_(graph=graph)
    stub.free(*range(1, 3 * MAX_FREED))
    stub.run(x=1, keep=1)
    assert stores.figures()[0] == 1
    stub.run(x=1, keep=3 * MAX_FREED - 1)
    assert stores.figures()[0] == 1
    assert len(stub.retained.runs.tensors._freed) < MAX_FREED


def test_a_tensor_of_another_type_or_memory_is_refused(open_, device):
    """Rather than read as something that it is not."""
    stub, other = open_(), open_(graph=Graph(Memory(name="another")))
    stub.run(x=1, keep=1)
    with pytest.raises(ProtocolError, match=r"INT32 in 'fake' .* is FP32 in 'fake'"):
        stub.run(take=1, dtype="INT32")
    with pytest.raises(ProtocolError, match=r"FP32 in 'another' .* is FP32 in 'fake'"):
        other.run(take=1)


def test_a_device_that_is_full_says_so(open_, stores):
    """What is kept stays."""
    stub = open_()
    stub.run(x=1, keep=1)
    with pytest.raises(OutOfMemory):
        stub.run(x=1, keep=2, size=MOST)
    assert stub.run(take=1) == {"y": 3}
    assert stores.figures() == (1, 16)


def test_a_store_lasts_as_long_as_a_connection_of_its_owner(stores, device):
    """The last one that leaves frees everything."""
    first, second = (Stub(stores, Graph(device)) for _ in range(2))
    first.run(x=1, keep=1)
    first.retained.close()
    assert second.run(take=1) == {"y": 3}
    second.retained.close()
    assert (device.used, stores.figures()) == (0, (0, 0))


def test_memory_is_freed_when_the_last_run_is_over(stores, device):
    """A connection that leaves waits for it."""
    closing = []

    def leave():
        closing.append(threading.Thread(target=stub.retained.close))
        closing[0].start()
        assert device.used

    stub = Stub(stores, Graph(device, running=[leave]))
    stub.run(x=1, keep=1)
    closing[0].join()
    assert device.used == 0


def test_a_graph_that_cannot_keep_says_so(stores):
    """There is nothing to join, and nothing to leave."""
    asked = RetainTensors(id=1, graph=7, owner="one", buffer_bytes=(16,))
    for graph in (Graph(None), object()):
        retained = RetainedTensors(stores)
        assert retained.open(asked, graph).name == ""
        assert retained.runs is None
        retained.free((1,))
        retained.close()


def test_executors_have_memories_of_different_names(device):
    """A step in another process of the same kind of device cannot take what is here."""
    one, other = (Stub(DeviceTensorStores(), Graph(device)) for _ in range(2))
    assert one.memory.name != other.memory.name
    assert one.memory.name.startswith("fake of ")
