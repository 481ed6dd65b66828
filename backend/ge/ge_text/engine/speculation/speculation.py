"""Speculative decoding of one engine: what is guessed, how much of it is verified, what is learned.

    propose → (the step) → learn

A guess that costs nothing is made for every sequence in every step, and only as much of it verified
as is worth it. What is drawn anyway shows whether the rest was right, so that trying costs nothing
either. A guess that costs time is made where it is expected to be worth that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from ge_text.engine.figures import Tally
from ge_text.engine.parameters import Parameters
from ge_text.engine.plan import StepPlan
from ge_text.engine.runner import Outcome
from ge_text.engine.sequence import Sequence
from ge_text.engine.settings import EngineSettings, SpeculationMode
from ge_text.engine.speculation.base import SUREST, Drafter, Guess
from ge_text.engine.speculation.costs import StepCosts
from ge_text.engine.speculation.gain import Acceptance, SpeculationBudget, choose_lengths
from ge_text.engine.speculation.ngram import NgramDrafter
from ge_text.engine.speculation.verify import num_right

__all__ = ["Speculation", "open_speculation"]

# Steps in which nothing was worth it until a few drafts are verified all the same, as they are
# where that was never tried: what it costs may have been measured wrongly, or have changed. Twice
# as many after each time.
PROBE_FIRST, PROBE_EVERY = 4, 256
PROBE_LEAST = 3  # drafts: of fewer only noise would be measured
SPARE = 64  # expectations of sequences that have ended, beside as many as there are running ones


class Speculation:
    """See the module. Not for several threads.

    Attributes:
        seconds: what the latest proposal took.

    Args:
        lengths: how many drafts of a sequence may be verified, ascending.
        measured: which of the lengths, if any, is chosen by measurements; else the only one is.
        clock: seconds, ever forward.
    """

    def __init__(
        self,
        drafter: Drafter,
        lengths: tuple[int, ...],
        *,
        measured: bool,
        tally: Tally,
        clock: Callable[[], float],
    ) -> None:
        self._drafter = drafter
        self._lengths = lengths
        self._measured = measured
        self._tally = tally
        self._clock = clock
        self._costs = StepCosts()
        self._budget = SpeculationBudget()
        self._all = Acceptance()
        self._each: dict[Sequence, Acceptance] = {}
        self._proposed: dict[Sequence, Guess] = {}
        self._idle = 0
        self._patience = PROBE_FIRST
        self._read_s = 0.0
        self.seconds = 0.0

    def limit(self, most: int) -> None:
        """Verify no more drafts of a sequence than that; at least one."""
        self._lengths = tuple(n for n in self._lengths if n <= most) or (max(1, most),)

    def propose(self, running: Iterable[Sequence]) -> Mapping[Sequence, tuple[int, ...]]:
        """Return the drafts that the next step should verify."""
        begun_s = self._clock()
        decoding = [s for s in running if s.num_tokens - s.num_computed == 1]
        most = {
            s: min(self._lengths[-1], s.remaining - 1)
            for s in decoding
            if s.remaining > 1 and _wanted(s.request.parameters)
        }
        self._proposed, self._read_s = {}, 0.0
        if self._drafter.costly:
            offers = {s: (self._of(s).expected(SUREST), count) for s, count in most.items()}
            asked = self._worth(offers, len(decoding))
            drafts = self._guess(asked) if asked else {}
            lengths = {s: len(draft.tokens) for s, draft in drafts.items()}
        else:
            drafts = self._guess(most)
            lengths = self._worth(
                {s: (self._of(s).expected(d.strength), len(d.tokens)) for s, d in drafts.items()},
                len(decoding),
            )
        self._proposed = drafts
        self.seconds = self._clock() - begun_s
        return {s: drafts[s].tokens[:length] for s, length in lengths.items()}

    def learn(self, plan: StepPlan, outcome: Outcome) -> None:
        """Compare what was guessed with what was drawn, and what it took."""
        drawn: dict[Sequence, list[int]] = {s: [] for s in self._proposed}
        for token in outcome.drawn:
            if token.sequence in drawn:
                drawn[token.sequence].append(token.token)
        for sequence, draft in self._proposed.items():
            right = num_right(draft.tokens[: len(drawn[sequence])], drawn[sequence])
            tested = min(right + 1, len(draft.tokens), len(drawn[sequence]))
            self._of(sequence).observe(draft.strength, right=right, tested=tested)
        self._count(plan, outcome)
        drafts = sum(len(span.drafts) for span in plan.spans)
        rows = sum(span.decodes for span in plan.spans)
        gained = -self._costs.in_plain_steps(rows, self._read_s)
        if plan.spans and not outcome.failed and all(span.known == 1 for span in plan.spans):
            gained += self._measure(len(plan.spans), drafts, outcome)
        self._budget.take(gained)
        if drafts and self._idle:  # they were tried although nothing was to be gained
            self._idle, self._patience = 0, min(2 * self._patience, PROBE_EVERY)
        if len(self._each) > 2 * len(plan.spans) + SPARE:
            self._each = {span.sequence: self._of(span.sequence) for span in plan.spans}

    def _measure(self, rows: int, drafts: int, outcome: Outcome) -> float:
        """Learn what a step of decoding alone took; return what it gained, in steps without drafts.

        Guesses that cost nothing are a part of those, too, since they are always made.
        """
        seconds = outcome.model_s
        if drafts or not self._drafter.costly:
            seconds += self.seconds - self._read_s
        self._costs.observe(rows, drafts, seconds)
        took = self._costs.in_plain_steps(rows, seconds)
        tokens = sum(1 + len(span.drafts) for span in outcome.computed)
        return tokens / rows - took if drafts and took else 0.0

    def _guess(self, asked: Mapping[Sequence, int]) -> dict[Sequence, Guess]:
        """Return drafts that may follow."""
        read = not self._measured or self._budget.for_trials
        guesses = self._drafter.draft(asked, read=read)
        self._read_s = self._drafter.read_s
        found = ((s, _possible(s, guess)) for s, guess in guesses.items())
        return {sequence: guess for sequence, guess in found if guess is not None}

    def _worth(
        self, offers: Mapping[Sequence, tuple[float, int]], rows: int
    ) -> dict[Sequence, int]:
        """Return how many drafts to verify of those that have some."""
        if not self._measured:
            return {s: min(most, self._lengths[-1]) for s, (_, most) in offers.items()}
        if not offers or not self._costs.is_known(rows) or not self._budget.for_guesses:
            return {}
        values, lengths = list(offers.values()), self._lengths
        chosen = [0] * len(values)
        if bound := self._costs.most(rows, bold=self._budget.for_trials):
            time = partial(self._costs.time, rows)
            chosen = choose_lengths(values, rows=rows, time=time, lengths=lengths, budget=bound)
        self._idle = 0 if any(chosen) else self._idle + 1
        if self._budget.for_trials and (not bound or self._idle >= self._patience):
            few = max(PROBE_LEAST, rows // 2)
            chosen = choose_lengths(
                values, rows=rows, time=lambda _: 1.0, lengths=lengths, budget=few
            )
        return {s: length for s, length in zip(offers, chosen, strict=True) if length}

    def _of(self, sequence: Sequence) -> Acceptance:
        if sequence not in self._each:
            self._each[sequence] = Acceptance(self._all)
        return self._each[sequence]

    def _count(self, plan: StepPlan, outcome: Outcome) -> None:
        for span in plan.spans:
            if span.decodes:
                self._tally.observe("draft_length", len(span.drafts))
                self._tally.add("drafted_tokens", len(span.drafts))
        for span in outcome.computed:
            if span.decodes:
                self._tally.observe("run_tokens", 1 + len(span.drafts))
                self._tally.add("accepted_tokens", len(span.drafts))


def open_speculation(
    settings: EngineSettings, tally: Tally, clock: Callable[[], float], drafter: Drafter | None
) -> Speculation | None:
    """Return what settings ask for: None, or guesses by this drafter, else by the text itself."""
    if settings.speculation is SpeculationMode.OFF:
        return None
    return Speculation(
        drafter or NgramDrafter(),
        settings.draft_lengths,
        measured=not settings.num_speculative_tokens,
        tally=tally,
        clock=clock,
    )


def _wanted(parameters: Parameters) -> bool:
    """Return whether tokens of a request may be guessed; beams do not draw theirs."""
    return parameters.speculation and parameters.beam_width == 1


def _possible(sequence: Sequence, guess: Guess) -> Guess | None:
    """Return as much of a guess as the text may have: to its end, and within its structure."""
    tokens = guess.tokens
    if sequence.guide is not None:
        tokens = tokens[: sequence.guide.fitting(tokens)]
    for place, token in enumerate(tokens, 1):
        if token in sequence.ends:
            tokens = tokens[:place]
            break
    return Guess(tokens, guess.strength) if tokens else None
