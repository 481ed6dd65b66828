"""What an executor has closed is opened again and again, less and less often, until it is stopped."""

import threading
from dataclasses import replace

import pytest

from builders.waiting import comes_true
from ge_backend.errors import DeviceUnavailable, ExecutorLost
from ge_backend.executor.client.reopening import GRAPHS, Reopening

GONE = ExecutorLost("gone")
REPLAY = replace(GRAPHS, first_s=1.0, most_s=5.0)


class Rig:
    """A reopening of something that fails as often as there are failures; its pauses are none."""

    def __init__(self, monkeypatch, *failures):
        self.failures, self.pauses, self.seen = list(failures), [], []
        self.attempts, self.ended = 0, threading.Event()
        self.reopening = Reopening(
            "the thing",
            "reopen the thing",
            REPLAY,
            reopen=self.open,
            failed=self.seen.append,
            ended=self.ended.set,
        )
        monkeypatch.setattr(self.reopening.stopped, "wait", self.pause)

    def open(self):
        self.attempts += 1
        if self.failures:
            raise self.failures.pop(0)

    def pause(self, seconds):
        self.pauses.append(seconds)
        return self.reopening.stopped.is_set()

    def run(self):
        self.reopening.begin()
        assert self.ended.wait(10)


def test_pauses_grow_up_to_a_limit(monkeypatch, caplog):
    """Each is twice the one before; the log has a line for every attempt that failed."""
    failures = [DeviceUnavailable(f"not today {n}") for n in range(5)]
    rig = Rig(monkeypatch, *failures)
    rig.run()
    assert rig.pauses == [1, 2, 4, 5, 5]
    assert rig.seen == failures
    assert all(f"not today {n}" in caplog.text for n in range(5))
    assert all(f"the thing is lost and tried again in {s} s" in caplog.text for s in (1, 2, 4, 5))


@pytest.mark.parametrize(("deaths", "pauses"), [(REPLAY.deaths - 1, []), (REPLAY.deaths, [1])])
def test_so_many_executors_may_die_over_it_in_a_row(monkeypatch, deaths, pauses):
    """Other stubs' runs may have killed them, so another one is had at once."""
    rig = Rig(monkeypatch, *[GONE] * deaths)
    rig.run()
    assert (rig.attempts, rig.pauses, rig.seen) == (deaths + 1, pauses, [GONE] * len(pauses))


def test_something_unforeseen_is_a_failure_like_any_other(monkeypatch, caplog):
    """The thread does not end over it, and the log has the traceback."""
    rig = Rig(monkeypatch, ZeroDivisionError("oops"))
    rig.run()
    assert rig.pauses == [1]
    assert "ZeroDivisionError: oops" in str(rig.seen[0])
    assert "Traceback" in caplog.text


def test_what_is_stopped_is_opened_no_more(monkeypatch):
    """Neither after a failure, nor after a death, nor when the thread gets its turn only then."""
    for failure in (DeviceUnavailable("no"), GONE):
        rig = Rig(monkeypatch, *[failure] * 3)
        opened = rig.open
        rig.reopening._reopen = lambda rig=rig, opened=opened: (rig.reopening.stop(), opened())
        rig.run()
        assert rig.attempts == 1
    rig = Rig(monkeypatch)
    rig.reopening.stop()
    rig.run()
    assert rig.attempts == 0


def test_waiting_for_it_ends_with_its_thread_or_in_time(monkeypatch):
    """One that was never begun is not waited for."""
    rig, go = Rig(monkeypatch), threading.Event()
    rig.reopening.join(10)
    rig.reopening._reopen = lambda: go.wait(10)
    rig.reopening.begin()
    rig.reopening.join(0.01)
    assert not rig.ended.is_set()
    go.set()
    rig.reopening.join(10)
    assert comes_true(rig.ended.is_set)
