"""Beam search: several beginnings of one answer go on side by side, and the best whole one counts.

Each turn every beam offers its best next tokens. Of all these offers the best that do not end go
on, as many as there are beams; those that end compete for the answer by their log-probability over
length ** `length_penalty`. A beam from which several go on is forked, one from which none does
leaves: blocks of the cache are shared as far as texts are equal.

The beams of a request run together and leave together; who had to make room begins again with the
prompt, and comes to the same answer.

Source: huggingface/transformers, generation/utils.py, `_beam_search`: scores, ends, and when no
running beam can win any more are the same.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, replace

import numpy as np

from ge_backend.errors import GraphFailed
from ge_backend.tensors import Array
from ge_text.engine.parameters import EarlyStopping, Parameters
from ge_text.engine.runner import DrawnToken
from ge_text.engine.scheduler import Scheduler
from ge_text.engine.sequence import Sequence

__all__ = ["BeamGroup", "BeamPath", "BeamSearch"]


@dataclass(frozen=True, slots=True)
class BeamPath:
    """What a beam has drawn.

    Attributes:
        score: sum of the log-probabilities, float32; of a whole one divided by the length penalty.
        logprobs: of each token.
    """

    score: np.float32 = np.float32(0.0)  # noqa: RUF009 - immutable
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()


class BeamSearch:
    """Which beams go on, and which texts are the best so far; pure.

    Attributes:
        whole: complete texts, best first; as many as there are beams at most.
    """

    def __init__(self, asked: Parameters, ends: frozenset[int], max_output: int) -> None:
        self.whole: list[BeamPath] = []
        self._asked = asked
        self._ends = ends
        self._ending = np.array(sorted(ends), np.int64)
        self._max_output = max_output
        self._paths = [BeamPath()]
        self._improvable = True

    def turn(self, offers: Many[tuple[Array, Array]]) -> list[tuple[int, int]]:
        """Return what goes on: the place of a beam and its next token, best first; [] at the end.

        Args:
            offers: of each beam its best tokens and their log-probabilities, best first.
        """
        asked, width = self._asked, self._asked.beam_width
        length = len(self._paths[0].tokens) + 1
        kept = self._best(offers)
        over = [path.tokens[-1] in self._ends or length == self._max_output for _, path in kept]
        full = len(self.whole) == width and asked.early_stopping is EarlyStopping.TRUE
        if self._improvable and not full:
            penalty = np.float32(length**asked.length_penalty)
            ended = [path for (_, path), ends in zip(kept[:width], over, strict=False) if ends]
            self.whole += [replace(path, score=path.score / penalty) for path in ended]
            self.whole = sorted(self.whole, key=lambda path: -path.score)[:width]
        going = [one for one, ends in zip(kept, over, strict=True) if not ends][:width]
        self._paths = [path for _, path in going]
        if not going or not self._may_win(length):
            return []
        return [(place, path.tokens[-1]) for place, path in going]

    def _best(self, offers: Many[tuple[Array, Array]]) -> list[tuple[int, BeamPath]]:
        """Return the ways to go on or end, best first, each with the place of its beam.

        They are the best ones, as many as there are beams, and the best of those that go on, as
        many. Of ways with the same score that of the earlier beam comes first, and the lower token.
        """
        tokens, logprobs = map(np.concatenate, zip(*offers, strict=True))
        places = np.repeat(np.arange(len(offers)), [len(offered) for offered, _ in offers])
        scores = np.array([path.score for path in self._paths])[places] + logprobs
        ends = np.isin(tokens, self._ending)
        order = np.lexsort((tokens, places, -scores))
        if len(self._paths[0].tokens) < self._asked.min_tokens:
            order = order[~ends[order]]
        rank, width = np.arange(len(order)), self._asked.beam_width
        kept = order[np.union1d(rank[:width], rank[~ends[order]][:width])]
        return [
            (place, _longer(self._paths[place], score, token, logprob))
            for place, score, token, logprob in zip(
                places[kept].tolist(),
                scores[kept],
                tokens[kept].tolist(),
                logprobs[kept].tolist(),
                strict=True,
            )
        ]

    def _may_win(self, length: int) -> bool:
        """Return whether a beam that goes on may still become one of the best."""
        asked = self._asked
        if len(self.whole) < asked.beam_width:
            return True
        if asked.early_stopping is EarlyStopping.TRUE:
            return False
        longest = asked.early_stopping is EarlyStopping.NEVER and asked.length_penalty > 0
        penalty = np.float32((self._max_output if longest else length) ** asked.length_penalty)
        possible = self._paths[0].score / penalty
        self._improvable = self._improvable and bool(possible > self.whole[-1].score)
        return self._improvable


class BeamGroup:
    """The sequences of one request's beams.

    Args:
        sequence: of the prompt; it does not run yet.
        scheduler: gets the sequences that they become.

    Attributes:
        sequences: in the order of the search; they have this list as their `group`.
        best: the best texts, best first, once they are certain; until then None.
    """

    def __init__(self, sequence: Sequence, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.sequences = [sequence]
        self.best: list[BeamPath] | None = None
        self._search = BeamSearch(sequence.request.parameters, sequence.ends, sequence.max_output)
        self._offers: dict[Sequence, tuple[Array, Array]] = {}
        # A beam goes on in as many ways as there are beams, at most, beside those that end it.
        count = sequence.request.parameters.beam_width + len(sequence.ends)
        sequence.sampling = replace(sequence.sampling, temperature=0.0, logprobs=count)
        sequence.group = self.sequences

    def take(self, drawn: DrawnToken) -> None:
        """Take what a beam may go on with; once all have, let them go on."""
        first = drawn.sequence
        if drawn.top is None:
            raise GraphFailed("a beam got a token without the best ones beside it")
        if not first.num_output:  # also where it had to begin again
            asked = first.request.parameters
            self._search = BeamSearch(asked, first.ends, first.max_output)
            self._offers.clear()
        self._offers[first] = drawn.top
        if len(self._offers) < len(self.sequences):
            return
        offers = [self._offers[sequence] for sequence in self.sequences]
        self._offers.clear()
        going = self._search.turn(offers)
        if going:
            self._go_on(going)
        else:
            self.best = self._search.whole

    def _go_on(self, going: Many[tuple[int, int]]) -> None:
        """Let sequences be those of the beams that go on: their own, or forks of them."""
        before = list(self.sequences)
        after: list[Sequence] = []
        for place, _ in going:
            beam = before[place]
            if beam in after:
                fork = beam.fork()
                self._scheduler.fork(beam, fork)
                beam = fork
            after.append(beam)
        for sequence in before:
            if sequence not in after:
                self._scheduler.remove(sequence)
        for sequence, (_, token) in zip(after, going, strict=True):
            sequence.append(token)
        self.sequences[:] = after


def _longer(path: BeamPath, score: np.float32, token: int, logprob: float) -> BeamPath:
    return BeamPath(score, (*path.tokens, token), (*path.logprobs, logprob))
