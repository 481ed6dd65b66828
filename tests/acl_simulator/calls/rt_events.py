"""`acl.rt`: events."""

import math
from dataclasses import dataclass, field

from acl_simulator.calls.rt_streams import wait_for_ever
from acl_simulator.codes import Code
from acl_simulator.machine.hazards import Clock
from acl_simulator.machine.machine import Machine
from acl_simulator.machine.streams import Stream, Work
from acl_simulator.refusals import Refusal

__all__ = ["EventCalls"]


@dataclass(slots=True, eq=False)
class Event:
    """A point in a stream.

    Attributes:
        number, clock: the task that marks the point, and what comes before it.
        at_ms: the stream's virtual time when it came there; None before.
    """

    stream: Stream | None = None
    number: int = 0
    clock: Clock = field(default_factory=dict)
    at_ms: float | None = None

    def drive(self, patience_ms: float) -> bool:
        """Run its stream up to it."""
        return self.stream is None or self.stream.drive(self.number, patience_ms)


class EventCalls:
    """One machine's event calls."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def create_event(self) -> int:
        self._machine.context()
        return self._machine.handles.issue("event", Event())

    def create_event_with_flag(self, flag: int) -> int:
        return self.create_event()

    def destroy_event(self, handle: int) -> None:
        self._machine.handles.release("event", handle)

    def record_event(self, handle: int, stream: int) -> None:
        event: Event = self._machine.handles.get("event", handle)
        queue = self._machine.stream(stream)
        event.at_ms = None

        def finish() -> None:
            event.at_ms = queue.busy_ms

        queue.submit(Work(name="record_event", finish=finish))
        event.stream, event.number, event.clock = queue, queue.submitted, queue.clock

    def synchronize_event(self, handle: int) -> None:
        self._synchronise(handle, math.inf)

    def synchronize_event_with_timeout(self, handle: int, timeout_ms: int) -> None:
        self._synchronise(handle, math.inf if timeout_ms == -1 else timeout_ms)

    def stream_wait_event(self, stream: int, handle: int) -> None:
        event: Event = self._machine.handles.get("event", handle)
        queue = self._machine.stream(stream)
        point = Event(event.stream, event.number, event.clock)  # as it is now
        for other, number in point.clock.items():
            queue.clock = {**queue.clock, other: max(number, queue.clock.get(other, 0))}
        queue.submit(Work(name="stream_wait_event", wait=point.drive))

    def event_elapsed_time(self, start: int, end: int) -> float:
        events = [self._machine.handles.get("event", handle) for handle in (start, end)]
        if any(event.at_ms is None for event in events):
            raise Refusal(Code.RT_PARAM_INVALID, "an event was not recorded, or not reached yet")
        return events[1].at_ms - events[0].at_ms

    def _synchronise(self, handle: int, patience_ms: float) -> None:
        event: Event = self._machine.handles.get("event", handle)
        if not event.drive(patience_ms):
            if math.isinf(patience_ms):
                wait_for_ever(self._machine, f"synchronize_event({handle:#x})")
            raise Refusal(
                Code.STREAM_SYNC_TIMEOUT, f"the event was not reached after {patience_ms} ms"
            )
        self._machine.hazards.see(event.clock)
