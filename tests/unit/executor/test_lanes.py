"""Lanes run so many jobs at once, say who is alone, and outlive every job."""

import logging
import threading
import time

import pytest

from ge_backend.executor.lanes import Lanes


@pytest.fixture
def lanes():
    lanes = Lanes(2)
    yield lanes
    lanes.close()


class Gate:
    """A job that waits to be let go, and remembers whether it was alone."""

    def __init__(self):
        self.begun = threading.Event()
        self.go = threading.Event()
        self.alone = None

    def __call__(self, *, alone):
        self.alone = alone
        self.begun.set()
        self.go.wait(5)


def test_as_many_jobs_run_at_once_as_there_are_lanes(lanes):
    """With two lanes the third job begins when one of the first two has ended."""
    gates = [Gate() for _ in range(3)]
    for gate in gates:
        lanes.submit(gate)
    assert gates[0].begun.wait(5)
    assert gates[1].begun.wait(5)
    assert not gates[2].begun.wait(0.05)
    gates[1].go.set()
    assert gates[2].begun.wait(5)
    for gate in gates:
        gate.go.set()


def test_a_job_is_alone_only_if_nothing_else_runs_or_waits(lanes):
    """The only job is alone; one beside another is not; afterwards one is alone again."""
    first, second, third = Gate(), Gate(), Gate()
    lanes.submit(first)
    assert first.begun.wait(5)
    lanes.submit(second)
    assert second.begun.wait(5)
    first.go.set()
    second.go.set()
    time.sleep(0.05)
    lanes.submit(third)
    assert third.begun.wait(5)
    third.go.set()
    assert (first.alone, second.alone, third.alone) == (True, False, True)


def test_jobs_begin_in_the_order_they_came():
    """One lane takes jobs first come, first served."""
    lanes, order = Lanes(1), []

    def job(index):
        return lambda *, alone: order.append(index)

    for index in range(50):
        lanes.submit(job(index))
    lanes.close()
    assert order == list(range(50))


def test_closing_lets_queued_jobs_finish():
    """What was submitted before the end is still done."""
    lanes, done = Lanes(2), []
    for _ in range(20):
        lanes.submit(lambda *, alone: done.append(time.sleep(0.001)))
    lanes.close()
    assert len(done) == 20


def test_a_job_that_raises_costs_no_lane(lanes, caplog):
    """More failing jobs than lanes are logged, and the next job still runs."""

    def broken(*, alone):
        raise ValueError("broken on purpose")

    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            lanes.submit(broken)
        gate = Gate()
        gate.go.set()
        lanes.submit(gate)
        assert gate.begun.wait(5)
    lanes.close()
    assert caplog.text.count("broken on purpose") >= 5


def test_a_solo_job_waits_for_the_others_and_keeps_them_waiting(lanes):
    """A solo job begins when nothing runs, is alone, and the next begins when it has ended."""
    first, solo, after = Gate(), Gate(), Gate()
    lanes.submit(first)
    assert first.begun.wait(5)
    lanes.submit(solo, solo=True)
    assert not solo.begun.wait(0.05)
    lanes.submit(after)
    first.go.set()
    assert solo.begun.wait(5)
    assert not after.begun.wait(0.05)
    solo.go.set()
    assert after.begun.wait(5)
    after.go.set()
    assert (solo.alone, after.alone) == (True, True)


def test_a_solo_job_comes_through_a_stream_of_others():
    """With three lanes always full of work a solo job still has its turn."""
    lanes, stop, solo = Lanes(3), threading.Event(), Gate()
    solo.go.set()

    def stream(*, alone):
        time.sleep(0.002)
        if not stop.is_set():
            lanes.submit(stream)

    for _ in range(6):
        lanes.submit(stream)
    time.sleep(0.02)
    lanes.submit(solo, solo=True)
    came = solo.begun.wait(5)
    stop.set()
    time.sleep(0.05)
    lanes.close()
    assert came


def test_many_solo_jobs_never_overlap_with_anything():
    """Whatever the mix, nothing runs beside a solo job, and all jobs are done."""
    lanes = Lanes(4)
    lock, running, seen, overlaps = threading.Lock(), [], [], []

    def job(index, solo):
        def work(*, alone):
            with lock:
                if running and (solo or any(running)):
                    overlaps.append(index)
                running.append(solo)
            time.sleep(0.001)
            with lock:
                running.remove(solo)
                seen.append(index)

        return work

    for index in range(120):
        solo = index % 3 == 0
        lanes.submit(job(index, solo), solo=solo)
    lanes.close()
    assert sorted(seen) == list(range(120))
    assert overlaps == []


def test_an_idle_lane_keeps_no_job(lanes):
    """A job that has ended is freed, and with it the arena it had mapped, before the next comes."""
    freed = threading.Event()

    class Job:
        def __call__(self, *, alone):
            pass

        def __del__(self):
            freed.set()

    lanes.submit(Job())
    assert freed.wait(5)
