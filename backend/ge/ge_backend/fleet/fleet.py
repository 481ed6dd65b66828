"""The devices that a model instance runs on, and the way of a batch over them.

A batch is spread by cost (`assign.py`), staged into each device's own arena, and in flight on all
of them at once. One thread does it, waiting for whichever answers next. With one device the way is
the same, without anything to choose.

When an executor dies, what it had not answered is run again: one run at a time, each alone on its
device, on another device if there is one, else on the same one, as soon as it is back. So a run
that kills executors is found out and fails, and its neighbours, here and in other stubs, do not.
"""

from __future__ import annotations

import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ge_backend.device.failures import without_folders
from ge_backend.errors import (
    Cancelled,
    DeadlineExceeded,
    DeviceUnavailable,
    ExecutorLost,
    GeError,
    StateLost,
    Status,
    TensorsLost,
    error_from_name,
)
from ge_backend.executor.client.flight import Flight, RunResult
from ge_backend.executor.client.session import Session
from ge_backend.executor.protocol.messages import Keeps, Run
from ge_backend.fleet.assign import DeviceLoad, assign
from ge_backend.fleet.device_state import DeviceState
from ge_backend.fleet.member import Member, Pauses

__all__ = ["Ended", "Fleet", "StageRuns"]

# How many devices may be lost under a repeated run before it has begun; those are not its fault.
PATIENCE = 20
# How often it is asked whether the runs in flight are still wanted. Asking the host costs 10-25 us
# per request (tested on 2.51), and a batch that is done sooner asks nothing.
LOOK_EVERY_NS = 50_000_000
# An executor that has been silent for so long is not trusted with deadlines any more.
SILENT_NS = 500_000_000
DEFAULT_PAUSES = Pauses()


class StageRuns(Protocol):
    """Writes inputs of runs where their device reads them."""

    def __call__(
        self, session: Session, chosen: Sequence[int], *, again: bool
    ) -> Sequence[Run | GeError]:
        """Return the orders of the chosen runs, staged in this session's arena, or errors.

        Args:
            session: of the device that was chosen for them.
            chosen: their positions.
            again: the batch has been staged there before, and what was must stay as it is.
        """


@dataclass(frozen=True, slots=True)
class Ended:
    """A run of a batch that has ended.

    Attributes:
        index: which one.
        outcome: how.
        device: where; "" if it came to none.
        given_up: it has not ended, but its time is over, and its device's executor says nothing.
    """

    index: int
    outcome: RunResult
    device: str = ""
    given_up: bool = False


