"""One request for text, and what a model with its cache can hold of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ge_backend.errors import CONTEXT_LENGTH, InvalidRequest
from ge_text.engine.parameters import MAX_BEAMS, Parameters
from ge_text.models.adapter import StoredAdapter
from ge_text.models.structure import Guide

__all__ = ["GenerationRequest", "Limits"]


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
        longest = self.max_length
        if parameters.beam_width > 1:
            longest = self._longest_of_beams(request)
        least = max(parameters.max_tokens or 1, parameters.min_tokens)
        if not request.prompt:
            raise InvalidRequest("the prompt has no token; it has to have at least one")
        if len(request.prompt) + least > longest:
            why = (
                f"the model has {self.max_positions} positions"
                if self.max_positions <= longest
                else f"the cache has room for {self.cache_tokens} tokens"
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

    def check_tokens(self, name: str, tokens: Sequence[int]) -> None:
        """See that tokens are the model's; `name` is for messages.

        Raises:
            InvalidRequest: one of them is not.
        """
        for token in (min(tokens), max(tokens)) if tokens else ():
            if not 0 <= token < self.vocabulary:
                raise InvalidRequest(
                    f"{name} has token {token}; the model's tokens are 0 to {self.vocabulary - 1}"
                )
