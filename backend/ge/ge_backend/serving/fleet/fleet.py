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
    ProtocolError,
    StateLost,
    Status,
    TensorsLost,
    error_from_name,
)
from ge_backend.executor.client.in_flight import InFlight, RunResult
from ge_backend.executor.client.session import Session
from ge_backend.executor.protocol.messages import Run, TensorMemory
from ge_backend.serving.fleet.assign import DeviceLoad, assign
from ge_backend.serving.fleet.device_state import DeviceState
from ge_backend.serving.fleet.fleet_device import FleetDevice, Pauses

__all__ = ["FinishedRun", "Fleet", "StageRuns"]

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


@dataclass(slots=True)
class FinishedRun:
    """A run of a batch that has ended; not frozen, as one is made for every run.

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
        self._devices = [
            FleetDevice(name, session, self._changed, pauses) for name, session in sessions.items()
        ]
        self._taking_turns: Sequence[FleetDevice] = ()
        self._given_ns: dict[FleetDevice, float] = {}

    @property
    def sessions(self) -> list[Session]:
        """All sessions. They hold the same graph; the first one speaks for them."""
        return [device.session for device in self._devices]

    @property
    def ready(self) -> bool:
        """Whether some device can be used, or may be in a moment.

        One whose driver says that it is abnormal cannot, though it may still answer.
        """
        return any(
            device.failure is None and _state(device).health.abnormal != 1
            for device in self._devices
        )

    def states(self) -> list[DeviceState]:
        """Return how each device is now; may be asked from any thread."""
        return list(map(_state, self._devices))

    def run(
        self,
        costs: Sequence[float],
        stage: StageRuns,
        unwanted: Callable[[int], bool] = lambda _: False,
        deadlines: Sequence[int] = (),
        meanwhile: Callable[[], None] = lambda: None,
        *,
        solo: bool = False,
    ) -> Iterator[FinishedRun]:
        """Yield each run as it ends, once, with its outcome.

        Never raises for a run's own failure: it is in the outcome. A caller that stops early waits
        until the runs in flight have ended, because until then they write into the arenas.

        Args:
            costs: estimated nanoseconds of each run, in the order of submission.
            stage: called once per device that is used, and again for what is repeated.
            unwanted: whether no request waits for a run any more. Asked now and then while it is in
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
            attempted = self._attempt(
                tuple(waiting), costs, stage, unwanted, meanwhile, again=again, solo=again or solo
            )
            for ended in attempted:
                del waiting[ended.index]
                yield ended
        yield from _failing(waiting, _died("before it could be repeated"))

    def here(self) -> FleetDevice | None:
        """Return the device whose executor is in this process, where it is the only one."""
        first, *others = self._devices
        return first if not others and first.up and first.session.runs_here else None

    def look_for_losses(self) -> None:
        """Give up the executors that have died since the last batch. No run is in flight."""
        for device in self._devices:
            if device.up and device.session.broken:
                device.lose(ExecutorLost("it has died since the last batch"))

    def retain_tensors(self, owner: str, buffer_bytes: Sequence[int] = ()) -> TensorMemory | None:
        """Let runs leave tensors on the device; see `Session.retain_tensors`. No run is in flight.

        Returns:
            How; None on several devices, where a later run may come to another one.
        """
        if len(self._devices) > 1:
            return None
        return self._devices[0].session.retain_tensors(owner, buffer_bytes)

    def free_tensors(self, keys: Sequence[int]) -> None:
        """Forget such tensors, of which no run is in flight."""
        if self._devices[0].up:
            self._devices[0].session.free_tensors(keys)

    def close(self) -> None:
        """Leave all executors, which free the graph if no other holds it."""
        for device in self._devices:
            device.close()

    def _attempt(  # noqa: PLR0913 - what `run` takes, and which time it is
        self,
        chosen: Sequence[int],
        costs: Sequence[float],
        stage: StageRuns,
        unwanted: Callable[[int], bool],
        meanwhile: Callable[[], None],
        *,
        again: bool,
        solo: bool,
    ) -> Iterator[FinishedRun]:
        """Run what is chosen once; what is not yielded has to be run again."""
        devices, failure = self._usable()
        if failure is not None:
            yield from _failing(chosen, failure)
        batches: list[_DeviceBatch] = []
        try:
            assigned = self._assign(chosen, costs, devices)
            for device, indices in assigned:
                try:
                    orders = stage(device.session, indices, again=again)
                    in_flight = device.session.in_flight()
                except ExecutorLost as error:
                    device.lose(error)
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
                    awaits = not in_flight.sender_serves or device is assigned[-1][0]
                    batches.append(
                        _DeviceBatch(device, in_flight, by_index, solo=solo, awaits=awaits)
                    )
                    yield from batches[-1].begin()
            meanwhile()
            yield from _ends(batches, unwanted)
        finally:
            for batch in batches:
                batch.drain()

    def _late(self, chosen: Sequence[int], deadlines: Sequence[int]) -> Iterator[FinishedRun]:
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
        return any(device.up for device in self._devices) or not self.ready

    def _usable(self) -> tuple[list[FleetDevice], GeError | None]:
        """Return the devices that are up, and why there is none.

        If none is, those that may be in a moment are waited for.
        """
        usable = [device for device in self._devices if device.up]
        if usable:
            return usable, None
        with self._changed:
            self._changed.wait_for(self._settled)
            usable = [device for device in self._devices if device.up]
            return usable, None if usable else self._unusable()

    def _unusable(self) -> GeError:
        """Return a new error, because its receiver raises it."""
        source = self.sessions[0].source
        told = [without_folders(str(device.failure), source.path) for device in self._devices]
        if len(told) == 1:
            failure = self._devices[0].failure
            if failure is not None and failure.status is not Status.UNAVAILABLE:  # tried again
                return DeviceUnavailable(f"the model cannot be loaded again: {told[0]}")
            return error_from_name(type(failure).__name__, told[0])
        reasons = "; ".join(
            f"{device.name}: {text}" for device, text in zip(self._devices, told, strict=True)
        )
        return DeviceUnavailable(f"all devices are lost, and tried again meanwhile: {reasons}")

    def _assign(
        self, chosen: Sequence[int], costs: Sequence[float], devices: Sequence[FleetDevice]
    ) -> list[tuple[FleetDevice, list[int]]]:
        """Return the devices that get something, each with its runs in the order of submission.

        The one place that says where a run goes. A run that must stay on a device, such as a step
        of a sequence whose state is there, would be placed here, before the others.
        """
        if len(devices) <= 1:
            return [(device, list(chosen)) for device in devices]
        if devices != self._taking_turns:  # one that was away has nothing to make up for
            self._taking_turns, self._given_ns = devices, dict.fromkeys(devices, 0.0)
        loads = [
            DeviceLoad(seen.ns if (seen := d.session.outstanding) else 0, self._given_ns[d])
            for d in devices
        ]
        places = assign([costs[index] for index in chosen], loads)
        parts: dict[FleetDevice, list[int]] = {}
        for index, place in zip(chosen, places, strict=True):
            parts.setdefault(devices[place], []).append(index)
            self._given_ns[devices[place]] += costs[index]
        return list(parts.items())


