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


def phase_numbers(parameters: PhaseParameters, phase: Phase, rule: PhaseRule) -> Axes:
    """Return the numbers of the batch, query and context axes.

    Raises:
        ConfigError: decode buckets are asked for before the cache's size is known.
    """
    if phase is Phase.DECODE and parameters.num_blocks < 1:
        raise ConfigError(f"num_blocks is {parameters.num_blocks}, decode buckets need at least 1")
    return _NUMBERS[phase, rule.strategy](parameters)


def phase_ranges(parameters: PhaseParameters, phase: Phase, rule: PhaseRule) -> Axes:
    """Return the values of the batch, query and context axes.

    Raises:
        ConfigError: a rule's numbers are out of range, such as min above max.
    """
    axes = (
        _values(numbers, parameters, rule) for numbers in phase_numbers(parameters, phase, rule)
    )
    batch, query, context = axes
    if phase is Phase.DECODE and parameters.contiguous and context[-1] < parameters.num_blocks:
        context = (*context, parameters.num_blocks)
    if phase is Phase.PROMPT and parameters.mamba_chunk_explicit:
        chunk = max(parameters.mamba_chunk, 1)
        query = tuple(sorted({-(-size // chunk) * chunk for size in query}))
    return batch, query, context


def _values(numbers: Numbers, parameters: PhaseParameters, rule: PhaseRule) -> tuple[int, ...]:
    if rule.strategy is PhaseStrategy.LINEAR:
        values = strategies.linear(*numbers)
    elif rule.strategy is PhaseStrategy.PADDING_AWARE:
        values = strategies.padding_aware(*numbers)
    else:
        values = strategies.exponential(
            *numbers, contiguous=parameters.contiguous, compat=rule.compat
        )
    if not values:
        raise ConfigError(f"(min, step, max) of {numbers} make no sizes; lower min or step")
    return values


def _exponential_prompt(parameters: PhaseParameters) -> Axes:
    single = parameters.overrides.get("prompt.query.min") == 1
    query_min = 1 if single else parameters.block_tokens
    cached = parameters.max_model_tokens - query_min
    if parameters.max_model_tokens >= LONG_CONTEXT_TOKENS:
        cached = parameters.max_model_tokens - parameters.max_batch_tokens
    context_max = max(1, parameters.blocks(cached))
    seqs, tokens = parameters.max_prefill_seqs, parameters.max_batch_tokens
    batch = (1, 2, seqs, log2_ceil(seqs) + 1)
    query = (query_min, parameters.block_tokens, tokens, max(log2_ceil(tokens), 1))
    context = (0, 1, context_max, max(log2_ceil(context_max), 1) + 1)
    if not parameters.merged_prefill:
        return batch, query, context
    merged = (0, MERGED_STEP, context_max * seqs, context[3])
    return (1, 1, 1, 1), (query_min, query[1] * MERGED_STEP, *query[2:]), merged


def _exponential_decode(parameters: PhaseParameters) -> Axes:
    seqs, blocks = parameters.max_seqs, parameters.num_blocks
    shared = SHARED_BLOCKS * blocks
    extra = 0
    most = parameters.blocks_up(parameters.max_model_tokens) * seqs
    if parameters.contiguous:
        most = min(most, blocks)
    elif parameters.clamp_decode_context:
        most = min(most, shared)
    if not parameters.contiguous and most > shared:
        extra = log2_ceil(-(-most // shared)) + 1
    limit = log2_ceil(most) + 1 + extra
    return (1, 2, seqs, log2_ceil(seqs) + 1), (1, 1, 1, 1), (1, seqs, most, limit)


def _linear_prompt(parameters: PhaseParameters) -> Axes:
    batch = _overridden(parameters, "prompt.batch", (1, 1, parameters.max_prefill_seqs))
    tokens = parameters.block_tokens
    query = _overridden(parameters, "prompt.query", (tokens, tokens, parameters.max_batch_tokens))
    context_max = parameters.blocks(parameters.max_model_tokens - query[0])
    return _prompt(parameters, batch, query, (0, 1, context_max))


def _padding_aware_prompt(parameters: PhaseParameters) -> Axes:
    seqs, tokens = parameters.max_prefill_seqs, parameters.block_tokens
    batch = _padded(parameters, "prompt.batch", (1, 1, seqs))
    query = _padded(parameters, "prompt.query", (tokens, tokens, parameters.max_batch_tokens))
    context_max = parameters.blocks_up(parameters.max_model_tokens - query[0])
    pad_max = parameters.blocks_up(parameters.max_batch_tokens)
    return _prompt(parameters, batch, query, (0, 2, context_max, pad_max, PAD_PERCENT))


def _prompt(parameters: PhaseParameters, batch: Numbers, query: Numbers, context: Numbers) -> Axes:
    """Return a prompt's axes, changed where prompts are merged, with the context's overrides."""
    if parameters.merged_prefill:
        batch = (1, 1, 1, *batch[3:])
        query = (query[0], query[1] * MERGED_STEP, *query[2:])
        context = (0, MERGED_STEP, context[2] * parameters.max_prefill_seqs, *context[3:])
    return batch, query, _overridden(parameters, "prompt.context", context)


def _linear_decode(parameters: PhaseParameters) -> Axes:
    batch = _overridden(parameters, "decode.batch", (1, DECODE_SEQS_STEP, parameters.max_seqs))
    default = max(
        parameters.blocks(parameters.max_model_tokens * parameters.max_seqs),
        parameters.block_tokens,
    )
    if parameters.contiguous:
        default = parameters.num_blocks
    first, step, most = _overridden(
        parameters, "decode.context", (1, parameters.block_tokens, default)
    )
    if parameters.contiguous:
        most = min(most, parameters.num_blocks)
    if first > most:
        first = max(1, most - step)
    return batch, (1, 1, 1), (first, step, most)


def _padding_aware_decode(parameters: PhaseParameters) -> Axes:
    batch = _padded(parameters, "decode.batch", (1, 2, parameters.max_seqs))
    tokens, blocks = parameters.block_tokens, parameters.num_blocks
    default = max(parameters.blocks_up(parameters.max_model_tokens * parameters.max_seqs), tokens)
    if parameters.contiguous:
        default = min(parameters.overridden("decode.context.max", blocks), blocks)
    first, step, most, *padding = _padded(parameters, "decode.context", (tokens, tokens, default))
    if parameters.contiguous:
        most = min(most, blocks)
    if first > blocks:
        first = max(1, blocks - step)
    return batch, (1, 1, 1, 1, 0), (first, step, most, *padding)


def _overridden(parameters: PhaseParameters, axis: str, numbers: Numbers) -> Numbers:
    names = ("min", "step", "max", "pad_max", "pad_percent")
    return tuple(
        parameters.overridden(f"{axis}.{n}", v) for n, v in zip(names, numbers, strict=False)
    )


def _padded(parameters: PhaseParameters, axis: str, numbers: Numbers) -> Numbers:
    """Return an axis with overrides; padding is at most a quarter of its maximum, and 25 %."""
    bounds = _overridden(parameters, axis, numbers)
    return _overridden(parameters, axis, (*bounds, -(-bounds[2] // 4), PAD_PERCENT))


_NUMBERS: dict[tuple[Phase, PhaseStrategy], Callable[[PhaseParameters], Axes]] = {
    (Phase.PROMPT, PhaseStrategy.EXPONENTIAL): _exponential_prompt,
    (Phase.PROMPT, PhaseStrategy.LINEAR): _linear_prompt,
    (Phase.PROMPT, PhaseStrategy.PADDING_AWARE): _padding_aware_prompt,
    (Phase.DECODE, PhaseStrategy.EXPONENTIAL): _exponential_decode,
    (Phase.DECODE, PhaseStrategy.LINEAR): _linear_decode,
    (Phase.DECODE, PhaseStrategy.PADDING_AWARE): _padding_aware_decode,
}
