"""One attempt at a batch's runs, in flight on all their devices at once.

Each ends, or is lost with its device's executor: it has not ended then, and is to be tried again.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ge_backend.deadline import over
from ge_backend.errors import (
    Cancelled,
    DeadlineExceeded,
    ExecutorLost,
    GeError,
    ProtocolError,
    StateLost,
    TensorsLost,
)
from ge_backend.executor.client.in_flight import InFlight, RunResult
from ge_backend.executor.protocol.messages import Run
from ge_backend.serving.fleet.fleet_device import FleetDevice

__all__ = ["LOOK_EVERY_NS", "Attempt", "FinishedRun", "Placed", "died_again", "failed"]

# How often it is asked whether the runs in flight are still wanted. Asking the host costs 10-25 us
# per request (tested on 2.51), and a batch that is done sooner asks nothing.
LOOK_EVERY_NS = 50_000_000
# An executor that has been silent for so long is not trusted with deadlines any more.
SILENT_NS = 500_000_000


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


@dataclass(frozen=True, slots=True)
class Placed:
    """A device of an attempt, and the runs that it gets, in the order of submission."""

    device: FleetDevice
    indices: Sequence[int]


class Attempt:
    """Runs that are submitted to their devices and collected as they end, by one thread.

    None fails by an exception: its error is its outcome.

    Args:
        parts: the devices that get something.
        ended: runs that have come to no device.
        again: those of the parts may have been in flight before: none goes on from what died with
            an executor.
        solo: each has its device to itself.

    Attributes:
        parts: likewise.
        look: it is time to ask whether the runs that are `open` are still wanted.
    """

    def __init__(
        self,
        parts: Sequence[Placed] = (),
        ended: Sequence[FinishedRun] = (),
        *,
        again: bool = False,
        solo: bool = False,
    ) -> None:
        self.parts = parts
        self.look = False
        self._again, self._solo = again, solo
        self._batches: list[_DeviceBatch] = []
        self._ended = list(ended)
        self._look_ns = 0

    @property
    def running(self) -> bool:
        """Whether there is something to collect, now or later."""
        return bool(self._ended) or any(batch.running for batch in self._batches)

    @property
    def open(self) -> list[int]:
        """The runs that have not ended and were not cancelled."""
        running = [batch for batch in self._batches if batch.running]
        return [i for batch in running for i in batch.left if i not in batch.cancelled]

    def submit(self, part: Placed, orders: Sequence[Run | GeError]) -> None:
        """Submit a part, in the order of the parts: its runs, staged there, or why they are not."""
        try:
            in_flight = part.device.session.in_flight()
        except ExecutorLost as error:
            part.device.lose(error)
            return
        runs: dict[int, Run] = {}
        for index, order in zip(part.indices, orders, strict=True):
            if isinstance(order, GeError):
                self._ended += failed([index], order)
            elif self._again and (gone := _gone(order)) is not None:
                self._ended += failed([index], gone)
            else:
                runs[index] = order
        # The other devices' runs are not to wait until this thread has made one.
        awaits = not in_flight.sender_serves or part is self.parts[-1]
        batch = _DeviceBatch(
            part.device, in_flight, runs, self._ended, solo=self._solo, awaits=awaits
        )
        self._batches.append(batch)
        batch.submit()
        self._look_ns = time.monotonic_ns() + LOOK_EVERY_NS

    def collect(self) -> list[FinishedRun]:
        """Return the runs that have ended, each once; what there is room for then is submitted.

        Waits until there are some, an executor is lost, or it is time to look.
        """
        self.look = False
        if not self._ended:
            running = {batch.in_flight.fileno(): batch for batch in self._batches if batch.running}
            poll = select.poll()
            for descriptor in running:
                poll.register(descriptor, select.POLLIN)
            for descriptor, _ in poll.poll(max(0, self._look_ns - time.monotonic_ns()) / 1e6):
                running[descriptor].receive()
            self.look = time.monotonic_ns() >= self._look_ns
            if self.look:
                for batch in running.values():
                    batch.give_up()
                self._look_ns = time.monotonic_ns() + LOOK_EVERY_NS
        ended = self._ended.copy()
        self._ended.clear()
        return ended

    def cancel(self, indices: Sequence[int]) -> None:
        """Ask that runs which are `open` are not begun; those not sent yet end at once."""
        for batch in self._batches:
            if batch.running:
                batch.cancel(indices)

    def close(self) -> None:
        """Wait until no run is in flight; until then they write into the arenas."""
        for batch in self._batches:
            batch.drain()


class _DeviceBatch:
    """What one device has to run of an attempt.

    Args:
        orders: staged there, by index; they become `left`.
        ended: gets what has ended.
        solo: one at a time, each alone on the device.
        awaits: the last one may be made by its reader.

    Attributes:
        left: what has not ended.
        cancelled: what of it is not to be begun, as its executor was told.
    """

    def __init__(
        self,
        device: FleetDevice,
        in_flight: InFlight,
        orders: dict[int, Run],
        ended: list[FinishedRun],
        *,
        solo: bool,
        awaits: bool,
    ) -> None:
        self._device = device
        self.in_flight = in_flight
        self._ended = ended
        self._solo, self._awaits = solo, awaits
        self.left = orders
        self._unsent = deque(orders)
        self.cancelled: set[int] = set()
        self._lost = False

    @property
    def running(self) -> bool:
        """Whether something has not ended that still can."""
        return bool(self.left) and not self._lost

    def submit(self) -> None:
        """Submit as much as the socket takes, in order; after the last one nothing is sent.

        Runs whose messages are too long fail. What such a one takes from the device may go through
        the host's memory instead (`ensemble/runner.py`), which is said in fewer words.
        """
        while self._unsent and not (self._solo and self.in_flight.indices):
            index = self._unsent[0]
            order, awaited = self.left[index], self._awaits and len(self._unsent) == 1
            try:
                if not self.in_flight.submit(index, order, solo=self._solo, awaited=awaited):
                    return
            except ExecutorLost:
                return  # the next receive says so too, after the answers that came before
            except ProtocolError as error:
                del self.left[index]
                reason = TensorsLost(str(error)) if order.gathered else error
                self._ended += failed([index], reason, self._device.name)
            self._unsent.popleft()

    def receive(self) -> None:
        """Take what the executor says; if a run has ended, submit what there is room for then."""
        try:
            ended = self.in_flight.receive()
        except GeError as error:
            self._lose(error)
            return
        if ended is not None:
            index, outcome = ended
            if self.left.pop(index, None) is not None:
                self._ended.append(FinishedRun(index, outcome, self._device.name))
            self.submit()

    def give_up(self) -> None:
        """End the runs whose time is over, if the executor shows no life.

        They stay in flight, since it may go on and write what they give; that is not waited for. A
        step of a sequence may so move its state on, which cannot be told then.
        """
        if not self.running or self.in_flight.silent_ns < SILENT_NS:
            return
        now_ns = time.monotonic_ns()
        for index in [i for i, order in self.left.items() if over(order.deadline_ns, now_ns)]:
            order = self.left.pop(index)
            text = "the request's time is over, and its device's executor shows no life"
            error: GeError = DeadlineExceeded(text)
            if index in self._unsent:
                self._unsent.remove(index)
            elif order.slots:
                error = StateLost(
                    f"{text}; the step may yet change the state of its sequence, which is given "
                    "up: begin the sequence again with a request that has sequence_start set"
                )
            self._ended += failed([index], error, self._device.name, given_up=True)

    def cancel(self, indices: Iterable[int]) -> None:
        """Ask that runs of these are not begun; those that have not been sent end at once."""
        try:
            for index in filter(self.left.__contains__, indices):
                if index in self._unsent:
                    self._unsent.remove(index)
                    del self.left[index]
                    self._ended += failed([index], Cancelled.by_client(), self._device.name)
                elif self.in_flight.cancel(index):
                    self.cancelled.add(index)
        except GeError as error:
            self._lose(error)

    def drain(self) -> None:
        """Wait until nothing is in flight any more; what has not been sent stays so."""
        try:
            if not self._lost:
                self.in_flight.drain()
        except GeError as error:
            self._device.lose(error)

    def _lose(self, error: GeError) -> None:
        """Give the device up; of its runs, those end that are not to be tried again."""
        self._lost = True
        self._device.lose(error)
        guilty: list[int] = []
        if not isinstance(error, ExecutorLost):
            guilty = list(self.left)
        elif self._solo and self.in_flight.started:
            guilty = [index for index in self.in_flight.indices if index in self.left]
            error = died_again("when it was repeated with nothing else running")
        self._ended += failed(guilty, error, self._device.name)


def failed(
    indices: Iterable[int], error: GeError, device: str = "", *, given_up: bool = False
) -> list[FinishedRun]:
    """Return runs that end with an error."""
    outcome = RunResult(outputs={}, error=error)
    return [FinishedRun(index, outcome, device, given_up) for index in indices]


def _gone(order: Run) -> GeError | None:
    """Return why a run cannot be repeated: it would go on from what died with an executor.

    Where all sequences of a run only begin, none has anything to go on from yet.
    """
    if order.gathered:
        return TensorsLost(
            "the executor died, and with it what the steps before had left on the device; see the "
            "server's log for the reason"
        )
    if set(order.slots) - set(order.starting):
        return ExecutorLost(
            "the executor died, and with it the state of this sequence; begin the sequence again "
            "with a request that has sequence_start set. See the server's log for the reason"
        )
    return None


def died_again(when: str) -> ExecutorLost:
    """Return the error of a run that executors die over."""
    return ExecutorLost(
        f"the executor died while it held this request, and again {when}; a new one is "
        "started for the next request. See the server's log for the reason"
    )