def _state(device: FleetDevice) -> DeviceState:
    return DeviceState.of(device.name, device.session.outstanding, up=device.up)


class _DeviceBatch:
    """What one device has to run of an attempt.

    Args:
        solo: the runs are repeated, one at a time, each alone on the device.
        awaits: the last one may be made by its reader.
    """

    def __init__(
        self,
        device: FleetDevice,
        in_flight: InFlight,
        orders: Mapping[int, Run],
        *,
        solo: bool,
        awaits: bool,
    ) -> None:
        self._device = device
        self._in_flight = in_flight
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
        return self._in_flight.fileno()

    def begin(self) -> Iterator[FinishedRun]:
        """Submit the first runs; yield those that cannot be."""
        try:
            yield from self._submit()
        except GeError as error:
            yield from self.lose(error)

    def receive(self) -> Iterator[FinishedRun]:
        """Take what the executor says; if a run has ended, submit what there is room for then."""
        ended = self._in_flight.receive()
        if ended is not None:
            index, outcome = ended
            known = self._left.pop(index, None)
            refused = list(self._submit())  # before the caller works on what has ended
            if known is not None:
                yield FinishedRun(index, outcome, self._device.name)
            yield from refused

    def give_up(self) -> Iterator[FinishedRun]:
        """Yield the runs whose time is over, if the executor shows no life.

        They stay in flight, since it may go on and write what they give; that is not waited for. A
        step of a sequence may so move its state on, which cannot be told then.
        """
        if self._in_flight.silent_ns < SILENT_NS:
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
            yield FinishedRun(index, outcome, self._device.name, given_up=True)

    def cancel(self, unwanted: Callable[[int], bool]) -> Iterator[FinishedRun]:
        """Ask that runs which are not wanted are not begun; yield those that have not been sent."""
        open_ = [index for index in self._left if index not in self._cancelled]
        for index in filter(unwanted, open_):
            if index in self._unsent:
                self._unsent.remove(index)
                del self._left[index]
                yield from _failing([index], Cancelled.by_client(), self._device.name)
            elif self._in_flight.cancel(index):
                self._cancelled.add(index)

    def lose(self, error: GeError) -> Iterator[FinishedRun]:
        """Give the device up; yield the runs that are not to be repeated."""
        self._lost = True
        self._device.lose(error)
        if not isinstance(error, ExecutorLost):
            yield from _failing(list(self._left), error, self._device.name)
        elif self._solo and self._in_flight.started:
            died = _died("when it was repeated with nothing else running")
            guilty = [index for index in self._in_flight.indices if index in self._left]
            yield from _failing(guilty, died, self._device.name)

    def drain(self) -> None:
        """Wait until nothing is in flight any more; what has not been sent stays so."""
        try:
            if not self._lost:
                self._in_flight.drain()
        except GeError as error:
            self._device.lose(error)

    def _submit(self) -> Iterator[FinishedRun]:
        """Submit as much as the socket takes, in order; after the last one nothing is sent.

        Yields the runs whose messages are too long. What such a one takes from the device may go
        through the host's memory instead (`ensemble/runner.py`), which is said in fewer words.
        """
        while self._unsent and not (self._solo and self._in_flight.indices):
            index = self._unsent[0]
            order, awaited = self._left[index], self._awaits and len(self._unsent) == 1
            try:
                if not self._in_flight.submit(index, order, solo=self._solo, awaited=awaited):
                    return
            except ExecutorLost:
                return  # the next receive says so too, after the answers that came before
            except ProtocolError as error:
                del self._left[index]
                told = TensorsLost(str(error)) if order.gathered else error
                yield from _failing([index], told, self._device.name)
            self._unsent.popleft()


