"""Each source is loaded once, kept while someone holds it, and closed some time after."""

import threading
from types import SimpleNamespace

import pytest

from builders.locks import TellingLock
from builders.null_models import comes_true, write_null
from fakes.null_device import NullDevice
from fakes.null_faults import Fault
from ge_backend.device import shared as registry_module
from ge_backend.device.base import NO_POOL, GraphSource
from ge_backend.device.workspace.pool import Pool
from ge_backend.errors import GraphFailed, OutOfMemory, ProtocolError
from ge_backend.executor.server.graph_cache import GraphCache


@pytest.fixture
def device():
    return NullDevice()


@pytest.fixture
def source(tmp_path):
    return write_null(tmp_path / "model.null")


def test_many_at_once_load_a_source_once(device, source):
    """Eight threads that acquire one source while it loads share one graph."""
    device.inject(Fault(on="load", do="sleep", ms=50))
    graph_cache = GraphCache(device, Pool(0), linger_s=0)
    got = []
    threads = [
        threading.Thread(target=lambda: got.append(graph_cache.acquire(source))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(entry.graph) for entry in got}) == 1
    assert len({entry.id for entry in got}) == 1
    assert graph_cache.holders() == [8]
    assert device.counts.loads == 1


def test_sources_that_differ_in_anything_are_loaded_apart(device, source):
    """Another precision, thread count or state of the file is another graph."""
    graph_cache = GraphCache(device, Pool(0), linger_s=0)
    sources = [
        source,
        GraphSource(path=source.path, stamp=source.stamp, precision="bf16"),
        GraphSource(path=source.path, stamp=source.stamp, threads=2),
        GraphSource(path=source.path, stamp="touched"),
    ]
    assert len({graph_cache.acquire(one).id for one in sources}) == 4
    assert device.counts.loads == 4


def test_a_load_does_not_hold_up_who_shares_a_graph_that_is_loaded(device, source, tmp_path):
    """While a slow source loads, one that is loaded already is acquired at once."""
    graph_cache = GraphCache(device, Pool(0), linger_s=0)
    graph_cache.acquire(source)
    held = tmp_path / "held"
    hold = {"on": "load", "do": "hold", "file": str(held)}
    slow = write_null(tmp_path / "slow.null", faults=[hold])
    thread = threading.Thread(target=graph_cache.acquire, args=(slow,))
    thread.start()
    assert comes_true(held.exists)
    graph_cache.acquire(source)
    assert thread.is_alive()
    held.unlink()
    thread.join()


def test_a_graph_is_closed_only_after_its_last_holder_and_the_linger_time(
    device, source, monkeypatch
):
    """A graph stays while it is held and a little longer, and then goes."""
    now = 0.0
    monkeypatch.setattr(registry_module, "time", SimpleNamespace(monotonic=lambda: now))
    graph_cache = GraphCache(device, Pool(0), linger_s=0.5)
    entry = graph_cache.acquire(source)
    graph_cache.hold(entry)
    graph_cache.release(entry)
    now += 0.6
    graph_cache.close_idle()
    assert device.counts.closes == 0
    graph_cache.release(entry)
    graph_cache.close_idle()
    assert device.counts.closes == 0
    now += 0.6
    graph_cache.close_idle()
    assert device.counts.closes == 1
    assert graph_cache.entries() == []


def test_a_graph_taken_up_again_within_the_linger_time_is_not_loaded_again(device, source):
    """Whoever comes soon after the last one left finds the graph still loaded."""
    graph_cache = GraphCache(device, Pool(0), linger_s=60)
    first = graph_cache.acquire(source)
    graph_cache.release(first)
    graph_cache.close_idle()
    assert graph_cache.acquire(source) is first
    assert device.counts.loads == 1


def test_closing_now_does_not_wait_but_spares_what_is_held(device, source, tmp_path):
    """At the end idle graphs go at once; one that is still held is not pulled away."""
    graph_cache = GraphCache(device, Pool(0), linger_s=60)
    idle = graph_cache.acquire(source)
    graph_cache.release(idle)
    held = graph_cache.acquire(write_null(tmp_path / "held.null"))
    graph_cache.close_idle(now=True)
    assert graph_cache.entries() == [held]
    assert device.counts.closes == 1


def test_a_failed_load_leaves_nothing_and_can_be_tried_again(device, source):
    """After a load that failed nothing is held, and the next try loads."""
    graph_cache = GraphCache(device, Pool(0), linger_s=60)
    device.inject(Fault(on="load", do="fail", nth=1))
    with pytest.raises(GraphFailed):
        graph_cache.acquire(source)
    assert graph_cache.entries() == []
    entry = graph_cache.acquire(source)
    assert graph_cache.holders() == [1]
    assert graph_cache.entries() == [entry]


def test_of_two_that_wait_for_a_failing_load_the_second_tries_itself(device, source):
    """One failure is one caller's; whoever waited for it loads again."""
    graph_cache = GraphCache(device, Pool(0), linger_s=60)
    device.inject(Fault(on="load", do="sleep", ms=100))
    device.inject(Fault(on="load", do="fail", nth=1))
    outcomes = []

    def acquire():
        try:
            graph_cache.acquire(source)
            outcomes.extend(graph_cache.holders())
        except GraphFailed:
            outcomes.append("failed")

    threads = [threading.Thread(target=acquire) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, outcomes)) == ["1", "failed"]
    assert graph_cache.holders() == [1]


def test_one_release_too_many_is_an_error(device, source):
    """Releasing what nobody holds is a defect that is named."""
    graph_cache = GraphCache(device, Pool(0), linger_s=0)
    entry = graph_cache.acquire(source)
    graph_cache.release(entry)
    with pytest.raises(ProtocolError, match="once too often"):
        graph_cache.release(entry)


