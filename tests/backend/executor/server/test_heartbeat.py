"""The page shows that the executor lives; a run that never ends is told once."""

import threading
import time

import pytest

from builders.null_models import comes_true
from ge_backend.device.workspace.pool import Pool
from ge_backend.executor.protocol.outstanding import Outstanding, OutstandingView
from ge_backend.executor.server import heartbeat
from ge_backend.executor.server.heartbeat import Heartbeat
from ge_backend.executor.server.lanes import Lanes
from ge_backend.executor.server.queue import Job


@pytest.fixture
def rig():
    """A function that starts a heartbeat, and what it is about."""
    page, lanes = Outstanding(), Lanes(1, Pool(0))
    faults, beats = [], []

    def start(run_timeout_s, show=lambda: None, **changes):
        told = {"run_timeout_s": run_timeout_s, "on_fault": lambda: faults.append(1), **changes}
        beats.append(Heartbeat(page, lanes, show, **told))
        return page, lanes, faults

    yield start
    for beat in beats:
        beat.close()
    lanes.close()
    page.close()


def job(released, **changes):
    return Job(work=lambda grant: released.wait(30) and (lambda: None), **changes)


def test_it_beats_while_lanes_are_busy(rig):
    """A stub sees the time move on."""
    begun_ns = time.monotonic_ns()
    page, lanes, faults = rig(0)
    released = threading.Event()
    lanes.submit(job(released))
    view = OutstandingView(page.descriptor)
    first = view.beat_ns
    assert begun_ns <= first <= time.monotonic_ns()
    assert comes_true(lambda: view.beat_ns > first)
    assert faults == []
    released.set()


def test_while_lanes_are_idle_it_beats_seldom_and_says_so(rig, monkeypatch):
    """No stub needs to look before the next beat; with a run it is often again."""
    monkeypatch.setattr(heartbeat, "PERIOD_S", 0.02)
    beats = []
    page, lanes, _ = rig(0, lambda: beats.append(time.monotonic_ns()), idle_s=0.5)
    view = OutstandingView(page.descriptor)
    assert comes_true(lambda: len(beats) == 4)
    assert beats[3] - beats[1] >= 2 * 0.5e9
    assert view.beat_ns >= beats[3] or comes_true(lambda: view.beat_ns >= beats[3])
    assert comes_true(lambda: view.beat_ns >= beats[-1] + 0.48e9)
    released = threading.Event()
    lanes.submit(job(released))
    busy = len(beats)
    assert comes_true(lambda: len(beats) >= busy + 10)
    assert view.beat_ns <= time.monotonic_ns()
    released.set()


def test_a_short_limit_of_runs_is_kept_by_an_idle_executor_too(rig):
    """A run that begins while the thread sleeps is seen in time."""
    _, lanes, faults = rig(0.4, idle_s=3600.0)
    time.sleep(0.3)  # it has found all idle, and sleeps
    released = threading.Event()
    lanes.submit(job(released))
    assert comes_true(lambda: faults == [1])
    released.set()


def test_a_run_that_takes_too_long_is_a_fault_once(rig):
    """It is told once, however long it goes on."""
    _, lanes, faults = rig(0.1)
    released = threading.Event()
    lanes.submit(job(released))
    assert comes_true(lambda: faults == [1])
    time.sleep(0.5)
    assert faults == [1]
    released.set()


def test_what_is_no_run_may_take_any_time(rig):
    """Compiling is not bounded."""
    _, lanes, faults = rig(0.1)
    released = threading.Event()
    lanes.submit(job(released, bounded=False))
    time.sleep(0.7)
    assert faults == []
    released.set()
