"""Steps of sequences on their way: each request gets the slot that holds its sequence's state."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from ge_backend.errors import ExecutorLost, GeError, InvalidRequest, QueueFull, StateLost
from ge_backend.model.config.sequence_batching import SequenceBatching
from ge_backend.serving.batching.request import Request
from ge_backend.serving.sequence.slots import CorrelationId, SequenceStep, SlotTable
from ge_backend.tensors import Shape

__all__ = ["Sequencer"]

# Bits of a request's flags in the host, tested on tritonserver 2.51.
START, END = 1, 2


class Sequencer:
    """The live sequences of one model instance and the sizes of their states; for one thread.

    Attributes:
        events: what became of sequences so far; see `SlotTable`.
    """

    def __init__(self, batching: SequenceBatching) -> None:
        self._table = SlotTable(batching.slots, batching.idle_s)
        self.events = self._table.events
        # The slot of a request is its place in the host's list then; tested on 2.51.
        self._placed = batching.strategy == "direct"
        varying = [state for state in batching.states if -1 in state.dims]
        self._initial = tuple(state.initial_dims for state in varying)
        self._names = tuple(state.input for state in varying)
        self._shapes: dict[int, tuple[Shape, ...]] = {}  # by slot, of states whose sizes vary
        self._steps: dict[int, SequenceStep] = {}  # by request, until it is settled

    def admit(self, request: Request, sequence: CorrelationId, flags: int, now_s: float) -> None:
        """Give the request the slot of its sequence; pair with `settle`.

        Args:
            request: of the host's list.
            sequence: whose step it is.
            flags: the host's, which say whether the sequence begins or ends with it.
            now_s: seconds of a clock that only goes forward.

        Raises:
            InvalidRequest: it has several rows, or its sequence is not known and does not begin.
            ExecutorLost: its sequence's state is lost.
        """
        if request.rows != 1:
            raise InvalidRequest(
                f"a step of a sequence is one row; this request has {request.rows}: send them as "
                "sequences of their own"
            )
        step = self._steps[request.index] = self._step(request.index, sequence, flags, now_s)
        request.slot, request.starting = step.slot, step.starting
        if self._names:
            if step.starting:
                self._shapes[step.slot] = self._initial
            request.states = self._shapes[step.slot]

    def skip(self, index: int, sequence: CorrelationId, flags: int, now_s: float) -> None:
        """Note a request that cannot be run: the host begins or ends its sequence all the same.

        Else the steps behind a START that was refused would go on from the state of before. That
        a sequence is lost is not told here, and so stays to be told.
        """
        place = index if self._placed else None
        if flags & START or self._table.is_live(sequence, place):
            with contextlib.suppress(QueueFull):
                step = self._step(index, sequence, flags, now_s)
                if step.last:
                    self._table.leave(step)

    def settle(self, index: int, error: GeError | None, states: Mapping[str, Shape]) -> None:
        """Note how the step of the request at this place of the host's list went."""
        step = self._steps.pop(index)
        if error is None:
            if step.starting:
                self._table.advance(step)
            if self._names:
                self._shapes[step.slot] = tuple([states[name] for name in self._names])
        elif isinstance(error, StateLost):
            self._table.lose(step)
        elif isinstance(error, ExecutorLost):
            self._table.lose(step)  # if it was still to be repeated
            self._table.mention(step)
        if step.last:
            self._table.leave(step)

    def settle_rest(self) -> None:
        """Note that it is not known how the other steps went that were admitted."""
        while self._steps:
            index = next(iter(self._steps))
            self.settle(index, StateLost("it had no outcome"), {})

    def lose_all(self) -> None:
        """Forget every sequence: their states ended with the executor.

        But for those whose first step is under way: it is repeated, and the state begins with it.
        """
        begun = {step.key for step in self._steps.values() if step.starting}
        self._table.lose_all(but=begun)

    @property
    def live(self) -> int:
        """How many sequences live."""
        return self._table.live

    def _step(self, index: int, sequence: CorrelationId, flags: int, now_s: float) -> SequenceStep:
        """Return where the state of a request lies; see `SlotTable.admit`."""
        return self._table.admit(
            sequence,
            start=bool(flags & START),
            end=bool(flags & END),
            now_s=now_s,
            place=index if self._placed else None,
            # Those that have a step under way.
            busy={step.slot for step in self._steps.values()} if flags & START else (),
        )