def test_a_graph_is_in_the_pool_as_long_as_it_is_loaded(device, source):
    """It comes with the load, goes with the close, and is not there after a load that failed."""
    pool = Pool(4096)
    graph_cache = GraphCache(device, pool, linger_s=60)
    device.inject(Fault(on="load", do="fail", nth=1))
    with pytest.raises(GraphFailed):
        graph_cache.acquire(source)
    assert pool.figures().holders == {}
    entry = graph_cache.acquire(source)
    assert list(pool.figures().holders) == [entry.holder]
    assert entry.holder.endswith("/model.null #2")
    assert graph_cache.defects() == []
    pool.remove(entry.holder)
    assert graph_cache.defects() == ["1 of 1 graphs are not in the pool"]
    pool.workspace(entry.holder)
    graph_cache.release(entry)
    graph_cache.close_idle(now=True)
    assert pool.figures().holders == {}


def test_a_shortage_closes_what_is_idle_and_only_then_refuses(tmp_path):
    """The first shortage makes room; the second, with nothing idle left, tells who has the rest."""
    device = NullDevice(memory_bytes=1000)
    graph_cache = GraphCache(device, Pool(0), linger_s=60)
    sources = [write_null(tmp_path / f"{n}.null", weights_bytes=400) for n in range(4)]
    idle = graph_cache.acquire(sources[0])
    graph_cache.acquire(sources[1])
    graph_cache.release(idle)
    held = graph_cache.acquire(sources[2])
    assert (graph_cache.evictions, device.counts.closes) == (1, 1)
    with pytest.raises(OutOfMemory) as caught:
        graph_cache.acquire(sources[3])
    assert "takes 400 bytes, 200 are free" in str(caught.value)
    assert "the device has 200 B of 1000 B free; loaded: " in str(caught.value)
    assert held.holder in str(caught.value)
    assert graph_cache.evictions == 1


def test_what_others_give_up_is_room_too(tmp_path):
    """A text generator's memory, say, with no graph idle."""
    device = NullDevice(memory_bytes=1000)
    graph_cache = GraphCache(device, Pool(0), linger_s=60)
    sources = [write_null(tmp_path / f"{n}.null", weights_bytes=600) for n in range(2)]
    theirs = device.load(sources[0], NO_POOL)

    def give_up():
        theirs.close()
        return 1

    graph_cache.on_shortage = give_up
    graph_cache.acquire(sources[1])
    assert graph_cache.evictions == 0


@pytest.fixture
def closing(tmp_path, monkeypatch):
    """Return a cache whose memory is being freed, what lets it be, who does it, and a source.

    Whoever waits for it lets it be, too.
    """
    graph_cache = GraphCache(NullDevice(memory_bytes=1000), Pool(0), linger_s=0)
    sources = [write_null(tmp_path / f"{n}.null", weights_bytes=600) for n in range(2)]
    entry = graph_cache.acquire(sources[0])
    graph_cache.release(entry)
    graph = entry.graph
    begun, gate, close = threading.Event(), threading.Event(), graph.close
    monkeypatch.setattr(graph, "close", lambda: (begun.set(), gate.wait(60), close()))
    monkeypatch.setattr(graph_cache._shared, "_closing", TellingLock(gate))
    thread = threading.Thread(target=graph_cache.close_idle)
    thread.start()
    assert begun.wait(10)
    yield graph_cache, gate, thread, sources[1]
    gate.set()
    thread.join()


def test_what_is_being_closed_is_waited_for(closing):
    """Its memory is not free yet, and will be."""
    graph_cache, gate, _, source = closing
    graph_cache.acquire(source)
    assert gate.is_set()
    assert graph_cache.evictions == 0


def test_who_needs_no_memory_does_not_wait(closing):
    """The loop that takes new connections asks again soon."""
    graph_cache, _, thread, _ = closing
    assert graph_cache.close_idle() == 0
    assert thread.is_alive()


def test_what_has_been_closed_since_is_room_too(closing):
    """Nothing is left to wait for then, and memory is free."""
    graph_cache, gate, thread, source = closing
    graph_cache.on_shortage = lambda: gate.set() or thread.join() or 0
    graph_cache.acquire(source)
    assert graph_cache.evictions == 0


def test_a_place_is_as_large_as_the_most_that_was_measured(device, source):
    """It grows with the need, never shrinks, and a first measurement takes all of the pool."""
    pool = Pool(4096)
    graph_cache = GraphCache(device, pool, linger_s=0)
    entry = graph_cache.acquire(source)
    assert graph_cache.measuring_bytes(entry) == 4096
    for nbytes, placed in ((0, 0), (100, 100), (50, 100), (300, 300)):
        graph_cache.place(entry, nbytes)
        assert pool.figures().holders == {entry.holder: placed}
    assert graph_cache.measuring_bytes(entry) == 0
    assert graph_cache.run_bytes(entry, {"x": (10, 60)}) == 600
    with pytest.raises(OutOfMemory):
        graph_cache.run_bytes(entry, {"x": (100, 60)})
    assert pool.figures().holders == {entry.holder: 600}


def test_without_a_pool_nobody_asks_what_a_run_takes(device, source):
    """The answer would be of no use, and cost time."""
    graph_cache = GraphCache(device, Pool(0), linger_s=0)
    entry = graph_cache.acquire(source)
    assert graph_cache.run_bytes(entry, {"x": (10, 60)}) == 0
    assert graph_cache.measuring_bytes(entry) == 0
