"""How one request wants its tokens drawn, and the random number of each of its positions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

import numpy as np

from ge_backend.errors import InvalidRequest
from ge_backend.tensors import Array

__all__ = ["FACTORS", "GREEDY_BELOW", "BadWords", "Biases", "Sampling", "uniform"]

GREEDY_BELOW = 1e-5  # dividing by less would only overflow
FACTORS = (1e-20, 1e20)  # least and greatest: scores times or through more are no FP32 numbers
_GAMMA = 0x9E3779B97F4A7C15


class Biases(dict[int, float]):
    """What is added to the scores of tokens; one for all samples of a request, never changed."""

    @classmethod
    def of(cls, given: Mapping[int, float]) -> Biases:
        """Return these biases.

        Raises:
            InvalidRequest: one of them is not finite.
        """
        for token, bias in given.items():
            if not math.isfinite(bias):
                raise InvalidRequest(f"logit_bias of token {token} is {bias}; it has to be finite")
        return cls(given)

    @cached_property
    def arrays(self) -> tuple[Array, Array]:
        """Tokens, int64 [K], and their biases, float32 [K]."""
        return np.array(list(self), np.int64), np.array(list(self.values()), np.float32)


class BadWords(tuple[tuple[int, ...], ...]):  # noqa: SLOT001 - keeps what it makes
    """Sequences of tokens that are not to be; one for all samples of a request."""

    @classmethod
    def of(cls, given: Iterable[tuple[int, ...]]) -> BadWords:
        """Return these words.

        Raises:
            InvalidRequest: one of them has no token.
        """
        words = cls(given)
        if any(not word for word in words):
            raise InvalidRequest("bad_words has a word without tokens; leave it out")
        return words

    def last_tokens(self, prompt: Array, output: Array) -> list[int]:
        """Return the last tokens of those words whose others end a text, int64 [P] and [O]."""
        if not self:
            return []
        most = max(1, *self._by_length)
        known = tuple(np.concatenate((prompt[-most:], output[-most:])).tolist())
        return [
            last
            for length, words in self._by_length.items()
            if length <= len(known)
            for last in words.get(known[len(known) - length :], ())
        ]

    @cached_property
    def _by_length(self) -> dict[int, dict[tuple[int, ...], list[int]]]:
        """Last tokens, by how many others there are and by those."""
        found: dict[int, dict[tuple[int, ...], list[int]]] = {}
        for *others, last in self:
            found.setdefault(len(others), {}).setdefault(tuple(others), []).append(last)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """One request's wishes, under vLLM's names, ranges and defaults.

    They are applied in vLLM's order: bad words and forbidden tokens, `logit_bias`, the penalties
    (repetition over prompt and output, presence and frequency over the output), temperature,
    `min_p`, `top_k`, `top_p`.

    Attributes:
        temperature: below `GREEDY_BELOW` the best token is taken, the lowest id where several are.
        top_k: 0 or -1 is off.
        logit_bias: any mapping may be given.
        bad_words_ids: token sequences whose last token is never drawn after the others; any tuple
            of them may be given.
        seed: random numbers follow from it and the position alone, see `uniform`.
        logprobs: this many best tokens come back with each drawn one; None is no log-probabilities,
            0 the drawn token's alone.

    Raises:
        InvalidRequest: a value is outside of its range; the message names both.

    Source: vllm-project/vllm, vllm/sampling_params.py, `SamplingParams._verify_args`.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Biases = field(default_factory=Biases)
    bad_words_ids: BadWords = field(default_factory=BadWords)
    seed: int = 0
    logprobs: int | None = None

    def __post_init__(self) -> None:
        low, high = FACTORS
        for name, fits, allowed in (
            ("temperature", 0 <= self.temperature <= high, f"from 0 to {high}"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("top_k", self.top_k >= -1, "1 or more; 0 and -1 are off"),
            ("min_p", 0 <= self.min_p <= 1, "from 0 to 1"),
            ("repetition_penalty", low <= self.repetition_penalty <= high, f"from {low} to {high}"),
            ("presence_penalty", -2 <= self.presence_penalty <= 2, "from -2 to 2"),  # noqa: PLR2004
            ("frequency_penalty", -2 <= self.frequency_penalty <= 2, "from -2 to 2"),  # noqa: PLR2004
            ("logprobs", (self.logprobs or 0) >= 0, "0 or more"),
        ):
            value = getattr(self, name)
            if not fits or (value is not None and not math.isfinite(value)):
                raise InvalidRequest(f"{name} is {value}; it has to be {allowed}")
        if not isinstance(self.logit_bias, Biases):
            object.__setattr__(self, "logit_bias", Biases.of(self.logit_bias))
        if not isinstance(self.bad_words_ids, BadWords):
            object.__setattr__(self, "bad_words_ids", BadWords.of(self.bad_words_ids))

    @property
    def greedy(self) -> bool:
        """Whether the best token is taken and no random number is needed."""
        return self.temperature < GREEDY_BELOW

    def check_vocabulary(self, vocabulary: int) -> None:
        """Raise where a token id is not one of the model's.

        Raises:
            InvalidRequest: names the setting, the id and the vocabulary.
        """
        named = {
            "logit_bias": self.logit_bias,
            "bad_words": chain.from_iterable(self.bad_words_ids),
        }
        for name, ids in named.items():
            for token in ids:
                if not 0 <= token < vocabulary:
                    raise InvalidRequest(
                        f"{name} has token {token}; the model's tokens are 0 to {vocabulary - 1}"
                    )


def uniform(seeds: Array, positions: Array) -> Array:
    """Return float64 [S] from [0, 1) by nothing but seeds and positions, int64 [S] each.

    Seeds have any value, positions are 0 or more. It is the position-th output of SplitMix64 whose
    state is the mixed seed; 32 bits of it.
    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    state = _mixed(seeds.astype(np.int64).view(np.uint64))
    steps = (positions.astype(np.uint64) + np.uint64(1)) * np.uint64(_GAMMA)
    numbers: Array = (_mixed(state + steps) >> np.uint64(32)) / 2**32
    return numbers


def _mixed(words: Array) -> Array:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    words = words ^ (words >> np.uint64(31))
    return words  # noqa: RET504 - numpy's operators have no type of their own
