"""Which sequence lives in which slot: pure bookkeeping, no device, no clock of its own.

The host does not say when a sequence timed out, was cancelled, or made room for another; it only
never has more alive than an instance can take. So a slot is freed at END, at START of the same id,
when its sequence has been idle for longer than the host waits, and, failing all that, when a new
sequence needs it: then the one that was idle longest is gone already, whoever it was.
Source: tested on tritonserver 2.51; github.com/triton-inference-server/server issue 3492.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from ge_backend.errors import ExecutorLost, GeError, InvalidRequest

__all__ = ["CorrelationId", "Figures", "SlotTable", "Step"]

CorrelationId = int | str

# Sequences whose state was lost are remembered to say so; so many at most.
MAX_LOST = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One request of a sequence: where its state lies.

    Attributes:
        fresh: the state begins anew.
        last: the slot is free after this step.
    """

    id: CorrelationId
    slot: int
    fresh: bool
    last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """How many slots there are and are taken, and what became of sequences so far."""

    slots: int
    live: int
    begun: int
    ended: int
    expired: int
    displaced: int
    lost: int


@dataclass(slots=True)
class _Life:
    slot: int
    seen_s: float


class SlotTable:
    """The live sequences of one model instance.

    Args:
        capacity: the most sequences that the host has alive in it at once.
        idle_s: seconds after which the host gives an idle sequence up.
    """

    def __init__(self, capacity: int, idle_s: float) -> None:
        self.capacity = capacity
        self._idle_s = idle_s
        self._lives: OrderedDict[CorrelationId, _Life] = OrderedDict()  # longest idle first
        self._free = list(range(capacity))[::-1]
        self._lost: OrderedDict[CorrelationId, None] = OrderedDict()
        self._counts = dict.fromkeys(("begun", "ended", "expired", "displaced", "lost"), 0)

    def admit(self, sequence: CorrelationId, *, start: bool, end: bool, now_s: float) -> Step:
        """Return where a request's state lies, taking a slot for a sequence that begins.

        Raises:
            ExecutorLost: the sequence's state is gone with its executor; said once.
            InvalidRequest: the sequence is not known and does not begin here.
        """
        self.expire(now_s)
        if start:
            self._begin(sequence)
        elif sequence not in self._lives:
            raise self._unknown(sequence)
        life = self._lives[sequence]
        life.seen_s = now_s
        self._lives.move_to_end(sequence)
        return Step(id=sequence, slot=life.slot, fresh=start, last=end)

    def leave(self, step: Step) -> None:
        """Free the slot of a sequence after its last step, whether or not that went well."""
        life = self._lives.get(step.id)
        if life is not None and life.slot == step.slot:
            self._free_slot(step.id)
            self._counts["ended"] += 1

    def lose_all(self) -> None:
        """Forget every sequence: the executor that held their state is gone."""
        for sequence in list(self._lives):
            self._free_slot(sequence)
            self._counts["lost"] += 1
            self._lost[sequence] = None
        while len(self._lost) > MAX_LOST:
            self._lost.popitem(last=False)

    def mention(self, sequence: CorrelationId) -> None:
        """Note that a sequence's client has been told that its state is lost."""
        self._lost.pop(sequence, None)

    def expire(self, now_s: float) -> None:
        """Free the slots of sequences that have been idle for too long."""
        while self._lives:
            sequence, life = next(iter(self._lives.items()))
            if now_s - life.seen_s <= self._idle_s:
                return
            self._free_slot(sequence)
            self._counts["expired"] += 1

    def figures(self) -> Figures:
        """Return what has been counted."""
        return Figures(slots=self.capacity, live=len(self._lives), **self._counts)

    def integrity(self) -> list[str]:
        """Recount the slots; return what does not add up, both numbers named."""
        taken = [life.slot for life in self._lives.values()]
        problems = []
        if sorted([*taken, *self._free]) != list(range(self.capacity)):
            problems.append(f"slots 0 to {self.capacity - 1}: {taken} taken, {self._free} free")
        counts = self._counts
        gone = sum(counts[name] for name in ("ended", "expired", "displaced", "lost"))
        if counts["begun"] - gone != len(self._lives):
            problems.append(f"{counts['begun']} begun - {gone} gone, but {len(self._lives)} live")
        return problems

    def _begin(self, sequence: CorrelationId) -> None:
        self._lost.pop(sequence, None)
        if sequence in self._lives:  # START in the middle: the sequence begins anew
            self._free_slot(sequence)
            self._counts["ended"] += 1
        elif not self._free:
            self._free_slot(next(iter(self._lives)))
            self._counts["displaced"] += 1
        self._lives[sequence] = _Life(slot=self._free.pop(), seen_s=0.0)
        self._counts["begun"] += 1

    def _free_slot(self, sequence: CorrelationId) -> None:
        self._free.append(self._lives.pop(sequence).slot)

    def _unknown(self, sequence: CorrelationId) -> GeError:
        if sequence in self._lost:
            del self._lost[sequence]
            return ExecutorLost(
                f"the state of sequence {sequence!r} was lost when its executor died; begin the "
                "sequence again with a request that has sequence_start set"
            )
        return InvalidRequest(
            f"sequence {sequence!r} is not known here: it did not begin with sequence_start, "
            f"has ended, or was idle for over {self._idle_s:g} s (max_sequence_idle_microseconds); "
            "begin it with a request that has sequence_start set"
        )
