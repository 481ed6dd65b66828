"""The page shows that the executor lives; a run that never ends is told once."""

import threading
import time

import pytest

from builders.null_models import comes_true
from ge_backend.device.workspace.pool import Pool
from ge_backend.executor.protocol.outstanding import Outstanding, OutstandingView
from ge_backend.executor.server.heartbeat import Heartbeat
from ge_backend.executor.server.lanes import Lanes
from ge_backend.executor.server.queue import Job


@pytest.fixture
def rig():
    """A function that starts a heartbeat, and what it is about."""
    page, lanes = Outstanding(), Lanes(1, Pool(0))
    faults, beats = [], []

    def start(run_timeout_s):
        beats.append(
            Heartbeat(page, lanes, run_timeout_s=run_timeout_s, on_fault=lambda: faults.append(1))
        )
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
