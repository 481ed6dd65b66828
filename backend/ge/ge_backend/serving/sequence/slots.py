"""Which sequence lives in which slot: pure bookkeeping, no device, no clock of its own.

The host decides who is alive: it refuses by itself the steps of sequences that have ended or were
idle for too long, and never has more alive in an instance than fit. What it does not say is when
one timed out, was cancelled, or lost its client. So a slot is freed at END, at START of the same
id, and else when a new sequence needs it. With `direct` scheduling the host says which slot that
is, and who has the same id elsewhere is another sequence, whose last steps may still come. With
`oldest` it is that of the sequence that was idle longest.
Source: tested on tritonserver 2.51; github.com/triton-inference-server/server issue 3492.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from ge_backend.errors import ExecutorLost, GeError, InvalidRequest, QueueFull

__all__ = ["CorrelationId", "SequenceStep", "SlotTable"]

CorrelationId = int | str
# A sequence: its id and, where the host says so, its place.
Key = tuple[CorrelationId, int | None]

# Sequences whose state was lost are remembered to say so; this many at most.
MAX_LOST = 4096


class SequenceStep(NamedTuple):
    """One request of a sequence: where its state lies.

    Attributes:
        starting: the state starts with its initial value.
        last: the slot is free after this step.
    """

    key: Key
    slot: int
    starting: bool
    last: bool


@dataclass(slots=True)
class _Life:
    """A live sequence.

    Attributes:
        going_on: what all of its steps are but the first one and the last; None while no step has
            changed the state yet.
    """

    slot: int
    seen_s: float
    going_on: SequenceStep | None = None


class SlotTable:
    """The live sequences of one model instance.

    Args:
        capacity: the most sequences that the host has alive in it at once.
        idle_s: seconds after which the host gives an idle sequence up.

    Attributes:
        events: how many sequences have begun, and what became of them: ended; expired, idle for too
            long, and another one has the slot; displaced, another one has it although they were not
            idle for so long; lost, their state went with its executor, or one of their steps failed
            half-way.
    """

    def __init__(self, capacity: int, idle_s: float) -> None:
        self.capacity = capacity
        self._idle_s = idle_s
        self._lives: OrderedDict[Key, _Life] = OrderedDict()  # longest idle first
        self._holders: dict[int, Key] = {}  # of the slots that are taken
        self._spare: dict[int, None] = dict.fromkeys(reversed(range(capacity)))  # the next one last
        self._lost: OrderedDict[Key, None] = OrderedDict()
        self.events: Counter[str] = Counter()

    @property
    def live(self) -> int:
        """How many slots are taken."""
        return len(self._lives)

    def admit(
        self,
        sequence: CorrelationId,
        *,
        start: bool,
        end: bool,
        now_s: float,
        place: int | None = None,
        busy: Collection[int] = (),
    ) -> SequenceStep:
        """Return where a request's state lies, taking a slot for a sequence that begins.

        Args:
            sequence: whose request it is.
            start: it begins here, anew if it lives.
            end: it ends with this request.
            now_s: seconds of a clock that only goes forward.
            place: the slot that the host has given the sequence, if it says so.
            busy: slots that have a step under way, of any sequence; no other one gets them.

        Raises:
            ExecutorLost: the sequence's state is gone with its executor; said once.
            InvalidRequest: the sequence is not known and does not begin here.
            QueueFull: it begins, and every slot has a step under way.
        """
        key = (sequence, place)
        if start:
            self._begin(key, busy, now_s)
        life = self._lives.get(key)
        if life is None:
            raise self._unknown(key)
        life.seen_s = now_s
        self._lives.move_to_end(key)
        if life.going_on is not None and not end:
            return life.going_on
        return SequenceStep(key=key, slot=life.slot, starting=life.going_on is None, last=end)

    def is_live(self, sequence: CorrelationId, place: int | None = None) -> bool:
        """Whether a sequence lives, at this place if the host says so."""
        return (sequence, place) in self._lives

    def advance(self, step: SequenceStep) -> None:
        """Note that a step went well: the slot holds the sequence's own state from now on."""
        life = self._owner(step)
        if life is not None:
            life.going_on = SequenceStep(key=step.key, slot=step.slot, starting=False, last=False)

    def leave(self, step: SequenceStep) -> None:
        """Free the slot of a sequence after its last step, whether or not that went well."""
        if self._owner(step) is not None:
            self._free(step.key, "ended")

    def lose(self, step: SequenceStep) -> None:
        """Free the slot of a sequence whose state is not what its client takes it for."""
        if self._owner(step) is not None:
            self._free(step.key, "lost")

    def lose_all(self, but: Collection[Key] = ()) -> None:
        """Forget every sequence: the executor that held their state is gone.

        But for these, as long as no step has changed their state yet.
        """
        gone = [key for key, life in self._lives.items() if life.going_on or key not in but]
        for sequence in gone:
            self._free(sequence, "lost")
            self._lost[sequence] = None
        while len(self._lost) > MAX_LOST:
            self._lost.popitem(last=False)

    def mention(self, step: SequenceStep) -> None:
        """Note that a sequence's client has been told that its state is lost."""
        self._lost.pop(step.key, None)

    def _begin(self, key: Key, busy: Collection[int], now_s: float) -> None:
        self._lost.pop(key, None)
        if key in self._lives:  # START in the middle: the sequence begins anew
            self._free(key, "ended")
        _, place = key
        slot = self._next_slot(busy) if place is None else place
        if (former := self._holders.get(slot)) is not None:
            idle_s = now_s - self._lives[former].seen_s
            self._free(former, "expired" if idle_s > self._idle_s else "displaced")
        del self._spare[slot]
        self._lives[key] = _Life(slot=slot, seen_s=now_s)
        self._holders[slot] = key
        self.events["begun"] += 1

    def _next_slot(self, busy: Collection[int]) -> int:
        taken = (life.slot for life in self._lives.values())
        for slot in chain(reversed(self._spare), taken):
            if slot not in busy:
                return slot
        raise QueueFull(f"all {self.capacity} slots of this instance have a step under way")

    def _owner(self, step: SequenceStep) -> _Life | None:
        """Return the sequence of a step if it still has the step's slot."""
        life = self._lives.get(step.key)
        return life if life is not None and life.slot == step.slot else None

    def _free(self, key: Key, event: str) -> None:
        slot = self._lives.pop(key).slot
        del self._holders[slot]
        self._spare[slot] = None
        self.events[event] += 1

    def _unknown(self, key: Key) -> GeError:
        sequence, _ = key
        if key in self._lost:
            del self._lost[key]
            return ExecutorLost(
                f"the state of sequence {sequence!r} was lost when its executor died; begin the "
                "sequence again with a request that has sequence_start set"
            )
        return InvalidRequest(
            f"sequence {sequence!r} is not known here: it did not begin with sequence_start, "
            f"has ended, or was idle for over {self._idle_s:g} s (max_sequence_idle_microseconds) "
            "while another one needed its place; begin it with a request that has sequence_start "
            "set"
        )
