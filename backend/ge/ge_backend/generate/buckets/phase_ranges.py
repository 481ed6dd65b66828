"""From parameters to the three axes of a phase: the numbers of each rule, and the values they make.

An axis' numbers are (min, step, max, limit) for exponential spacing, (min, step, max) for linear,
and (min, step, max, pad_max, pad_percent) for padding-aware.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ge_backend.buckets import strategies
from ge_backend.errors import ConfigError
from ge_backend.generate.buckets.phase_parameters import (
    Phase,
    PhaseParameters,
    PhaseStrategy,
    log2_ceil,
)

__all__ = ["LONG_CONTEXT_TOKENS", "PhaseRule", "phase_numbers", "phase_ranges"]

Numbers = tuple[int, ...]
Axes = tuple[Numbers, Numbers, Numbers]

LONG_CONTEXT_TOKENS = 8192
PAD_PERCENT = 25
DECODE_SEQS_STEP = 32
# Without contiguous attention blocks are shared: a run may name each of them several times.
SHARED_BLOCKS = 3
MERGED_STEP = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRule:
    """How axes are spaced, and whether rounding repeats the reference's float64."""

    strategy: PhaseStrategy = PhaseStrategy.EXPONENTIAL
    compat: bool = False


def phase_numbers(given: PhaseParameters, phase: Phase, rule: PhaseRule) -> Axes:
    """Return the numbers of the batch, query and context axes.

    Raises:
        ConfigError: decode buckets are asked for before the cache's size is known.
    """
    if phase is Phase.DECODE and given.num_blocks < 1:
        raise ConfigError(f"num_blocks is {given.num_blocks}, decode buckets need at least 1")
    return _NUMBERS[phase, rule.strategy](given)


