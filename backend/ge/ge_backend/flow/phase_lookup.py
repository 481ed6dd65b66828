"""Which bucket a run gets: the first that covers it in list order, else one made for it.

The plugin caps what it makes, so that it can be smaller than what was asked for. `look_up` says so;
a caller that must not run in too small a shape runs unpadded or refuses.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from ge_backend.errors import ConfigError
from ge_backend.flow.phase_parameters import Phase, PhaseParameters
from ge_backend.flow.phases import PagedBucket

__all__ = ["Lookup", "fallback_bucket", "fallback_value", "first_covering", "look_up"]

FALLBACK_SEQS_STEP = 2
FALLBACK_STEP = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """The answer.

    Attributes:
        bucket: the bucket.
        prepared: it is one of those that were asked about.
        covers: it is at least as large as the run in every dimension.
    """

    bucket: PagedBucket
    prepared: bool
    covers: bool


def first_covering(
    buckets: Sequence[tuple[int, ...]], ask: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return the first bucket of an ascending list that is at least `ask`, or None.

    On a full product this is the smallest; on a list written by hand it can be far from it. Places
    of the buckets beyond those of `ask` do not count.
    """
    for bucket in buckets[bisect_left(buckets, ask) :]:
        if all(have >= need for have, need in zip(bucket, ask, strict=False)):
            return bucket
    return None


def fallback_value(number: int, step: int) -> int:
    """Return a number rounded up to `step` times the cube root: coarser where it is larger.

    Raises:
        ConfigError: `step` is below 1.
    """
    if step < 1:
        raise ConfigError(f"the step of a fallback is {step}, expected at least 1")
    if number <= 1:
        return number
    grain = _cube_root_up(number) * step
    return -(-number // grain) * grain


def fallback_bucket(
    given: PhaseParameters, phase: Phase, ask: PagedBucket, largest_context: int
) -> PagedBucket:
    """Return a bucket made for a run, capped to what the model may have.

    Args:
        given: the model and its limits.
        phase: the kind of run.
        ask: sequences, new tokens, blocks.
        largest_context: of the prepared buckets; caps decode.
    """
    batch, query, context = ask
    made_batch = min(fallback_value(batch, FALLBACK_SEQS_STEP), given.max_seqs)
    if phase is Phase.DECODE:
        made_query, cap = 1, largest_context
    else:
        made_query, cap = _fallback_query(given, query), given.blocks_up(given.max_model_tokens - 1)
    made_context = min(fallback_value(context, FALLBACK_STEP), cap) if given.num_blocks else 0
    return made_batch, made_query, made_context


def look_up(
    given: PhaseParameters,
    phase: Phase,
    buckets: Sequence[PagedBucket],
    ask: PagedBucket,
    seeds: Sequence[PagedBucket] = (),
) -> Lookup:
    """Return the bucket for a run.

    Args:
        given: the model and its limits.
        phase: the kind of run.
        buckets: ascending, at least one.
        ask: sequences, new tokens, blocks; more blocks than any decode bucket has are cut to the
            most that one has, as the cache has no more.
        seeds: ascending; looked through first.
    """
    largest = max(bucket[2] for bucket in buckets)
    wanted = ask
    if phase is Phase.DECODE:
        wanted = (ask[0], ask[1], min(ask[2], largest))
    found = first_covering(seeds, wanted) or first_covering(buckets, wanted)
    if found is not None:
        batch, query, context = found
        return Lookup(bucket=(batch, query, context), prepared=True, covers=_covers(found, ask))
    made = fallback_bucket(given, phase, wanted, largest)
    return Lookup(bucket=made, prepared=made in buckets, covers=_covers(made, ask))


def _covers(bucket: tuple[int, ...], ask: PagedBucket) -> bool:
    return all(have >= need for have, need in zip(bucket, ask, strict=True))


def _fallback_query(given: PhaseParameters, query: int) -> int:
    window = given.sliding_window
    if window is not None:
        made = -(-query // window.slice) * window.slice
    else:
        made = fallback_value(query, max(FALLBACK_STEP, given.mamba_chunk))
    return min(made, given.max_batch_tokens)


def _cube_root_up(number: int) -> int:
    """Return ceil of the cube root, exactly."""
    root = math.ceil(math.pow(number, 1 / 3))
    while root**3 < number:
        root += 1
    while (root - 1) ** 3 >= number:
        root -= 1
    return root
