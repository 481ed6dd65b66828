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
from ge_backend.executor.protocol.messages import Load, OpenService
from ge_backend.executor.server.device_tensors import DeviceTensorStores
from ge_backend.executor.server.graphs import defects, loaded_graphs
from ge_backend.executor.server.services import GRAPH, SERVICES, Services


class Graphs:
    """The graphs of an executor that has nothing else; those who hold one do no more with it."""

    def __init__(self, device, pool, linger_s):
        self.device, self.pool, self.tensor_stores = device, pool, DeviceTensorStores()
        self.services = Services(self, linger_s, {**SERVICES, "other": "nowhere:Nothing"})

    def acquire(self, source):
        """Return the graph as who has joined it last finds it."""
        asked = Load(id=1, source=source)
        self.services.join(asked, connection=None)
        return next(graph for graph in self.entries() if graph.source == source)

    def release(self, graph):
        self.services.of(GRAPH).release(repr(graph.source))

    def entries(self):
        return loaded_graphs(self)

    def holders(self):
        return list(self.services.of(GRAPH).holders().values())

    def close_idle(self, *, now=False):
        return self.services.close_idle(now=now)


@pytest.fixture
def device():
    return NullDevice()


@pytest.fixture
def source(tmp_path):
    return write_null(tmp_path / "model.null")


def test_many_at_once_load_a_source_once(device, source):
    """Eight threads that acquire one source while it loads share one graph."""
    device.inject(Fault(on="load", do="sleep", ms=50))
    graphs = Graphs(device, Pool(0), linger_s=0)
    got = []
    threads = [
        threading.Thread(target=lambda: got.append(graphs.acquire(source))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(entry.graph) for entry in got}) == 1
    assert len({entry.number for entry in got}) == 1
    assert graphs.holders() == [8]
    assert device.counts.loads == 1


def test_sources_that_differ_in_anything_are_loaded_apart(device, source):
    """Another precision, thread count or state of the file is another graph."""
    graphs = Graphs(device, Pool(0), linger_s=0)
    sources = [
        source,
        GraphSource(path=source.path, stamp=source.stamp, precision="bf16"),
        GraphSource(path=source.path, stamp=source.stamp, threads=2),
        GraphSource(path=source.path, stamp="touched"),
    ]
    assert len({graphs.acquire(one).number for one in sources}) == 4
    assert device.counts.loads == 4


def test_a_load_does_not_hold_up_who_shares_a_graph_that_is_loaded(device, source, tmp_path):
    """While a slow source loads, one that is loaded already is acquired at once."""
    graphs = Graphs(device, Pool(0), linger_s=0)
    graphs.acquire(source)
    held = tmp_path / "held"
    hold = {"on": "load", "do": "hold", "file": str(held)}
    slow = write_null(tmp_path / "slow.null", faults=[hold])
    thread = threading.Thread(target=graphs.acquire, args=(slow,))
    thread.start()
    assert comes_true(held.exists)
    graphs.acquire(source)
    assert thread.is_alive()
    held.unlink()
    thread.join()


def test_a_graph_is_closed_only_after_its_last_holder_and_the_linger_time(
    device, source, monkeypatch
):
    """A graph stays while it is held and a little longer, and then goes."""
    now = 0.0
    monkeypatch.setattr(registry_module, "time", SimpleNamespace(monotonic=lambda: now))
    graphs = Graphs(device, Pool(0), linger_s=0.5)
    entry = graphs.acquire(source)
    entry.hold()
    entry.release()
    now += 0.6
    graphs.close_idle()
    assert device.counts.closes == 0
    entry.release()
    graphs.close_idle()
    assert device.counts.closes == 0
    now += 0.6
    graphs.close_idle()
    assert device.counts.closes == 1
    assert graphs.entries() == []


def test_a_graph_taken_up_again_within_the_linger_time_is_not_loaded_again(device, source):
    """Whoever comes soon after the last one left finds the graph still loaded."""
    graphs = Graphs(device, Pool(0), linger_s=60)
    first = graphs.acquire(source)
    graphs.release(first)
    graphs.close_idle()
    assert graphs.acquire(source) is first
    assert device.counts.loads == 1


