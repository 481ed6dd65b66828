"""The streams of one device."""

import threading

import pytest

pytest.importorskip("torch")

from fakes.torch_vendor import FakeVendor
from ge_backend.engines.torch.streams import Streams


def test_the_compute_stream_is_current_while_one_computes():
    """Whatever is queued meanwhile is queued there, and afterwards no longer."""
    streams = Streams(FakeVendor())
    with streams.computing():
        assert streams.vendor.current() is streams.compute
    with streams.vendor.on(streams.uploads):
        assert streams.vendor.current() is streams.uploads


def test_it_is_quiet_once_all_is_done_and_nobody_queues():
    """Whoever needs that waits for what is queued, and holds up copies and computing meanwhile."""
    streams = Streams(FakeVendor())
    order = []
    with streams.copying(streams.uploads):
        streams.vendor.current().queue(lambda: order.append("copied"))

    def use(context, name):
        with context:
            order.append(name)

    with streams.quiet():
        assert order == ["copied"]
        threads = [
            threading.Thread(target=use, args=(streams.computing(), "computes")),
            threading.Thread(target=use, args=(streams.copying(streams.downloads), "copies")),
        ]
        for thread in threads:
            thread.start()
            thread.join(0.05)
        assert order == ["copied"]
    for thread in threads:
        thread.join()
    assert sorted(order) == ["computes", "copied", "copies"]


def test_one_thread_at_a_time_computes():
    """A second one waits until the first has left."""
    streams = Streams(FakeVendor())
    order = []

    def second():
        with streams.computing():
            order.append("second")

    thread = threading.Thread(target=second)
    with streams.computing():
        thread.start()
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_nothing_is_captured_while_a_library_waits_for_the_whole_device():
    """A capture would break, and the wait fail; runs go on meanwhile."""
    streams = Streams(FakeVendor())
    order, computing = [], threading.Event()

    def capture():
        with streams.computing():
            order.append("computes")
            computing.set()
            streams.capture(lambda: order.append("captured"))

    thread = threading.Thread(target=capture)
    with streams.uncaptured():
        thread.start()
        assert computing.wait(10)
        thread.join(0.05)
        streams.vendor.synchronize()
        order.append("waited")
    thread.join()
    assert order == ["computes", "waited", "captured"]


def test_the_stand_in_refuses_a_wait_for_the_device_during_a_capture():
    """As CUDA does; so whoever forgets to ask fails in a test."""
    streams = Streams(FakeVendor())
    refused = []

    def wait():
        try:
            streams.vendor.synchronize()
        except RuntimeError as error:
            refused.append(str(error))

    def work():
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()

    with streams.computing(), pytest.raises(AssertionError, match="waited for the device"):
        streams.capture(work)
    assert refused == ["operation not permitted when stream is capturing"]