def phase_ranges(given: PhaseParameters, phase: Phase, rule: PhaseRule) -> Axes:
    """Return the values of the batch, query and context axes.

    Raises:
        ConfigError: a rule's numbers are out of range, such as min above max.
    """
    axes = (_values(numbers, given, rule) for numbers in phase_numbers(given, phase, rule))
    batch, query, context = axes
    if phase is Phase.DECODE and given.contiguous and context[-1] < given.num_blocks:
        context = (*context, given.num_blocks)
    if phase is Phase.PROMPT and given.mamba_chunk_explicit:
        chunk = max(given.mamba_chunk, 1)
        query = tuple(sorted({-(-size // chunk) * chunk for size in query}))
    return batch, query, context


def _values(numbers: Numbers, given: PhaseParameters, rule: PhaseRule) -> tuple[int, ...]:
    if rule.strategy is PhaseStrategy.LINEAR:
        values = strategies.linear(*numbers)
    elif rule.strategy is PhaseStrategy.PADDING_AWARE:
        values = strategies.padding_aware(*numbers)
    else:
        values = strategies.exponential(*numbers, contiguous=given.contiguous, compat=rule.compat)
    if not values:
        raise ConfigError(f"(min, step, max) of {numbers} make no sizes; lower min or step")
    return values


def _exponential_prompt(given: PhaseParameters) -> Axes:
    single = given.overrides.get("prompt.query.min") == 1
    query_min = 1 if single else given.block_tokens
    cached = given.max_model_tokens - query_min
    if given.max_model_tokens >= LONG_CONTEXT_TOKENS:
        cached = given.max_model_tokens - given.max_batch_tokens
    context_max = max(1, given.blocks(cached))
    seqs, tokens = given.max_prefill_seqs, given.max_batch_tokens
    batch = (1, 2, seqs, log2_ceil(seqs) + 1)
    query = (query_min, given.block_tokens, tokens, max(log2_ceil(tokens), 1))
    context = (0, 1, context_max, max(log2_ceil(context_max), 1) + 1)
    if not given.merged_prefill:
        return batch, query, context
    merged = (0, MERGED_STEP, context_max * seqs, context[3])
    return (1, 1, 1, 1), (query_min, query[1] * MERGED_STEP, *query[2:]), merged


def _exponential_decode(given: PhaseParameters) -> Axes:
    seqs, blocks = given.max_seqs, given.num_blocks
    shared = SHARED_BLOCKS * blocks
    extra = 0
    most = given.blocks_up(given.max_model_tokens) * seqs
    if given.contiguous:
        most = min(most, blocks)
    elif given.clamp_decode_context:
        most = min(most, shared)
    if not given.contiguous and most > shared:
        extra = log2_ceil(-(-most // shared)) + 1
    limit = log2_ceil(most) + 1 + extra
    return (1, 2, seqs, log2_ceil(seqs) + 1), (1, 1, 1, 1), (1, seqs, most, limit)


def _linear_prompt(given: PhaseParameters) -> Axes:
    batch = _overridden(given, "prompt.batch", (1, 1, given.max_prefill_seqs))
    tokens = given.block_tokens
    query = _overridden(given, "prompt.query", (tokens, tokens, given.max_batch_tokens))
    context_max = given.blocks(given.max_model_tokens - query[0])
    return _prompt(given, batch, query, (0, 1, context_max))


def _padding_aware_prompt(given: PhaseParameters) -> Axes:
    seqs, tokens = given.max_prefill_seqs, given.block_tokens
    batch = _padded(given, "prompt.batch", (1, 1, seqs))
    query = _padded(given, "prompt.query", (tokens, tokens, given.max_batch_tokens))
    context_max = given.blocks_up(given.max_model_tokens - query[0])
    pad_max = given.blocks_up(given.max_batch_tokens)
    return _prompt(given, batch, query, (0, 2, context_max, pad_max, PAD_PERCENT))


def _prompt(given: PhaseParameters, batch: Numbers, query: Numbers, context: Numbers) -> Axes:
    """Return a prompt's axes, changed where prompts are merged, with the context's overrides."""
    if given.merged_prefill:
        batch = (1, 1, 1, *batch[3:])
        query = (query[0], query[1] * MERGED_STEP, *query[2:])
        context = (0, MERGED_STEP, context[2] * given.max_prefill_seqs, *context[3:])
    return batch, query, _overridden(given, "prompt.context", context)


def _linear_decode(given: PhaseParameters) -> Axes:
    batch = _overridden(given, "decode.batch", (1, DECODE_SEQS_STEP, given.max_seqs))
    default = max(given.blocks(given.max_model_tokens * given.max_seqs), given.block_tokens)
    if given.contiguous:
        default = given.num_blocks
    first, step, most = _overridden(given, "decode.context", (1, given.block_tokens, default))
    if given.contiguous:
        most = min(most, given.num_blocks)
    if first > most:
        first = max(1, most - step)
    return batch, (1, 1, 1), (first, step, most)


def _padding_aware_decode(given: PhaseParameters) -> Axes:
    batch = _padded(given, "decode.batch", (1, 2, given.max_seqs))
    tokens, blocks = given.block_tokens, given.num_blocks
    default = max(given.blocks_up(given.max_model_tokens * given.max_seqs), tokens)
    if given.contiguous:
        default = min(given.overridden("decode.context.max", blocks), blocks)
    first, step, most, *padding = _padded(given, "decode.context", (tokens, tokens, default))
    if given.contiguous:
        most = min(most, blocks)
    if first > blocks:
        first = max(1, blocks - step)
    return batch, (1, 1, 1, 1, 0), (first, step, most, *padding)


def _overridden(given: PhaseParameters, axis: str, numbers: Numbers) -> Numbers:
    names = ("min", "step", "max", "pad_max", "pad_percent")
    return tuple(given.overridden(f"{axis}.{n}", v) for n, v in zip(names, numbers, strict=False))


def _padded(given: PhaseParameters, axis: str, numbers: Numbers) -> Numbers:
    """Return an axis with overrides; padding is at most a quarter of its maximum, and 25 %."""
    bounds = _overridden(given, axis, numbers)
    return _overridden(given, axis, (*bounds, -(-bounds[2] // 4), PAD_PERCENT))


_NUMBERS: dict[tuple[Phase, PhaseStrategy], Callable[[PhaseParameters], Axes]] = {
    (Phase.PROMPT, PhaseStrategy.EXPONENTIAL): _exponential_prompt,
    (Phase.PROMPT, PhaseStrategy.LINEAR): _linear_prompt,
    (Phase.PROMPT, PhaseStrategy.PADDING_AWARE): _padding_aware_prompt,
    (Phase.DECODE, PhaseStrategy.EXPONENTIAL): _exponential_decode,
    (Phase.DECODE, PhaseStrategy.LINEAR): _linear_decode,
    (Phase.DECODE, PhaseStrategy.PADDING_AWARE): _padding_aware_decode,
}