def test_closing_now_does_not_wait_but_spares_what_is_held(device, source, tmp_path):
    """At the end idle graphs go at once; one that is still held is not pulled away."""
    graphs = Graphs(device, Pool(0), linger_s=60)
    idle = graphs.acquire(source)
    graphs.release(idle)
    held = graphs.acquire(write_null(tmp_path / "held.null"))
    graphs.close_idle(now=True)
    assert graphs.entries() == [held]
    assert device.counts.closes == 1


def test_a_failed_load_leaves_nothing_and_can_be_tried_again(device, source):
    """After a load that failed nothing is held, and the next try loads."""
    graphs = Graphs(device, Pool(0), linger_s=60)
    device.inject(Fault(on="load", do="fail", nth=1))
    with pytest.raises(GraphFailed):
        graphs.acquire(source)
    assert graphs.entries() == []
    entry = graphs.acquire(source)
    assert graphs.holders() == [1]
    assert graphs.entries() == [entry]


def test_of_two_that_wait_for_a_failing_load_the_second_tries_itself(device, source):
    """One failure is one caller's; whoever waited for it loads again."""
    graphs = Graphs(device, Pool(0), linger_s=60)
    device.inject(Fault(on="load", do="sleep", ms=100))
    device.inject(Fault(on="load", do="fail", nth=1))
    outcomes = []

    def acquire():
        try:
            graphs.acquire(source)
            outcomes.extend(graphs.holders())
        except GraphFailed:
            outcomes.append("failed")

    threads = [threading.Thread(target=acquire) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, outcomes)) == ["1", "failed"]
    assert graphs.holders() == [1]


def test_one_release_too_many_is_an_error(device, source):
    """Releasing what nobody holds is a defect that is named."""
    graphs = Graphs(device, Pool(0), linger_s=0)
    entry = graphs.acquire(source)
    entry.release()
    with pytest.raises(ProtocolError, match="once too often"):
        entry.release()


def test_a_graph_is_in_the_pool_as_long_as_it_is_loaded(device, source):
    """It comes with the load, goes with the close, and is not there after a load that failed."""
    pool = Pool(4096)
    graphs = Graphs(device, pool, linger_s=60)
    device.inject(Fault(on="load", do="fail", nth=1))
    with pytest.raises(GraphFailed):
        graphs.acquire(source)
    assert pool.figures().holders == {}
    entry = graphs.acquire(source)
    assert list(pool.figures().holders) == [entry.holder]
    assert entry.holder.endswith("/model.null #2")
    assert defects(graphs) == []
    pool.remove(entry.holder)
    assert defects(graphs) == ["1 of 1 graphs are not in the pool"]
    pool.workspace(entry.holder)
    entry.release()
    graphs.close_idle(now=True)
    assert pool.figures().holders == {}


def test_a_shortage_closes_what_is_idle_and_only_then_refuses(tmp_path):
    """The first shortage makes room; the second, with nothing idle left, tells who has the rest."""
    device = NullDevice(memory_bytes=1000)
    graphs = Graphs(device, Pool(0), linger_s=60)
    sources = [write_null(tmp_path / f"{n}.null", weights_bytes=400) for n in range(4)]
    idle = graphs.acquire(sources[0])
    graphs.acquire(sources[1])
    graphs.release(idle)
    held = graphs.acquire(sources[2])
    assert (graphs.services.evictions, device.counts.closes) == (1, 1)
    with pytest.raises(OutOfMemory) as caught:
        graphs.acquire(sources[3])
    assert "takes 400 bytes, 200 are free" in str(caught.value)
    assert "the device has 200 B of 1000 B free; loaded: " in str(caught.value)
    assert held.holder in str(caught.value)
    assert graphs.services.evictions == 1