class Fleet:
    """One session per device, used by one thread.

    Args:
        sessions: by device name, at least one; they become the fleet's.
        pauses: between attempts to reopen a lost device.
    """

    def __init__(self, sessions: Mapping[str, Session], pauses: Pauses = DEFAULT_PAUSES) -> None:
        self._changed = threading.Condition()
        self._members = [
            Member(device, session, self._changed, pauses) for device, session in sessions.items()
        ]
        self._taking_turns: Sequence[Member] = ()
        self._given_ns: dict[Member, float] = {}

    @property
    def sessions(self) -> list[Session]:
        """All sessions. They hold the same graph; the first one speaks for them."""
        return [member.session for member in self._members]

    @property
    def ready(self) -> bool:
        """Whether some device can be used, or may be in a moment.

        One whose driver says that it is abnormal cannot, though it may still answer.
        """
        return any(
            member.failure is None and _state(member).health.abnormal != 1
            for member in self._members
        )

    def states(self) -> list[DeviceState]:
        """Return how each device is now; may be asked from any thread."""
        return list(map(_state, self._members))

    def run(
        self,
        costs: Sequence[float],
        stage: StageRuns,
        unwanted: Callable[[int], bool] = lambda _: False,
        deadlines: Sequence[int] = (),
        meanwhile: Callable[[], None] = lambda: None,
        *,
        solo: bool = False,
    ) -> Iterator[Ended]:
        """Yield each run as it ends, once, with its outcome.

        Never raises for a run's own failure: it is in the outcome. A caller that stops early waits
        until the runs in flight have ended, because until then they write into the arenas.

        Args:
            costs: estimated nanoseconds of each run, in the order of submission.
            stage: called once per device that is used, and again for what is repeated.
            unwanted: whether nobody waits for a run any more. Asked now and then while it is in
                flight; a run that has not begun is not begun then, and ends with `Cancelled`.
            deadlines: of each run, as in its order. Executors keep them; they are kept here while
                there is none, or none that shows life. Empty where no run has one.
            meanwhile: called whenever runs have just been submitted, before any is waited for.
            solo: each runs with nothing beside it from the first time on, as what is repeated does.
        """
        waiting = dict.fromkeys(range(len(costs)))
        for attempt in range(1 + PATIENCE):
            for ended in self._late(tuple(waiting), deadlines):
                del waiting[ended.index]
                yield ended
            if not waiting:
                return
            again = attempt > 0
            wave = self._wave(
                tuple(waiting), costs, stage, unwanted, meanwhile, again=again, solo=again or solo
            )
            for ended in wave:
                del waiting[ended.index]
                yield ended
        yield from _failing(waiting, _died("before it could be repeated"))

    def look_for_losses(self) -> None:
        """Give up the executors that have died since the last batch. No run is in flight."""
        for member in self._members:
            if member.up and member.session.broken:
                member.lose(ExecutorLost("it has died since the last batch"))

    def keep_tensors(self, owner: str, rooms: Sequence[int] = ()) -> Keeps | None:
        """Let runs leave tensors on the device; see `Session.keep_tensors`. No run is in flight.

        Returns:
            How; None on several devices, where a later run may come to another one.
        """
        if len(self._members) > 1:
            return None
        return self._members[0].session.keep_tensors(owner, rooms)

    def free_tensors(self, keys: Sequence[int]) -> None:
        """Forget such tensors, of which no run is in flight."""
        if self._members[0].up:
            self._members[0].session.free_tensors(keys)

    def close(self) -> None:
        """Leave all executors, which free the graph if nobody else holds it."""
        for member in self._members:
            member.close()

    def _wave(  # noqa: PLR0913 - what `run` takes, and which time it is
        self,
        chosen: Sequence[int],
        costs: Sequence[float],
        stage: StageRuns,
        unwanted: Callable[[int], bool],
        meanwhile: Callable[[], None],
        *,
        again: bool,
        solo: bool,
    ) -> Iterator[Ended]:
        """Run what is chosen once; what is not yielded has to be run again."""
        members, failure = self._usable()
        if failure is not None:
            yield from _failing(chosen, failure)
        shares: list[_Share] = []
        try:
            assigned = self._assign(chosen, costs, members)
            for member, indices in assigned:
                try:
                    orders = stage(member.session, indices, again=again)
                    flight = member.session.flight()
                except ExecutorLost as error:
                    member.lose(error)
                except GeError as error:
                    yield from _failing(indices, error)
                else:
                    by_index: dict[int, Run] = {}
                    for index, order in zip(indices, orders, strict=True):
                        if isinstance(order, GeError):  # no memory for it
                            yield from _failing([index], order)
                        else:
                            by_index[index] = order
                    if again:
                        yield from _stateful(by_index)
                    # The other devices' runs are not to wait until this thread has made one.
                    awaits = not flight.sender_serves or member is assigned[-1][0]
                    shares.append(_Share(member, flight, by_index, solo=solo, awaits=awaits))
                    yield from shares[-1].begin()
            meanwhile()
            yield from _ends(shares, unwanted)
        finally:
            for share in shares:
                share.drain()

    def _late(self, chosen: Sequence[int], deadlines: Sequence[int]) -> Iterator[Ended]:
        """Yield the runs whose deadlines pass while no device is up but one may be in a moment."""
        known = dict(enumerate(deadlines))
        for index in sorted(filter(known.get, chosen), key=known.__getitem__):
            with self._changed:
                left_s = (known[index] - time.monotonic_ns()) / 1e9
                if self._changed.wait_for(self._settled, max(0.0, left_s)):
                    return
            text = "the request's time was over before its device's executor was started anew"
            for ended in _failing([index], DeadlineExceeded(text)):
                yield replace(ended, given_up=True)

    def _settled(self) -> bool:
        return any(member.up for member in self._members) or not self.ready

    def _usable(self) -> tuple[list[Member], GeError | None]:
        """Return the members that are up, and why there is none.

        If none is, those that may be in a moment are waited for.
        """
        usable = [member for member in self._members if member.up]
        if usable:
            return usable, None
        with self._changed:
            self._changed.wait_for(self._settled)
            usable = [member for member in self._members if member.up]
            return usable, None if usable else self._unusable()

    def _unusable(self) -> GeError:
        """Return a new error, because whoever gets it raises it."""
        source = self.sessions[0].source
        told = [without_folders(str(member.failure), source.path) for member in self._members]
        if len(told) == 1:
            failure = self._members[0].failure
            if failure is not None and failure.status is Status.INVALID_ARG:  # no client's fault
                return DeviceUnavailable(f"the model cannot be loaded again: {told[0]}")
            return error_from_name(type(failure).__name__, told[0])
        reasons = "; ".join(
            f"{member.device}: {text}" for member, text in zip(self._members, told, strict=True)
        )
        return DeviceUnavailable(f"all devices are lost, and tried again meanwhile: {reasons}")

    def _assign(
        self, chosen: Sequence[int], costs: Sequence[float], members: Sequence[Member]
    ) -> list[tuple[Member, list[int]]]:
        """Return the members that get something, each with its runs in the order of submission.

        The one place that says where a run goes. A run that must stay on a device, such as a step
        of a sequence whose state is there, would be placed here, before the others.
        """
        if len(members) <= 1:
            return [(member, list(chosen)) for member in members]
        if members != self._taking_turns:  # one that was away has nothing to make up for
            self._taking_turns, self._given_ns = members, dict.fromkeys(members, 0.0)
        loads = [
            DeviceLoad(seen.ns if (seen := m.session.outstanding) else 0, self._given_ns[m])
            for m in members
        ]
        places = assign([costs[index] for index in chosen], loads)
        parts: dict[Member, list[int]] = {}
        for index, place in zip(chosen, places, strict=True):
            parts.setdefault(members[place], []).append(index)
            self._given_ns[members[place]] += costs[index]
        return list(parts.items())


