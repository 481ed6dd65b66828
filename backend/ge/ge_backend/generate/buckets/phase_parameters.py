"""What bucketing for paged attention needs to know: the model, the budget, the cache.

Two phases: a *prompt* run takes many new tokens of few sequences, a *decode* run one token of many.
Their buckets are (sequences, new tokens, blocks of context in the key/value cache). The rules are
those of vLLM's plugin for Gaudi.

Source: vllm-project/vllm-gaudi@091bbadd.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from ge_backend.errors import ConfigError

__all__ = [
    "Phase",
    "PhaseParameters",
    "PhaseStrategy",
    "SlidingWindow",
    "chosen_strategy",
    "log2_ceil",
]


class Phase(Enum):
    """Which kind of run a bucket is for."""

    PROMPT = "prompt"
    DECODE = "decode"


class PhaseStrategy(Enum):
    """How the values of an axis are spaced."""

    EXPONENTIAL = "exponential"
    LINEAR = "linear"
    PADDING_AWARE = "padding_aware"


def chosen_strategy(name: str = "exp", *, exponential: bool | None = None) -> PhaseStrategy:
    """Return the strategy that the plugin's settings mean: `exp`, `lin` or `pad`.

    Args:
        name: the setting.
        exponential: the older on/off setting, which wins where it is given.

    Raises:
        ConfigError: there is no such name.
    """
    if exponential is not None:
        return PhaseStrategy.EXPONENTIAL if exponential else PhaseStrategy.LINEAR
    for strategy in PhaseStrategy:
        if name in (strategy.value, strategy.value[:3]):
            return strategy
    raise ConfigError(f"bucketing strategy {name!r} is unknown; known are exp, lin, pad")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindow:
    """Sliced attention: context-free prompts from `threshold` on must be multiples of `slice`."""

    threshold: int = 8192
    slice: int = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseParameters:
    """The numbers that prompt and decode buckets follow from.

    Attributes:
        max_seqs: sequences in a decode run.
        max_prefill_seqs: sequences in a prompt run.
        block_tokens: tokens in one block of the key/value cache.
        max_batch_tokens: new tokens in one run.
        max_model_tokens: tokens of one sequence.
        num_blocks: blocks that the cache has; 0 before that is known.
        contiguous: paged attention reads the cache as one range, so a run's context is as long as
            the highest block in use.
        merged_prefill: several prompts run as one sequence.
        speculative_tokens: tokens guessed per sequence and decode run; 0 for none.
        clamp_decode_context: keep decode context within three times the cache.
        mamba_chunk: tokens per chunk of a state-space model; 0 for none.
        mamba_chunk_explicit: the chunk was configured, so prompts are rounded up to it.
        sliding_window: see there; None for none.
        overrides: numbers that replace a rule's own, by keys such as `prompt.query.step`: phase
            (prompt, decode), axis (batch, query, context), and min, step, max, pad_max or
            pad_percent. Exponential rules heed `prompt.query.min` if it is 1, and
            `prompt.context.max`; others heed all.
    """

    max_seqs: int
    max_prefill_seqs: int
    block_tokens: int
    max_batch_tokens: int
    max_model_tokens: int
    num_blocks: int = 0
    contiguous: bool = False
    merged_prefill: bool = False
    speculative_tokens: int = 0
    clamp_decode_context: bool = True
    mamba_chunk: int = 0
    mamba_chunk_explicit: bool = False
    sliding_window: SlidingWindow | None = None
    overrides: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        for name in (
            "max_seqs",
            "max_prefill_seqs",
            "block_tokens",
            "max_batch_tokens",
            "max_model_tokens",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected at least 1")
        if self.mamba_chunk and self.max_batch_tokens % self.mamba_chunk:
            raise ConfigError(
                f"max_batch_tokens is {self.max_batch_tokens}, expected a multiple of mamba_chunk, "
                f"which is {self.mamba_chunk}"
            )

    def overridden(self, key: str, default: int) -> int:
        """Return the override of that key, or the rule's own number."""
        return self.overrides.get(key, default)

    def blocks(self, tokens: int) -> int:
        """Return how many whole blocks so many tokens fill; negative for fewer than none."""
        return tokens // self.block_tokens

    def blocks_up(self, tokens: int) -> int:
        """Return how many blocks hold so many tokens."""
        return -(-tokens // self.block_tokens)


def log2_ceil(number: int) -> int:
    """Return ceil(log2(number)) for a number from 1 up."""
    return (number - 1).bit_length()