def test_what_others_give_up_is_room_too(tmp_path):
    """A text generator's memory, say, with no graph idle."""
    device = NullDevice(memory_bytes=1000)
    graphs = Graphs(device, Pool(0), linger_s=60)
    sources = [write_null(tmp_path / f"{n}.null", weights_bytes=600) for n in range(2)]
    others = graphs.services.of("other")
    others.acquire("theirs", lambda: device.load(sources[0], NO_POOL))
    others.release("theirs")
    graphs.acquire(sources[1])
    assert graphs.services.evictions == 0


@pytest.fixture
def closing(tmp_path, monkeypatch):
    """Return graphs whose memory is being freed, what lets it be, who does it, and a source.

    Whoever waits for it lets it be, too.
    """
    graphs = Graphs(NullDevice(memory_bytes=1000), Pool(0), linger_s=0)
    sources = [write_null(tmp_path / f"{n}.null", weights_bytes=600) for n in range(2)]
    entry = graphs.acquire(sources[0])
    entry.release()
    graph = entry.graph
    begun, gate, close = threading.Event(), threading.Event(), graph.close
    monkeypatch.setattr(graph, "close", lambda: (begun.set(), gate.wait(60), close()))
    monkeypatch.setattr(graphs.services.of(GRAPH), "_closing", TellingLock(gate))
    thread = threading.Thread(target=graphs.close_idle)
    thread.start()
    assert begun.wait(10)
    yield graphs, gate, thread, sources[1]
    gate.set()
    thread.join()


def test_what_is_being_closed_is_waited_for(closing):
    """Its memory is not free yet, and will be."""
    graphs, gate, _, source = closing
    graphs.acquire(source)
    assert gate.is_set()
    assert graphs.services.evictions == 0


def test_who_needs_no_memory_does_not_wait(closing):
    """The loop that takes new connections asks again soon."""
    graphs, _, thread, _ = closing
    assert graphs.close_idle() == 0
    assert thread.is_alive()


def test_what_has_been_closed_since_is_room_too(closing, monkeypatch):
    """Nothing is left to wait for then, and memory is free."""
    graphs, gate, thread, source = closing
    load = graphs.device.load

    def failing_late(*given):
        try:
            return load(*given)
        except OutOfMemory:
            gate.set()
            thread.join()
            raise

    monkeypatch.setattr(graphs.device, "load", failing_late)
    graphs.acquire(source)
    assert graphs.services.evictions == 0


def test_a_place_is_as_large_as_the_most_that_was_measured(device, source):
    """It grows with the need, never shrinks, and a first measurement takes all of the pool."""
    pool = Pool(4096)
    graphs = Graphs(device, pool, linger_s=0)
    entry = graphs.acquire(source)
    assert entry.measuring_bytes() == 4096
    for nbytes, placed in ((0, 0), (100, 100), (50, 100), (300, 300)):
        entry.place(nbytes)
        assert pool.figures().holders == {entry.holder: placed}
    assert entry.measuring_bytes() == 0
    assert entry.run_bytes({"x": (10, 60)}) == 600
    with pytest.raises(OutOfMemory):
        entry.run_bytes({"x": (100, 60)})
    assert pool.figures().holders == {entry.holder: 600}


def test_without_a_pool_nobody_asks_what_a_run_takes(device, source):
    """The answer would be of no use, and cost time."""
    graphs = Graphs(device, Pool(0), linger_s=0)
    entry = graphs.acquire(source)
    assert entry.run_bytes({"x": (10, 60)}) == 0
    assert entry.measuring_bytes() == 0


def test_only_a_source_opens_a_graph(device, source):
    """Who names a graph as another service, one that is loaded or not, is refused."""
    graphs = Graphs(device, Pool(0), linger_s=0)
    entry = graphs.acquire(source)
    for key in (repr(source), "another"):
        with pytest.raises(ProtocolError, match="opened by Load"):
            graphs.services.join(OpenService(id=1, kind=GRAPH, key=key), connection=None)
    assert graphs.holders() == [1]
    assert graphs.entries() == [entry]
