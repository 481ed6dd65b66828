"""The jobs that wait for a lane, and which of them is next.

Models share the device by the time that their jobs take (start-time fair queueing: Goyal, Vin and
Cheng, SIGCOMM 1996): each job begins, in virtual time, where its model's last one ends, or when it
came. The job that begins first is next, and the virtual time now is where the job that was taken
last begins. So a model's jobs stay in the order of their coming, the jobs that wait of one model
hold up no other's, and each model gets at least what it would from a device of its own that is as
many times slower as there are models. Where a job took more or less time than expected, the jobs
of its model that wait move; when no job is left, all virtual times begin anew.

A job of priority 2 counts as if it began `PRIORITY_STEP_NS` later than it does, one of priority 3
twice that. So no model passes it for longer than that: no job starves, however many of a higher
priority there are.

The first job whose bytes of the workspace pool are free is next. Those that it passes keep a claim
on theirs: no job behind them may take these. So jobs whose bytes overlap get turns in order, others
are not held up, and the first of all only waits for runs that have begun.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from operator import attrgetter

from ge_backend.deadline import earliest, over
from ge_backend.device.base import Range
from ge_backend.device.workspace.pool import Lease, Pool
from ge_backend.errors import DeadlineExceeded, GeError
from ge_backend.executor.protocol.messages import NORMAL

__all__ = [
    "OTHERS_IDLE_NS",
    "PRIORITY_STEP_NS",
    "Grant",
    "Job",
    "JobQueue",
    "StartedJob",
    "too_late",
]

PRIORITY_STEP_NS = 200_000_000
# At half load, requests that come at random leave no such gap once in a thousand; a client that
# waits for each answer before it asks again leaves nothing else.
OTHERS_IDLE_NS = 100_000_000
_RANK = attrgetter("rank")


@dataclass(slots=True, kw_only=True)
class Grant:
    """How a job came to run; not frozen, as `Job`.

    Attributes:
        came_ns: when it was submitted; CLOCK_MONOTONIC.
        alone: it may use the whole device; see `JobQueue.alone`.
        held_up_ns: how long a lane was free for it and its bytes were not.
        lane: whose turn it is.
    """

    came_ns: int
    alone: bool = False
    held_up_ns: int = 0
    lane: str = ""


def _nothing(reason: GeError) -> None:
    del reason


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """One piece of work for a lane.

    It is not changed once it is submitted, and not frozen: each would cost microseconds more then.

    Attributes:
        work: does it, and returns what is left to do once its bytes are free for others, such as
            telling the client. What either raises is a defect.
        drop: called instead of `work`, when its deadline passes, its owner leaves, or its holder
            has no place in the pool.
        holder: whose bytes of the workspace pool it needs; "" where it needs none.
        nbytes: how many, where that is not the holder's whole place.
        priority: 1 is the highest.
        deadline_ns: CLOCK_MONOTONIC; dropped if it has not begun by then. 0 is no deadline.
        solo: begins when no other runs, and none begins until it has ended.
        owner: who submitted it.
        number: the owner's own, by which it can be cancelled.
        model: by whose share of the device it is done.
        cost_ns: how long it will take by what is known.
        bounded: it is a run, which has to end; compiling may take any time.
        measures: it finds out costs; no two that do run at once.
    """

    work: Callable[[Grant], Callable[[], None]]
    drop: Callable[[GeError], None] = _nothing
    holder: str = ""
    nbytes: int = 0
    priority: int = NORMAL
    deadline_ns: int = 0
    solo: bool = False
    owner: object = None
    number: int = 0
    model: str = ""
    cost_ns: int = 0
    bounded: bool = True
    measures: bool = False


@dataclass(slots=True, eq=False)
class StartedJob:
    """A job whose turn it is, and what it may use until it has ended.

    Attributes:
        began_ns: CLOCK_MONOTONIC.
        notifying: its work is done, and its client is being told.
    """

    job: Job
    lease: Lease | None
    grant: Grant
    began_ns: int
    notifying: bool = False


@dataclass(slots=True, eq=False)
class _Place:
    """A job in the queue.

    Attributes:
        number: how many have come.
        since_ns: when it came, virtual.
        begins_ns: where it begins among those of its model, virtual.
        rank: what it is sorted by.
        held_up_since_ns: since when there is a lane for it, and no bytes.
    """

    job: Job
    number: int
    came_ns: int
    since_ns: int
    begins_ns: int = 0
    rank: tuple[int, int] = (0, 0)
    held_up_since_ns: int = 0


@dataclass(slots=True)
class _VirtualTime:
    """Where a model's jobs end, in virtual time.

    Attributes:
        begun_ns: those that have begun.
        all_ns: those that wait, too.
        last: the number of the last one that has begun.
    """

    begun_ns: int = 0
    all_ns: int = 0
    last: int = 0

    def add(self, place: _Place) -> None:
        """Have a job begin where those end that are there, or when it came."""
        job, begins_ns = place.job, max(place.since_ns, self.all_ns)
        place.begins_ns = begins_ns
        place.rank = begins_ns + (job.priority - 1) * PRIORITY_STEP_NS, place.number
        self.all_ns = begins_ns + job.cost_ns


@dataclass(slots=True)
class JobQueue:
    """The queue; guarded by its user.

    Args:
        pool: where the jobs' holders have their bytes.
        idle_ns: how long nothing has shared the device before a run counts as alone. 0 where jobs
            come of one batch at a time, all at once: none comes while one of them runs.
    """

    pool: Pool
    idle_ns: int = OTHERS_IDLE_NS
    _places: list[_Place] = field(default_factory=list)
    _came: int = 0
    _begun: int = 0  # and not settled
    _measuring: bool = False  # one that has begun, and is not settled, measures
    _now_ns: int = 0  # virtual
    _last_shared_ns: int = -OTHERS_IDLE_NS
    _virtual_times: defaultdict[str, _VirtualTime] = field(
        default_factory=lambda: defaultdict(_VirtualTime)
    )

    def __len__(self) -> int:
        return len(self._places)

    def add(self, job: Job, now_ns: int) -> None:
        """Let a job wait."""
        self._came += 1
        place = _Place(job, self._came, now_ns, self._now_ns)
        self._virtual_times[job.model].add(place)
        insort(self._places, place, key=_RANK)

    def alone(self, now_ns: int, working: int) -> bool:
        """Return whether a run that begins now has the device to itself, and note if it has not.

        Nothing else runs or waits, and nothing has for a while: what runs on all cores takes them
        from what comes while it runs.

        Args:
            now_ns: CLOCK_MONOTONIC.
            working: how many others run.
        """
        if working or self._places:
            self._last_shared_ns = now_ns
            return False
        return now_ns - self._last_shared_ns >= self.idle_ns

    def settle(self, started: StartedJob, now_ns: int) -> None:
        """Charge a job's model with the time that it took, in place of what was expected."""
        model, took_ns = started.job.model, now_ns - started.began_ns
        self._virtual_times[model].begun_ns += took_ns - started.job.cost_ns
        self._begun -= 1
        self._measuring &= not started.job.measures
        self._move({model})

    def take(
        self, now_ns: int, *, running: int, notifying: int = 0, lane: str = ""
    ) -> StartedJob | None:
        """Return the job whose turn it is, with its lease; None if all have to wait.

        It takes all that a job needs at once, or nothing: who waits holds nothing, so that there
        can be no circle of those who wait for each other.

        Args:
            now_ns: CLOCK_MONOTONIC.
            running: how many jobs have begun and not ended.
            notifying: how many of these only tell their clients, and are no company.
            lane: whose turn it is.
        """
        working = running - notifying
        claimed: list[Range] = []
        behind: set[tuple[str, int]] = set()
        for index, place in enumerate(self._places):
            job = place.job
            if job.solo and running:
                return None
            if job.measures and self._measuring:
                continue
            if not job.holder:
                return self._start(index, None, now_ns, working, lane)
            key = (job.holder, job.nbytes)
            if key not in behind:
                try:
                    lease = self.pool.lease(job.holder, job.nbytes, claimed)
                except GeError as error:  # no defect of one model stops the lanes of all
                    place.job = _refused(job, error)
                    return self._start(index, None, now_ns, working, lane)
                if lease is not None:
                    return self._start(index, lease, now_ns, working, lane)
                behind.add(key)
                claimed.extend(self.pool.claim(job.holder, job.nbytes))
            place.held_up_since_ns = place.held_up_since_ns or now_ns
        return None

    def take_late(self, now_ns: int) -> list[tuple[Job, GeError]]:
        """Remove and return the jobs whose deadline has passed, in that order, and their errors."""
        late = self._remove(lambda job: over(job.deadline_ns, now_ns))
        late.sort(key=lambda place: place.job.deadline_ns)
        return [
            (place.job, too_late(now_ns - place.came_ns, now_ns - place.job.deadline_ns))
            for place in late
        ]

    def take_of(self, owner: object, number: int = 0) -> list[Job]:
        """Remove and return the jobs of one owner, or the one of that number."""
        theirs = self._remove(lambda j: j.owner is owner and number in {0, j.number})
        return [place.job for place in theirs]

    def next_deadline_ns(self) -> int:
        """Return the earliest deadline; 0 if there is none."""
        return earliest(place.job.deadline_ns for place in self._places)

    def _start(
        self, index: int, lease: Lease | None, now_ns: int, working: int, lane: str
    ) -> StartedJob:
        place = self._places.pop(index)
        job, times = place.job, self._virtual_times[place.job.model]
        self._begun += 1
        self._measuring |= job.measures
        self._now_ns = max(self._now_ns, place.begins_ns)
        times.begun_ns = max(times.begun_ns, place.begins_ns + job.cost_ns)
        times.last = max(times.last, place.number)
        since_ns = place.held_up_since_ns or now_ns
        alone = self.alone(now_ns, working) or job.solo
        grant = Grant(came_ns=place.came_ns, alone=alone, held_up_ns=now_ns - since_ns, lane=lane)
        return StartedJob(job, lease, grant, now_ns)

    def _remove(self, condition: Callable[[Job], bool]) -> list[_Place]:
        removed = [place for place in self._places if condition(place.job)]
        if removed:
            self._places = [place for place in self._places if not condition(place.job)]
            self._move({place.job.model for place in removed})
        return removed

    def _move(self, models: set[str]) -> None:
        """Put the jobs of these models where they begin, as that is known now."""
        if not self._begun and not self._places:
            self._virtual_times.clear()
            return
        moved: list[_Place] = []
        for model in models:
            times = self._virtual_times[model]
            times.all_ns = times.begun_ns
            # What another one has passed stays where it is.
            moved += [p for p in self._places if p.job.model == model and p.number > times.last]
        for place in sorted(moved, key=attrgetter("number")):
            self._virtual_times[place.job.model].add(place)
        if moved:
            self._places.sort(key=_RANK)


def _refused(job: Job, error: GeError) -> Job:
    """Return what a lane does instead of a job that can have no bytes: its owner is told."""

    def work(grant: Grant) -> Callable[[], None]:
        del grant
        return lambda: job.drop(error)

    return replace(job, work=work, holder="")


def too_late(waited_ns: int, late_ns: int) -> DeadlineExceeded:
    """Return the error of a run that had not begun when its deadline passed."""
    return DeadlineExceeded(
        f"the request waited {waited_ns / 1e6:.1f} ms for the device and was "
        f"{late_ns / 1e6:.1f} ms too late to start; allow more time or send less at once"
    )