def _ends(
    batches: Sequence[_DeviceBatch], unwanted: Callable[[int], bool]
) -> Iterator[FinishedRun]:
    """Yield the runs of all devices as they end."""
    poll = select.poll()
    running = {batch.fileno(): batch for batch in batches if batch.running}
    for descriptor in running:
        poll.register(descriptor, select.POLLIN)
    look_ns = time.monotonic_ns() + LOOK_EVERY_NS
    while running:
        ready = [running[d] for d, _ in poll.poll(max(0, look_ns - time.monotonic_ns()) / 1e6)]
        looking = time.monotonic_ns() >= look_ns
        for batch in running.values() if looking else ready:
            try:
                if batch in ready:
                    yield from batch.receive()
                if looking and batch.running:
                    yield from batch.cancel(unwanted)
                    yield from batch.give_up()
            except GeError as error:
                yield from batch.lose(error)
        if looking:
            look_ns = time.monotonic_ns() + LOOK_EVERY_NS
        for descriptor in [d for d, batch in running.items() if not batch.running]:
            poll.unregister(descriptor)
            del running[descriptor]


def _failing(indices: Iterable[int], error: GeError, device: str = "") -> Iterator[FinishedRun]:
    for index in indices:
        yield FinishedRun(index, RunResult(outputs={}, error=error), device)


def _stateful(orders: dict[int, Run]) -> Iterator[FinishedRun]:
    """Take out the runs that would go on from what is gone; yield their failure.

    Where all sequences of a run only begin, none has anything to go on from yet.
    """
    tensors = (
        "the executor died, and with it what the steps before had left on the device; see the "
        "server's log for the reason"
    )
    state = (
        "the executor died, and with it the state of this sequence; begin the sequence again "
        "with a request that has sequence_start set. See the server's log for the reason"
    )
    for index, order in tuple(orders.items()):
        if order.gathered or set(order.slots) - set(order.starting):
            del orders[index]
            lost = TensorsLost(tensors) if order.gathered else ExecutorLost(state)
            yield from _failing([index], lost)


def _died(when: str) -> ExecutorLost:
    return ExecutorLost(
        f"the executor died while it held this request, and again {when}; a new one is "
        "started for the next request. See the server's log for the reason"
    )