def _state(member: Member) -> DeviceState:
    return DeviceState.of(member.device, member.session.outstanding, up=member.up)


class _Share:
    """What one device has to run of a wave.

    Args:
        solo: the runs are repeated, one at a time, each alone on the device.
        awaits: the last one may be made by whoever reads it.
    """

    def __init__(
        self,
        member: Member,
        flight: Flight,
        orders: Mapping[int, Run],
        *,
        solo: bool,
        awaits: bool,
    ) -> None:
        self._member = member
        self._flight = flight
        self._solo, self._awaits = solo, awaits
        self._left = dict(orders)
        self._unsent = deque(orders)
        self._cancelled: set[int] = set()
        self._lost = False

    @property
    def running(self) -> bool:
        """Whether something has not ended that still can."""
        return bool(self._left) and not self._lost

    def fileno(self) -> int:
        """Return what becomes readable when a run has ended."""
        return self._flight.fileno()

    def begin(self) -> Iterator[Ended]:
        """Submit the first runs; yield those that cannot be."""
        try:
            self._submit()
        except GeError as error:
            yield from self.lose(error)

    def receive(self) -> Iterator[Ended]:
        """Take what the executor says; if a run has ended, submit what there is room for then."""
        ended = self._flight.receive()
        if ended is not None:
            index, outcome = ended
            known = self._left.pop(index, None)
            self._submit()
            if known is not None:
                yield Ended(index, outcome, self._member.device)

    def give_up(self) -> Iterator[Ended]:
        """Yield the runs whose time is over, if the executor shows no life.

        They stay in flight, since it may go on and write what they give; nobody waits for that. A
        step of a sequence may so move its state on, which nobody can tell then.
        """
        if self._flight.silent_ns < SILENT_NS:
            return
        now_ns = time.monotonic_ns()
        for index in [i for i, order in self._left.items() if 0 < order.deadline_ns < now_ns]:
            order = self._left.pop(index)
            text = "the request's time is over, and its device's executor shows no life"
            error: GeError = DeadlineExceeded(text)
            if index in self._unsent:
                self._unsent.remove(index)
            elif order.slots:
                error = StateLost(
                    f"{text}; the step may yet change the state of its sequence, which is given "
                    "up: begin the sequence again with a request that has sequence_start set"
                )
            outcome = RunResult(outputs={}, error=error)
            yield Ended(index, outcome, self._member.device, given_up=True)

    def cancel(self, unwanted: Callable[[int], bool]) -> Iterator[Ended]:
        """Ask that runs which nobody wants are not begun; yield those that have not been sent."""
        open_ = [index for index in self._left if index not in self._cancelled]
        for index in filter(unwanted, open_):
            if index in self._unsent:
                self._unsent.remove(index)
                del self._left[index]
                error = Cancelled("the client has given up on the request")
                yield from _failing([index], error, self._member.device)
            elif self._flight.cancel(index):
                self._cancelled.add(index)

    def lose(self, error: GeError) -> Iterator[Ended]:
        """Give the device up; yield the runs that are not to be repeated."""
        self._lost = True
        self._member.lose(error)
        if not isinstance(error, ExecutorLost):
            yield from _failing(list(self._left), error, self._member.device)
        elif self._solo and self._flight.started:
            died = _died("when it was repeated with nothing else running")
            guilty = [index for index in self._flight.indices if index in self._left]
            yield from _failing(guilty, died, self._member.device)

    def drain(self) -> None:
        """Wait until nothing is in flight any more; what has not been sent stays so."""
        try:
            if not self._lost:
                self._flight.drain()
        except GeError as error:
            self._member.lose(error)

    def _submit(self) -> None:
        """Submit as much as the socket takes, in order; after the last one nothing is sent."""
        while self._unsent and not (self._solo and self._flight.indices):
            index = self._unsent[0]
            order, awaited = self._left[index], self._awaits and len(self._unsent) == 1
            try:
                if not self._flight.submit(index, order, solo=self._solo, awaited=awaited):
                    return
            except ExecutorLost:
                return  # the next receive says so too, after the answers that came before
            self._unsent.popleft()


