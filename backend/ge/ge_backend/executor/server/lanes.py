"""The threads that run graphs: as many at once as the device has lanes."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ge_backend.deadline import left_s, over
from ge_backend.device.workspace.pool import Pool
from ge_backend.errors import (
    Cancelled,
    DeviceFault,
    GeError,
    GraphFailed,
    drop_frames,
    unforeseen,
)
from ge_backend.executor.server.queue import OTHERS_IDLE_NS, Grant, Job, JobQueue, StartedJob

__all__ = ["Lanes", "result_or_error"]

log = logging.getLogger(__name__)

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class Lanes:
    """A fixed set of worker threads; `JobQueue` says what each does next.

    Jobs handle their own errors (`result_or_error`): what one raises is a defect, which is logged
    and costs no lane.
    Who submits a job, or ends one, hands the next ones out itself: no thread stands between. Who
    waits for its job anyway does it itself, in a lane's place: waking a thread takes longer than
    all the rest of a short run's way.

    Args:
        count: how many jobs run at once.
        pool: the workspace that their graphs share.
        idle_ns: see `JobQueue`.
    """

    def __init__(self, count: int, pool: Pool, idle_ns: int = OTHERS_IDLE_NS) -> None:
        self._count = count
        self._pool = pool
        self._queue = JobQueue(pool, idle_ns)
        self._begun: queue.SimpleQueue[StartedJob | None] = queue.SimpleQueue()
        self._free = [f"lane-{index}" for index in reversed(range(count))]
        self._bounded: set[StartedJob] = set()  # the jobs that run and have to end
        self._solo = False  # the job that runs is a solo one
        self._notifying = 0  # jobs that have done their work
        self._alone_ns = 0  # when the run began that is no job; 0 if none runs
        self._alarm_ns = 0  # when the watch looks next; 0 is never
        self._closing = self._closed = False
        self._ending = False  # what waits is not begun any more
        # An instance's own only lane: requests would wait for all runs of a measurement in it.
        self._apart = count == 1 and idle_ns == 0 and not pool.size_bytes
        self._measuring = threading.Lock()  # no two do that are apart
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # for the watch, and for `close`
        names = {f"lane-{index}": self._work for index in range(count)} | {"watch": self._watch}
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for name, target in names.items()
        ]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        """Return how many jobs wait or run."""
        with self._lock:
            return self._running + len(self._queue)

    @property
    def _running(self) -> int:
        return self._count - len(self._free)

    def oldest_ns(self) -> int:
        """Return when the run began that has run longest, CLOCK_MONOTONIC; 0 if none runs.

        One whose work is done has ended, even if its client is being told.
        """
        with self._lock:
            begun_ns = [started.began_ns for started in self._bounded]
            return min([*begun_ns, self._alone_ns] if self._alone_ns else begun_ns, default=0)

    def submit(self, *jobs: Job, here: bool = False) -> None:
        """Let jobs wait for their turn, which may be now.

        Args:
            jobs: what to do, in this order; those that come together know of each other.
            here: if it is the last one's turn now, the calling thread does it.
        """
        with self._lock:
            for job in jobs:
                self._queue.add(job, time.monotonic_ns())
            mine = self._begin(jobs[-1] if here else None)
            if self._queue and any(
                job.deadline_ns and not over(self._alarm_ns, job.deadline_ns) for job in jobs
            ):
                self._changed.notify_all()
        if mine is not None:
            self._do(mine)

    def measure(self, job: Job) -> None:
        """Let a job that measures wait for its turn, or do it here, beside the only lane."""
        if not self._apart:
            self.submit(job)
            return
        with self._measuring:
            job.work(Grant(came_ns=time.monotonic_ns(), lane=f"lane-{self._count}"))()

    def begin_alone(self) -> Grant | None:
        """Take a lane for a run of the calling thread's own, if nothing runs and nothing waits.

        Such a run is no job, takes no bytes of the pool, and has to end; pair with `end_alone`. Its
        model is not charged with it: what comes meanwhile has not waited for it longer than it ran.
        """
        with self._lock:
            if self._running or self._queue or self._closing or self._ending:
                return None
            now_ns = self._alone_ns = time.monotonic_ns()
            alone = self._queue.alone(now_ns, 0)
            return Grant(came_ns=now_ns, alone=alone, lane=self._free.pop())

    def end_alone(self, grant: Grant) -> None:
        """Give the lane of such a run back, before anyone is told that it has ended."""
        with self._lock:
            self._alone_ns = 0
            self._free.append(grant.lane)
            if self._queue or self._closing or self._ending:
                self._begin()

    def cancel(self, owner: object, number: int = 0) -> None:
        """Drop an owner's jobs, or the one of that number; what has begun ends by itself."""
        with self._lock:
            jobs = self._queue.take_of(owner, number)
            self._begin()
        for job in jobs:
            _drop(job, Cancelled.by_client())

    def finish(self, timeout_s: float) -> bool:
        """Begin no job any more; return whether those that run have ended, and were told, in time.

        What waits is left to its owners: the process ends.
        """
        with self._changed:
            self._ending = True
            return self._changed.wait_for(lambda: not self._running, timeout_s)

    def close(self) -> None:
        """Let the waiting jobs finish, and what is measured beside them; then end the threads."""
        with self._measuring, self._changed:
            self._closing = True
            self._changed.wait_for(lambda: not (self._running or self._queue))
            self._closed = True
            self._changed.notify_all()
        for _ in range(self._count):
            self._begun.put(None)
        for thread in self._threads:
            thread.join()

    def _begin(self, own: Job | None = None) -> StartedJob | None:
        """Hand out what may run now, and return the caller's own; the lock is held."""
        mine = None
        now_ns = time.monotonic_ns()
        while self._free and self._queue and not (self._solo or self._ending):
            started = self._queue.take(
                now_ns, running=self._running, notifying=self._notifying, lane=self._free[-1]
            )
            if started is None:
                break
            self._free.pop()
            self._solo = started.job.solo
            if started.job.bounded:
                self._bounded.add(started)
            if started.job is own:
                mine = started
            else:
                self._begun.put(started)
        if self._closing or self._ending:
            self._changed.notify_all()
        return mine

    def _worked(self, started: StartedJob) -> None:
        """Let others use the job's bytes; if it is a solo one, only when its client was told.

        From now on it is no company for others: who is told asks again at once, and may well be
        there before this thread goes on.
        """
        with self._lock:
            started.notifying = True
            self._notifying += 1
            self._settle(started)
            if started.lease is not None and not self._solo:
                self._pool.release(started.lease)
                started.lease = None
                self._begin()

    def _end(self, started: StartedJob) -> None:
        with self._lock:
            if started.lease is not None:
                self._pool.release(started.lease)
            self._free.append(started.grant.lane)
            if started.notifying:
                self._notifying -= 1
            else:  # a defect
                self._settle(started)
            self._solo = False
            self._begin()

    def _settle(self, started: StartedJob) -> None:
        """Note that a job's work is over; the lock is held."""
        self._bounded.discard(started)
        self._queue.settle(started, time.monotonic_ns())

    def _work(self) -> None:
        while (started := self._begun.get()) is not None:
            self._do(started)
            del started  # an idle lane keeps no arena mapped

    def _do(self, started: StartedJob) -> None:
        try:
            notify = started.job.work(started.grant)
            self._worked(started)
            notify()
        except Exception:
            log.exception("a job failed in a lane, which goes on")
        finally:
            self._end(started)

    def _watch(self) -> None:
        """Drop jobs as their deadlines pass, even while every lane is busy."""
        while (late := self._next_late()) is not None:
            while late:
                _drop(*late.pop(0))

    def _next_late(self) -> list[tuple[Job, GeError]] | None:
        """Wait for deadlines; return the jobs that missed theirs, None when it is over."""
        with self._changed:
            while not self._closed:
                now_ns = time.monotonic_ns()
                if late := self._queue.take_late(now_ns):
                    self._begin()
                    return late
                self._alarm_ns = self._queue.next_deadline_ns()
                self._changed.wait(left_s(self._alarm_ns, now_ns))
            return None


def result_or_error(
    action: Callable[_Given, _Result],
    on_fault: Callable[[], None],
    *given: _Given.args,
    **named: _Given.kwargs,
) -> _Result | GeError:
    """Return what the action returns, or its error: no request ends the executor.

    Args:
        action: may raise anything.
        on_fault: called if that says that the device broke.
        given: what the action takes.
        named: likewise.
    """
    try:
        return action(*given, **named)
    except DeviceFault as error:
        log.critical("the device failed: %s", error)
        on_fault()
        return drop_frames(error)
    except GeError as error:
        return drop_frames(error)
    except Exception as error:
        log.exception("a request failed in an unforeseen way")
        return unforeseen(error, GraphFailed)


def _drop(job: Job, error: GeError) -> None:
    try:
        job.drop(error)
    except Exception:
        log.exception("a job could not be dropped properly")
