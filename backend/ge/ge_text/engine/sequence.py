"""A request for text, its limits, and each text in the making: its tokens, how many are cached.

    [ prompt ............ | output ....... ]
    [ computed .......... | to be computed ]   num_computed <= num_tokens

Everything else follows: a sequence whose prompt is long, one that had to start over, one that came
with tokens of another engine and one that waits for its next token are all the same to a scheduler.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import NamedTuple

import numpy as np

from ge_backend.errors import CONTEXT_LENGTH, InvalidRequest
from ge_backend.tensors import Array
from ge_text.engine.parameters import MAX_BEAMS, Parameters
from ge_text.engine.update import Finish
from ge_text.models.adapter import StoredAdapter
from ge_text.models.base import SavedBlocks
from ge_text.models.batch import SampleRow
from ge_text.models.sampling import Sampling
from ge_text.models.structure import Guide

__all__ = [
    "BlockContent",
    "GenerationRequest",
    "Limits",
    "Sequence",
    "SequenceState",
    "make_sequence",
]

_SEEDS = 2**64


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A prompt and what is to become of it.

    Attributes:
        id: chosen by the one that submits it; no two live requests of an engine share one.
        timeout_s: it ends with an error when that much time has passed; None: never.
        generated: where another engine has begun it: the tokens of each sample so far, None for a
            sample that has ended. It goes on with the very tokens that it would have had.
        guide: at the beginning of the structure that each sample has to keep to; None: of none.
        adapter: what changes the model for it; None: nothing does.
        again: another engine had taken it on: however many wait, it is not refused for them.
    """

    id: str
    prompt: tuple[int, ...]
    parameters: Parameters = field(default_factory=Parameters)
    timeout_s: float | None = None
    generated: tuple[tuple[int, ...] | None, ...] = ()
    guide: Guide | None = None
    adapter: StoredAdapter | None = None
    again: bool = False

    def samples(self) -> list[tuple[int, tuple[int, ...]]]:
        """Return index and tokens so far of each sample that has not ended.

        A beam search has one.
        """
        if self.parameters.beam_width > 1:
            return [(0, ())]
        tokens = self.generated or ((),) * self.parameters.n
        return [(index, given) for index, given in enumerate(tokens) if given is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an engine can hold of one sequence.

    Attributes:
        vocabulary: tokens are 0 to this, without it.
        max_positions: prompt and output together.
        cache_tokens: tokens that fit into the whole cache.
        block_size: tokens of one block of it.
        max_seqs: sequences that run at once.
    """

    vocabulary: int
    max_positions: int
    cache_tokens: int
    block_size: int = 1
    max_seqs: int = MAX_BEAMS

    @property
    def max_length(self) -> int:
        """Prompt and output together; the last token's keys are never needed."""
        return min(self.max_positions, self.cache_tokens + 1)

    def output_tokens(self, request: GenerationRequest) -> int:
        """Return how many tokens a sample of this request may have.

        Raises:
            InvalidRequest: the request can never be served; names the limit.
        """
        parameters = request.parameters
        self.check_tokens("prompt", request.prompt)
        self.check_tokens("stop_token_ids", parameters.stop_token_ids)
        if parameters.sampling.logit_bias or parameters.sampling.bad_words_ids:
            parameters.sampling.check_vocabulary(self.vocabulary)
        longest, sharing = self.max_length, ""
        if parameters.beam_width > 1:
            longest = self._longest_of_beams(request)
            sharing = f", which {parameters.beam_width} beams share"
        least = max(parameters.max_tokens or 1, parameters.min_tokens)
        if not request.prompt:
            raise InvalidRequest("the prompt has no token; it has to have at least one")
        if len(request.prompt) + least > longest:
            why = (
                f"the model has {self.max_positions} positions"
                if self.max_positions <= longest
                else f"the cache has room for {self.cache_tokens} tokens{sharing}"
            )
            raise InvalidRequest(
                f"{CONTEXT_LENGTH} {longest} tokens, of prompt and output together: a prompt of "
                f"{len(request.prompt)} and an output of {least} are more, and {why}; shorten the "
                "prompt or lower max_tokens"
            )
        room = longest - len(request.prompt)
        own = max(parameters.max_new_tokens or room, parameters.min_tokens)
        most = parameters.max_tokens or min(room, own)
        if request.generated:
            self._check_resumed(request, most)
        return most

    def _longest_of_beams(self, request: GenerationRequest) -> int:
        """Return how long prompt and output may be together, with a share of the cache per beam."""
        beams = request.parameters.beam_width
        if beams > min(self.max_seqs, self.vocabulary):
            raise InvalidRequest(
                f"beam_width is {beams}; the model has {self.vocabulary} tokens and runs "
                f"{self.max_seqs} sequences at once (max_num_seqs)"
            )
        shared = len(request.prompt) // self.block_size
        each = (self.cache_tokens // self.block_size - shared) // beams
        return min(self.max_positions, (shared + each) * self.block_size + 1)

    def _check_resumed(self, request: GenerationRequest, most: int) -> None:
        if request.parameters.beam_width > 1:
            return
        if len(request.generated) != request.parameters.n:
            raise InvalidRequest(
                f"tokens of {len(request.generated)} samples came to go on from; "
                f"n is {request.parameters.n}"
            )
        for _, given in request.samples():
            self.check_tokens("generated", given)
            if len(given) >= most:
                raise InvalidRequest(
                    f"a sample that is to go on has {len(given)} tokens; it may have {most}"
                )

    def check_tokens(self, name: str, tokens: Many[int]) -> None:
        """See that tokens are the model's; `name` is for messages.

        Raises:
            InvalidRequest: one of them is not.
        """
        for token in (min(tokens), max(tokens)) if tokens else ():
            if not 0 <= token < self.vocabulary:
                raise InvalidRequest(
                    f"{name} has token {token}; the model's tokens are 0 to {self.vocabulary - 1}"
                )


class BlockContent(NamedTuple):
    """What determines the keys and values of a full block; equal contents are equal keys.

    Attributes:
        before: a digest of all tokens before it in its text and of whatever else its keys follow
            from; see `PrefixCache`.
        tokens: its own.
    """

    before: bytes
    tokens: bytes


class SequenceState(Enum):
    """Where a sequence is."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """See above; compared by identity.

    Attributes:
        key: the order of being served, constant in time: a time, and the order of coming for ties.
        sampling: the request's, with the seed of this sample.
        num_prompt: tokens that were given.
        max_output: tokens that it may have beside them.
        ends: tokens that end it, once `least` are known.
        num_tokens: known tokens, prompt and output.
        num_computed: tokens whose keys and values are in the cache.
        blocks: of the cache, in order.
        swapped: how many of them are in host memory instead.
        saved: those.
        leader: another sample of the same prompt, whose blocks it may share.
        begun: it has run, though it may wait again.
        proven: a token was drawn from what it has computed, which therefore are numbers.
        group: sequences that run and leave together, itself included; the first begins again.
        guide: where it is in the structure that it has to keep to, which then says alone when the
            text may end: `min_tokens` and `ignore_eos` do not.
        last_s: when its latest token was drawn here; 0 before there is one.
        adapter: key of what changes the model for it; "": nothing does.
        contents: of its first full blocks, as far as they were asked for.
        labelled: how many of its blocks, from the first on, can be found by their contents.
        found: how many tokens of its prompt were in the cache when it first began.
    """

    request: GenerationRequest
    sample: int
    key: tuple[float, int]
    sampling: Sampling
    num_prompt: int
    max_output: int
    ends: frozenset[int]
    least: int
    num_tokens: int
    num_computed: int = 0
    blocks: array[int] = field(default_factory=lambda: array("q"))
    state: SequenceState = SequenceState.WAITING
    swapped: int = 0
    saved: SavedBlocks | None = None
    leader: Sequence | None = None
    begun: bool = False
    proven: bool = False
    group: list[Sequence] | None = None
    guide: Guide | None = None
    last_s: float = 0.0
    adapter: str = ""
    contents: list[BlockContent] = field(default_factory=list)
    labelled: int = 0
    found: int = 0
    _ids: Array

    @property
    def num_output(self) -> int:
        """Tokens drawn so far, here or elsewhere."""
        return self.num_tokens - self.num_prompt

    @property
    def remaining(self) -> int:
        """Tokens that it may still get."""
        return self.max_output - self.num_output

    @property
    def num_beams(self) -> int:
        """How many sequences it may become: its group's, where it is the only one of it."""
        alone = self.group is not None and len(self.group) == 1
        return self.request.parameters.beam_width if alone else 1

    def fork(self) -> Sequence:
        """Return another one with the same tokens, which has no blocks yet."""
        return replace(
            self,
            blocks=array("q"),
            contents=list(self.contents),
            labelled=0,
            _ids=self._ids.copy(),
        )

    def restart(self) -> None:
        """Forget all output."""
        self.num_tokens, self.proven = self.num_prompt, False
        self.contents.clear()

    def ids(self, start: int, stop: int) -> Array:
        """Return int64 tokens from `start` to `stop`: a view, valid until the next `append`."""
        return self._ids[start:stop]

    def append(self, token: int) -> None:
        """Take a token that was drawn."""
        if self.num_tokens == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
        self._ids[self.num_tokens] = token
        self.num_tokens += 1
        self.proven = True
        if self.guide is not None:
            self.guide.advance(token)

    def finish(self) -> Finish | None:
        """Return why the sequence ends with its latest token, if it does."""
        if int(self._ids[self.num_tokens - 1]) in self.ends and self.num_tokens >= self.least:
            return Finish.STOP
        if self.guide is not None and self.guide.complete:
            return Finish.COMPLETE
        return Finish.LENGTH if self.num_output >= self.max_output else None

    def sample_row(self, drafts: tuple[int, ...] = ()) -> SampleRow:
        """Return what drawing the token behind the known ones, and these drafts, needs."""
        output = self._ids[self.num_prompt : self.num_tokens]
        position = self.num_tokens + len(drafts)
        return SampleRow(
            sampling=self.sampling,
            position=position,
            prompt=self._ids[: self.num_prompt],
            output=np.concatenate((output, drafts)) if drafts else output,
            forbidden=tuple(self.ends) if position < self.least else (),
            allowed=None if self.guide is None else partial(self.guide.mask, drafts),
        )


def make_sequence(
    request: GenerationRequest,
    sample: int,
    *,
    given: tuple[int, ...],
    key: tuple[float, int],
    max_output: int,
    eos: tuple[int, ...],
) -> Sequence:
    """Return a sequence that goes on from a prompt and the tokens that were drawn before."""
    parameters = request.parameters
    tokens = request.prompt + given
    ids = np.zeros(max(64, 2 * len(tokens)), np.int64)
    ids[: len(tokens)] = tokens
    guide = None if request.guide is None else request.guide.fork()
    if guide is not None:
        for token in given:
            guide.advance(token)
    ignore_eos = parameters.ignore_eos and guide is None
    ends = parameters.stop_token_ids + (() if ignore_eos else eos)
    return Sequence(
        request=request,
        sample=sample,
        key=key,
        sampling=_sampling_of(parameters.sampling, sample) if sample else parameters.sampling,
        num_prompt=len(request.prompt),
        max_output=max_output,
        ends=frozenset(ends),
        least=len(request.prompt) + parameters.min_tokens if guide is None else 0,
        num_tokens=len(tokens),
        guide=guide,
        adapter=request.adapter.key if request.adapter else "",
        _ids=ids,
    )


def _sampling_of(sampling: Sampling, sample: int) -> Sampling:
    """Return the sampling with this sample's seed, which stays within 64 bits."""
    seed = (sampling.seed + sample + _SEEDS // 2) % _SEEDS - _SEEDS // 2
    return replace(sampling, seed=seed)
