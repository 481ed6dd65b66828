"""One user's buffers: used again, and freed when nobody uses them; more in test_shelf.py."""

import threading

import pytest

from ge_backend.device.resident.store import BufferStore
from ge_backend.errors import GraphFailed, OutOfMemory

WHAT = "a test"


class Buffer:
    def __init__(self, memory, nbytes):
        self.memory, self.nbytes = memory, nbytes

    def close(self):
        self.memory.live.remove(self)


class Memory:
    """So many bytes."""

    name, alignment = "fake", 1

    def __init__(self, nbytes):
        self.nbytes, self.live = nbytes, []

    def allocate(self, nbytes, what):
        assert what == WHAT
        if sum(buffer.nbytes for buffer in self.live) + nbytes > self.nbytes:
            raise OutOfMemory("no room")
        self.live.append(Buffer(self, nbytes))
        return self.live[-1]


@pytest.fixture
def memory():
    return Memory(100)


@pytest.fixture
def store(memory):
    store = BufferStore(memory)
    yield store
    store.close()
    assert memory.live == []


def test_the_smallest_idle_buffer_that_is_large_enough_is_lent(store):
    """So that the larger ones are there for what needs them."""
    store.reserve([30, 10, 20], WHAT)
    assert [store.take(nbytes, WHAT).nbytes for nbytes in (15, 5, 25)] == [20, 10, 30]
    assert store.num_bytes == 60


def test_a_new_buffer_takes_the_place_of_an_idle_one(store, memory):
    """What is lent stays as it is."""
    lent = store.take(10, WHAT)
    store.give_back(store.take(20, WHAT))
    store.take(70, WHAT)
    assert lent in memory.live
    assert store.num_bytes == sum(buffer.nbytes for buffer in memory.live) == 80


def test_nothing_is_reserved_where_not_all_fits(store, memory):
    """And nothing stays taken."""
    with pytest.raises(OutOfMemory):
        store.reserve([60, 60], WHAT)
    assert (memory.live, store.num_bytes) == ([], 0)


def test_buffers_are_freed_when_the_last_use_is_over(memory):
    """Lent ones, too; a use that comes later is told so."""
    store = BufferStore(memory)
    closing = threading.Thread(target=store.close)
    with store.in_use():
        store.take(10, WHAT)
        closing.start()
        closing.join(0.05)
        assert closing.is_alive()
        assert len(memory.live) == 1
    closing.join()
    assert (memory.live, store.num_bytes) == ([], 0)
    with pytest.raises(GraphFailed, match="given back"), store.in_use():
        pass
