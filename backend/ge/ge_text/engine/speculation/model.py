"""Guesses by a second model with the same vocabulary, and a cache of its own.

Of each text that it guesses for it has a shadow: the same tokens, and how many of them are in its
own cache. Guesses are drawn as the text's own tokens will be, with the same wishes and the same
random number at each place: where few tokens are likely, two models that think alike draw alike.

    text      [ known ...................... ]
    shadow    [ computed ...... | lacking .. ] guess, guess, …

What it computed of guesses that were wrong is computed again; what belongs to a text that ended, or
had to make room, is free with the next guess. What a shadow lacks for long, such as a prompt, is
read in pieces first, so that no step waits for all of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np

from ge_text.engine.adapters import AdapterCache
from ge_text.engine.blocks import BlockPool
from ge_text.engine.figures import Tally
from ge_text.engine.plan import Span, StepPlan, StepShapes
from ge_text.engine.preemption import Preemption
from ge_text.engine.runner import Outcome, Runner
from ge_text.engine.sequence import Sequence, SequenceState
from ge_text.engine.settings import MAX_DRAFTS, PreemptionMode
from ge_text.engine.speculation.base import SUREST, Guess
from ge_text.models.base import LanguageModel

__all__ = ["ModelDrafter"]

log = logging.getLogger(__name__)

READ_AT_ONCE = 256  # tokens for which the other texts of a step wait, at most


class ModelDrafter:
    """See the module; a `Drafter`. Not for several threads.

    Args:
        model: guesses; it stays the caller's to close.
        num_blocks: of its cache, which is opened here.
        clock: seconds, ever forward.

    Raises:
        OutOfMemory: there is no memory for the cache.
    """

    costly = True

    def __init__(self, model: LanguageModel, num_blocks: int, clock: Callable[[], float]) -> None:
        model.open_cache(num_blocks)
        self.read_s = 0.0
        self._max_positions = model.max_positions
        self._pool = BlockPool(num_blocks, model.block_size)
        nobody_swaps = Preemption(PreemptionMode.RECOMPUTE, 0)
        tally = Tally()
        nobody_adapts = AdapterCache(model, 0, tally)
        self._runner = Runner(model, nobody_swaps, tally, clock, nobody_adapts)
        self._longest = READ_AT_ONCE
        self._shadows: dict[Sequence, Sequence] = {}

    def use(self, shapes: StepShapes) -> None:
        """Run in these shapes from now on; until then the model gets any."""
        self._runner.shapes = shapes
        self._longest = min(READ_AT_ONCE, shapes.longest_query)

    def draft(self, asked: Mapping[Sequence, int], *, read: bool) -> dict[Sequence, Guess]:
        """See `Drafter`."""
        self._forget_ended()
        wanted: dict[Sequence, int] = {}
        for sequence, most in asked.items():
            shadow = self._follow(sequence)
            if (
                shadow.state is SequenceState.RUNNING
                and (count := self._make_room(shadow, most)) > 0
            ):
                wanted[shadow] = count
        self._read(wanted if read else ())
        self._guess({shadow: count for shadow, count in wanted.items() if self._is_near(shadow)})
        return {
            sequence: Guess(tuple(tokens), SUREST)
            for sequence in asked
            if (tokens := self._behind(sequence))
        }

    def _forget_ended(self) -> None:
        """Free what texts had that do not run any more."""
        ended = [s for s in self._shadows if s.state is not SequenceState.RUNNING]
        for sequence in ended:
            self._pool.release(self._shadows.pop(sequence).blocks)

    def _follow(self, sequence: Sequence) -> Sequence:
        """Return the shadow of a text as it is now."""
        shadow, former = sequence.fork(), self._shadows.get(sequence)
        shadow.sampling = replace(sequence.sampling, logprobs=None)
        shadow.guide = None if sequence.guide is None else sequence.guide.fork()
        shadow.num_computed, shadow.adapter = 0, ""
        if former is not None:
            shadow.blocks, shadow.state = former.blocks, former.state
            known = min(former.num_computed, sequence.num_tokens - 1)
            wrong = np.flatnonzero(former.ids(0, known) != sequence.ids(0, known))
            shadow.num_computed = int(wrong[0]) if len(wrong) else known
        elif sequence.leader is not None and sequence.leader in self._shadows:
            self._share(shadow, self._shadows[sequence.leader])
        self._shadows[sequence] = shadow
        return shadow

    def _share(self, shadow: Sequence, leader: Sequence) -> None:
        """Let a shadow begin with the full blocks of another sample's prompt, as far as it is read.

        They are not written to: what is known of a text stays as it is.
        """
        known = min(leader.num_computed, shadow.num_prompt, shadow.num_tokens - 1)
        count = known // self._pool.block_size
        self._pool.share(leader.blocks[:count])
        shadow.blocks.extend(leader.blocks[:count])
        shadow.num_computed = count * self._pool.block_size

    def _make_room(self, shadow: Sequence, most: int) -> int:
        """Return how many guesses have room behind a text, for which it has blocks now."""
        slots = (len(shadow.blocks) + self._pool.num_free) * self._pool.block_size
        count = min(most, min(slots, self._max_positions) + 1 - shadow.num_tokens)
        # The last guess is drawn and not computed.
        missing = self._pool.blocks_for(shadow.num_tokens + count - 1) - len(shadow.blocks)
        if count > 0 and missing > 0:
            shadow.blocks.extend(self._pool.allocate(missing))
        return count

    def _is_near(self, shadow: Sequence) -> bool:
        """Return whether it lacks so little that this is computed together with a first guess."""
        lacking = shadow.num_tokens - shadow.num_computed
        return lacking <= min(1 + MAX_DRAFTS, self._longest)

    def _read(self, shadows: Iterable[Sequence]) -> None:
        """Compute a piece of what those lack that lack much, all but the last token."""
        budget, spans = self._longest, []
        for shadow in shadows:
            count = min(shadow.num_tokens - 1 - shadow.num_computed, budget)
            if count > 0 and not self._is_near(shadow):
                spans.append(Span(shadow, shadow.num_computed, count))
                budget -= count
        self.read_s = self._run(spans).model_s if spans else 0.0

    def _guess(self, wanted: Mapping[Sequence, int]) -> None:
        """Draw this number of tokens behind each shadow's own, or as many as its text may have."""
        most = {shadow: shadow.num_tokens + count for shadow, count in wanted.items()}
        shadows = list(wanted)
        while shadows:
            rests = [Span(s, s.num_computed, s.num_tokens - s.num_computed) for s in shadows]
            outcome = self._run(rests)
            for drawn in outcome.drawn:
                drawn.sequence.append(drawn.token)
            shadows = [
                drawn.sequence
                for drawn in outcome.drawn
                if drawn.sequence.num_tokens < most[drawn.sequence] and not drawn.sequence.finish()
            ]

    def _run(self, spans: Iterable[Span]) -> Outcome:
        outcome = self._runner.run(StepPlan(spans=tuple(spans)))
        for span in outcome.computed:
            span.sequence.num_computed = span.stop
        for shadow, error in outcome.failed.items():  # it would fail again
            log.warning("a text goes on without guesses, whose model failed over it: %s", error)
            shadow.state, shadow.num_computed = SequenceState.FINISHED, 0
            self._pool.release(shadow.blocks)
            del shadow.blocks[:]
        return outcome

    def _behind(self, sequence: Sequence) -> list[int]:
        shadow = self._shadows[sequence]
        guessed: list[int] = shadow.ids(sequence.num_tokens, shadow.num_tokens).tolist()
        return guessed
