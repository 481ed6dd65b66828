"""Races: two users of the same bytes, one of them writing, and nothing that orders them.

Work on a stream is *in flight* until the host has synchronised with it, whether or not it has
already run. Order comes from being on the same stream, from events, and from synchronising; each
task carries a vector clock that says after which task of every stream it comes.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from acl_simulator.refusals import Misuses

__all__ = ["Access", "Clock", "Hazards", "Task", "reading", "writing"]

Clock = dict[Hashable, int]
MEMORY = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The use of a range, [start, stop), of memory or of something else, such as a model.

    Attributes:
        space: what the range lies in.
        writes: whether nobody else may use it meanwhile.
        what: how messages call it.
    """

    start: int
    stop: int
    writes: bool
    what: str
    space: Hashable = MEMORY

    def conflicts(self, other: "Access") -> bool:
        """Whether both at once would be a race."""
        return (
            self.space == other.space
            and (self.writes or other.writes)
            and self.start < other.stop
            and other.start < self.stop
        )


def reading(address: int, size: int, what: str) -> Access:
    """Return the access of one who reads memory."""
    return Access(start=address, stop=address + size, writes=False, what=what)


def writing(address: int, size: int, what: str) -> Access:
    """Return the access of one who writes memory."""
    return Access(start=address, stop=address + size, writes=True, what=what)


class Task(Protocol):
    """Work in flight, as far as races go."""

    name: str
    accesses: Sequence[Access]
    stream: Hashable
    number: int
    clock: Clock


class Hazards:
    """What is in flight, and what the host has seen the end of."""

    def __init__(self, misuses: Misuses) -> None:
        self._misuses = misuses
        self._tasks: list[Task] = []
        self._seen: Clock = {}

    @property
    def in_flight(self) -> list[Task]:
        """The tasks that the host has not synchronised with."""
        return list(self._tasks)

    def launch(self, task: Task) -> None:
        """Take a task into flight; refuse it if it races with another one."""
        self._refuse_races(task.name, task.accesses, task.clock)
        self._tasks.append(task)

    def touch(self, name: str, *accesses: Access) -> None:
        """Refuse what the host does at once if it races with anything in flight."""
        self._refuse_races(name, accesses, {})

    def see(self, clock: Mapping[Hashable, int]) -> None:
        """The host has synchronised: what is at or before `clock` is no longer in flight."""
        for stream, number in clock.items():
            self._seen[stream] = max(number, self._seen.get(stream, 0))
        self._tasks = [t for t in self._tasks if t.number > self._seen.get(t.stream, 0)]

    def forget(self, stream: Hashable) -> None:
        """Drop a stream with all that was in flight on it."""
        self._tasks = [task for task in self._tasks if task.stream != stream]

    def _refuse_races(self, name: str, accesses: Sequence[Access], clock: Clock) -> None:
        for task in self._tasks:
            if clock.get(task.stream, 0) >= task.number:
                continue
            for ours in accesses:
                for theirs in task.accesses:
                    if ours.conflicts(theirs):
                        self._misuses.refuse(
                            f"{name}: {ours.what} is also {theirs.what} of {task.name}, "
                            f"which is still in flight on stream {task.stream}"
                        )
