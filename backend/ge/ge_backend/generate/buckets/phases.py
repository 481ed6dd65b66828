"""The buckets of a phase: product of its axes, what fits, what is corrected, what is added.

    phase_ranges → every (batch, context) with every query → fitting → corrected → the list

The same filters hold for buckets from a file. An empty phase is an error: whoever asked for prompt
buckets cannot serve prompts without any.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ge_backend.buckets.bucket_file import read_buckets
from ge_backend.errors import ConfigError
from ge_backend.generate.buckets.phase_parameters import Phase, PhaseParameters
from ge_backend.generate.buckets.phase_ranges import LONG_CONTEXT_TOKENS, PhaseRule, phase_ranges

__all__ = ["PagedBucket", "PhaseBuckets", "file_phase_buckets", "phase_buckets"]

PagedBucket = tuple[int, int, int]  # sequences, new tokens, blocks of context


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseBuckets:
    """The buckets of a phase.

    Attributes:
        buckets: ascending, each once.
        seeds: the buckets before speculative decoding added its own; all of them without it.
        refused: buckets that did not fit, ascending; of a file, each was somebody's intention.
    """

    buckets: tuple[PagedBucket, ...]
    seeds: tuple[PagedBucket, ...]
    refused: tuple[PagedBucket, ...] = ()


def phase_buckets(parameters: PhaseParameters, phase: Phase, rule: PhaseRule) -> PhaseBuckets:
    """Return a phase's buckets by rule.

    Raises:
        ConfigError: a rule's numbers are out of range, or nothing fits.
    """
    batches, queries, contexts = phase_ranges(parameters, phase, rule)
    edge = phase is Phase.PROMPT and parameters.max_model_tokens >= LONG_CONTEXT_TOKENS
    product: set[PagedBucket] = set()
    for batch, context in itertools.product(batches, contexts):
        if edge and context == max(contexts):
            product.update(_longest_contexts(parameters, batch, queries, context))
        else:
            product.update((batch, query, context) for query in queries)
    return _selected(parameters, phase, product)


def file_phase_buckets(parameters: PhaseParameters, phase: Phase, path: Path) -> PhaseBuckets:
    """Return a phase's buckets from a file: lines whose new tokens are 1 are for decode.

    Raises:
        ConfigError: the file cannot be used, or has nothing that fits this phase.
    """
    product = {
        (batch, query, context)
        for batch, query, context in read_buckets(path)
        if (query == 1) == (phase is Phase.DECODE)
    }
    if not product:
        raise ConfigError(f"bucket file {path} has no entries for the {phase.value} phase")
    return _selected(parameters, phase, product)


def _longest_contexts(
    parameters: PhaseParameters, batch: int, queries: Iterable[int], context: int
) -> Iterator[PagedBucket]:
    """Yield buckets whose context fills a long model's length exactly, beside each query.

    Where a query leaves no room for that, the context of the query before stays.
    """
    most = parameters.overrides.get("prompt.context.max")
    for query in queries:
        left = parameters.blocks(parameters.max_model_tokens - query)
        if left >= 0 and (most is None or left < most):
            context = left
        yield (batch, query, context)


def _selected(parameters: PhaseParameters, phase: Phase, product: set[PagedBucket]) -> PhaseBuckets:
    fitting = {bucket for bucket in product if _fits(parameters, phase, bucket)}
    if phase is Phase.DECODE:
        seeds = {_corrected(parameters, bucket) for bucket in fitting}
        buckets = seeds | set(_speculative(parameters, seeds))
    else:
        seeds = buckets = {bucket for bucket in fitting if not _unsliceable(parameters, bucket)}
    if not buckets:
        raise ConfigError(
            f"none of {len(product)} {phase.value} buckets fits: max_model_tokens is "
            f"{parameters.max_model_tokens}, max_batch_tokens {parameters.max_batch_tokens}, "
            f"blocks have {parameters.block_tokens} tokens; raise a limit or lower the smallest "
            "sizes"
        )
    return PhaseBuckets(
        buckets=tuple(sorted(buckets)),
        seeds=tuple(sorted(seeds)),
        refused=tuple(sorted(product - fitting)),
    )


def _fits(parameters: PhaseParameters, phase: Phase, bucket: PagedBucket) -> bool:
    batch, query, context = bucket
    if phase is Phase.DECODE:
        return parameters.contiguous or batch <= context
    if parameters.merged_prefill:
        seqs = parameters.max_prefill_seqs
        return context <= seqs * parameters.blocks(parameters.max_model_tokens - query // seqs)
    if batch * query > parameters.max_batch_tokens:
        return False
    # A padded last chunk may stand beside the longest context, so the sum may exceed the length.
    longest = parameters.blocks_up(parameters.max_model_tokens - 1)
    return context <= longest and query <= parameters.max_model_tokens


def _corrected(parameters: PhaseParameters, bucket: PagedBucket) -> PagedBucket:
    """Return a decode bucket without context that its sequences cannot have."""
    batch, query, context = bucket
    if parameters.contiguous:
        return bucket
    return batch, query, min(context, batch * parameters.blocks_up(parameters.max_model_tokens))


def _speculative(
    parameters: PhaseParameters, seeds: Iterable[PagedBucket]
) -> Iterator[PagedBucket]:
    """Yield the buckets in which every sequence brings its guessed tokens as further rows."""
    if not parameters.speculative_tokens:
        return
    times = parameters.speculative_tokens + 1
    for batch, query, context in seeds:
        if times * batch <= context:
            yield _corrected(parameters, (times * batch, query, context))
        yield _corrected(parameters, (times * batch, query, times * context))


def _unsliceable(parameters: PhaseParameters, bucket: PagedBucket) -> bool:
    window = parameters.sliding_window
    _, query, context = bucket
    return (
        window is not None
        and context == 0
        and query >= window.threshold
        and query % window.slice != 0
    )
