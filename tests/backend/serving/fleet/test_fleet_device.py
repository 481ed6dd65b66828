"""A lost device is up again once it could be reopened, or left once it is not wanted."""

import threading

import pytest

from builders.null_models import SHORT, comes_true
from ge_backend.errors import DeviceUnavailable, ExecutorLost
from ge_backend.executor.client.reopening import GRAPHS
from ge_backend.serving.fleet import fleet_device
from ge_backend.serving.fleet.fleet_device import FleetDevice

GONE = ExecutorLost("gone")


class FakeSession:
    """Fails to reopen as often as there are failures, and counts."""

    def __init__(self, *failures):
        self.failures = list(failures)
        self.attempts, self.lost, self.closed = 0, [], 0

    def lose(self, error):
        self.lost.append(error)

    def reopen(self):
        self.attempts += 1
        if self.failures:
            raise self.failures.pop(0)

    def close(self):
        self.closed += 1


def test_a_device_is_up_until_it_is_lost():
    """And belongs to who runs batches."""
    device = FleetDevice("null", FakeSession(), threading.Condition(), GRAPHS)
    assert (device.up, device.failure) == (True, None)
    device.close()
    assert device.session.closed == 1


def test_a_device_that_can_be_had_at_once_is_back_at_once(caplog):
    """A restart is no news beyond the line that says so."""
    device = FleetDevice("null:1", FakeSession(), threading.Condition(), GRAPHS)
    device.lose(GONE)
    assert comes_true(lambda: device.up)
    assert (device.session.lost, device.session.attempts) == ([GONE], 1)
    assert "is back" not in caplog.text
    device.close()


def test_a_device_that_could_not_be_had_is_back_with_a_line_in_the_log(caplog):
    """And its failure is over."""
    failures = [DeviceUnavailable(f"not today {n}") for n in range(2)]
    device = FleetDevice("null:1", FakeSession(*failures), threading.Condition(), SHORT)
    device.lose(GONE)
    assert comes_true(lambda: device.up)
    assert caplog.text.count("device null:1 is back") == 1
    assert device.failure is None
    device.close()


def test_whoever_waits_is_told_of_failures_and_of_the_return():
    """Both end a wait for the device."""
    changed, go = threading.Condition(), threading.Event()
    session = FakeSession()

    def reopen():
        session.attempts += 1
        if session.attempts == 1:
            raise DeviceUnavailable("not yet")
        go.wait(10)

    session.reopen = reopen
    device = FleetDevice("null:1", session, changed, SHORT)
    device.lose(GONE)
    with changed:
        assert changed.wait_for(lambda: device.failure is not None, 10)
        assert (device.up, str(device.failure)) == (False, "not yet")
        go.set()
        assert changed.wait_for(lambda: device.up, 10)
    assert device.failure is None
    device.close()


class SlowSession(FakeSession):
    """Reopens when it is told to; then it fails or not."""

    def __init__(self, *failures):
        super().__init__(*failures)
        self.begun, self.go = threading.Event(), threading.Event()

    def reopen(self):
        self.begun.set()
        self.go.wait(10)
        super().reopen()


def reopening(session):
    """Return a device in the midst of its first attempt to reopen."""
    device = FleetDevice("null:1", session, threading.Condition(), GRAPHS)
    device.lose(GONE)
    assert session.begun.wait(10)
    return device


def awaited(session, monkeypatch):
    """Return such a device; the attempt goes on as soon as it is waited for, and not before."""
    monkeypatch.setattr(fleet_device, "LEAVE_S", 30.0)
    device = reopening(session)
    join = device._reopening.join
    monkeypatch.setattr(device._reopening, "join", lambda *given: (session.go.set(), join(*given)))
    return device


def test_a_device_that_is_closed_while_lost_is_closed_by_its_thread(monkeypatch):
    """As soon as the attempt that is being made has ended; one that takes long keeps nobody."""
    monkeypatch.setattr(fleet_device, "LEAVE_S", 0.05)
    session = SlowSession()
    reopening(session).close()
    assert session.closed == 0
    session.go.set()
    assert comes_true(lambda: session.closed == 1)


def test_closing_waits_for_the_attempt_that_is_being_made(monkeypatch):
    """So that what it has started is left again when the model is gone."""
    session = SlowSession()
    device = awaited(session, monkeypatch)
    device.close()
    assert (session.attempts, session.closed, device.up) == (1, 1, True)


def test_a_process_that_ends_waits_for_no_device():
    """One that is lost may take its time, or never come back."""
    session = SlowSession()
    device = reopening(session)
    threads = [thread for thread in threading.enumerate() if thread.name == "reopen null:1"]
    assert threads
    assert all(thread.daemon for thread in threads)
    session.go.set()
    device.close()


def test_a_device_that_is_closed_is_not_reopened_again(monkeypatch):
    """An attempt is many, where executors die over it; each starts processes."""
    session = SlowSession(*[GONE] * GRAPHS.deaths)
    device = awaited(session, monkeypatch)
    device.close()
    assert (session.attempts, session.closed) == (1, 1)


def test_a_device_that_is_lost_when_it_is_closed_is_not_reopened_at_all():
    """Its thread may get its turn only then, and would start an executor that nobody needs."""
    device = FleetDevice("null:1", FakeSession(), threading.Condition(), GRAPHS)
    device.close()
    device.lose(GONE)
    assert comes_true(lambda: device.session.closed == 2)
    assert device.session.attempts == 0


def test_a_device_that_no_thread_can_reopen_is_lost_again_later(monkeypatch):
    """A full process table is no reason never to come back, nor to fail when it is closed."""
    device = FleetDevice("null:1", FakeSession(), threading.Condition(), GRAPHS)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            device.lose(GONE)
    device.lose(GONE)
    assert comes_true(lambda: device.up and device.session.attempts == 1)
    device.close()


def no_thread(self):
    raise RuntimeError("can't start new thread")


def test_losing_what_is_lost_already_starts_nothing():
    """One thread brings it back."""
    session = SlowSession()
    device = reopening(session)
    device.lose(GONE)
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("reopen null:1") == 1
    session.go.set()
    assert comes_true(lambda: device.up)
    device.close()