def _ends(shares: Sequence[_Share], unwanted: Callable[[int], bool]) -> Iterator[Ended]:
    """Yield the runs of all shares as they end."""
    poll = select.poll()
    running = {share.fileno(): share for share in shares if share.running}
    for descriptor in running:
        poll.register(descriptor, select.POLLIN)
    look_ns = time.monotonic_ns() + LOOK_EVERY_NS
    while running:
        ready = [running[d] for d, _ in poll.poll(max(0, look_ns - time.monotonic_ns()) / 1e6)]
        looking = time.monotonic_ns() >= look_ns
        for share in running.values() if looking else ready:
            try:
                if share in ready:
                    yield from share.receive()
                if looking and share.running:
                    yield from share.cancel(unwanted)
                    yield from share.give_up()
            except GeError as error:
                yield from share.lose(error)
        if looking:
            look_ns = time.monotonic_ns() + LOOK_EVERY_NS
        for descriptor in [d for d, share in running.items() if not share.running]:
            poll.unregister(descriptor)
            del running[descriptor]


def _failing(indices: Iterable[int], error: GeError, device: str = "") -> Iterator[Ended]:
    for index in indices:
        yield Ended(index, RunResult(outputs={}, error=error), device)


def _stateful(orders: dict[int, Run]) -> Iterator[Ended]:
    """Take out the runs that would go on from what is gone; yield their failure."""
    tensors = (
        "the executor died, and with it what the steps before had left on the device; see the "
        "server's log for the reason"
    )
    state = (
        "the executor died, and with it the state of this sequence; begin the sequence again "
        "with a request that has sequence_start set. See the server's log for the reason"
    )
    for index, order in tuple(orders.items()):
        if order.fed or order.slots:
            del orders[index]
            lost = TensorsLost(tensors) if order.fed else ExecutorLost(state)
            yield from _failing([index], lost)


def _died(when: str) -> ExecutorLost:
    return ExecutorLost(
        f"the executor died while it held this request, and again {when}; a new one is "
        "started for the next request. See the server's log for the reason"
    )
