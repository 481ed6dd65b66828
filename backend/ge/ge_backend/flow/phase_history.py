"""Bucket lists of rules that were given up upstream, and that its documentation still prints.

    fill      exponential with filled duplicates and all contexts; the 36 prompt, 42 decode buckets
    unified   prompt and decode in one run: (new tokens, shared blocks, own blocks, causal)
    alpha     the first form of unified; the 375 buckets

Source: HabanaAI/vllm-hpu-extension@ad55828 bucketing/exponential.py; vllm-project/vllm-gaudi
v0.17.1 and @6e656699 vllm_gaudi/extension/bucketing/unified.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from ge_backend.errors import ConfigError
from ge_backend.flow import strategies
from ge_backend.flow.phase_parameters import Phase, PhaseParameters, log2_ceil
from ge_backend.flow.phases import PagedBucket

__all__ = ["UnifiedBucket", "fill_buckets", "unified_alpha_buckets", "unified_buckets"]

UnifiedBucket = tuple[int, int, int, int]  # new tokens, shared blocks, own blocks, 1 if causal


def fill_buckets(
    given: PhaseParameters, phase: Phase, *, compat: bool = False
) -> tuple[PagedBucket, ...]:
    """Return a phase's buckets by the rule with filled duplicates, ascending.

    Prompts keep what is within the token budget; if nothing is, they keep all.
    """

    def axis(least: int, most: int) -> tuple[int, ...]:
        return strategies.exponential_fill(
            least,
            least,
            most,
            log2_ceil(most) + 1,
            contiguous=given.contiguous,
            compat=compat,
        )

    tokens = given.block_tokens
    if phase is Phase.DECODE:
        seqs, blocks = axis(1, given.max_seqs), axis(tokens, given.num_blocks)
        return tuple(sorted(itertools.product(seqs, (1,), blocks)))
    product = [
        (batch, query, context)
        for batch in axis(1, given.max_prefill_seqs)
        for query in axis(tokens, given.max_model_tokens)
        for context in range(given.blocks(given.max_model_tokens - query) + 1)
        if given.prefix_caching or context == 0
    ]
    within = [b for b in product if b[0] * (b[1] + b[2] * tokens) <= given.max_batch_tokens]
    return tuple(sorted(within or product))


def unified_buckets(given: PhaseParameters) -> tuple[UnifiedBucket, ...]:
    """Return the unified buckets, ascending.

    Raises:
        ConfigError: with a single sequence the rule divides by zero.
    """
    seqs = given.max_seqs
    shared_max = min(given.blocks(given.max_model_tokens), given.num_blocks)
    queries = strategies.unified(1, given.max_batch_tokens, seqs)
    shared = strategies.unified(0, shared_max, seqs)
    own = strategies.unified(0, given.num_blocks, seqs)
    return _unified(given, (queries, shared, own), _fits_unified)


def unified_alpha_buckets(given: PhaseParameters) -> tuple[UnifiedBucket, ...]:
    """Return the unified buckets of the first form, ascending.

    Raises:
        ConfigError: with fewer than four sequences the rule divides by zero.
    """
    seqs = given.max_seqs
    shared_max = given.blocks(given.max_model_tokens) * seqs
    queries = strategies.unified_alpha(given.block_tokens, given.max_batch_tokens, seqs)
    shared = strategies.unified_alpha(0, shared_max, seqs)
    own = strategies.unified_alpha(0, given.num_blocks, seqs)
    return _unified(given, (queries, shared, own), _fits_alpha)


def _unified(
    given: PhaseParameters,
    axes: tuple[tuple[int, ...], ...],
    fits: Callable[[PhaseParameters, int, int, int], bool],
) -> tuple[UnifiedBucket, ...]:
    if axes[0][0] < 1:
        raise ConfigError(f"max_seqs is {given.max_seqs}, too few for unified buckets")
    kept: list[UnifiedBucket] = []
    for query, shared, own in itertools.product(*axes):
        if shared * given.block_tokens // min(given.max_seqs, query) <= given.max_model_tokens:
            kept.append((query, shared, own, 1))
        if query <= given.max_seqs and shared + own > 0 and fits(given, query, shared, own):
            kept.append((query, shared, own, 0))
    return tuple(sorted(kept))


def _fits_unified(given: PhaseParameters, query: int, shared: int, own: int) -> bool:
    """Return whether each of a run's sequences can hold its part of the shared blocks."""
    if query == 1 and shared > 0:
        raise ConfigError(f"max_seqs is {given.max_seqs}, too few for unified buckets")
    return _fits_alpha(given, query, shared, own) and (shared > 0 or query <= own)


def _fits_alpha(given: PhaseParameters, query: int, shared: int, _: int) -> bool:
    if shared == 0:
        return True
    return query > 1 and shared * given.block_tokens // (query // 2) <= given.max_model_tokens
