"""The shapes of a model's steps, from what is configured: decoding and prompts apart.

A decoding shape is (batch, 1, context), a prompt's (1, query, context); a prompt's context is never
shorter than its query, because it counts the step's own tokens too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

from ge_backend.buckets.axis import Axis, default_axis, listed_axis, parse_axis
from ge_backend.buckets.bucket_file import read_buckets
from ge_backend.errors import ConfigError
from ge_backend.generate.groups import Shape, ShapeLists
from ge_backend.generate.settings import EngineSettings

__all__ = ["file_shapes", "rule_shapes"]


def rule_shapes(settings: EngineSettings, max_length: int, block_size: int) -> ShapeLists:
    """Return the shapes that the settings' texts make; an empty text is a default.

    The defaults are exponential, but for the context, which doubles in two steps: with powers of
    two attention would read up to twice what it has to.

    Args:
        settings: the texts, and how much a step may be.
        max_length: tokens of the longest sequence.
        block_size: tokens of a block.

    Raises:
        ConfigError: a text is no list and no rule, or makes no size that can be used.
    """
    longest = -(-max_length // block_size)
    batch = _axis("batch", settings.batch_buckets, settings.max_num_seqs)
    query = _axis("query", settings.query_buckets, settings.max_num_batched_tokens)
    if settings.context_buckets:
        context = _axis("context", settings.context_buckets, longest)
    else:
        context = listed_axis("context", _half_octaves(longest))
    decode = itertools.product(batch.values, (1,), context.values)
    prompt = itertools.product((1,), query.values, context.values)
    return _by_kind(itertools.chain(decode, prompt), block_size, "the rules")


def file_shapes(path: Path, block_size: int) -> ShapeLists:
    """Return the shapes that a bucket file lists: (batch, query, context blocks) in each line.

    Raises:
        ConfigError: the file cannot be used, or has no shapes of one kind.
    """
    entries = read_buckets(path, least=(1, 1, 1))
    return _by_kind(((b, q, c) for b, q, c in entries), block_size, f"bucket file {path}")


def _axis(name: str, text: str, maximum: int) -> Axis:
    axis = parse_axis(text, name=name) if text else default_axis(name, maximum)
    return axis.clipped(maximum)


def _half_octaves(maximum: int) -> tuple[int, ...]:
    """Return 1, 2, 3, 4, 6, 8, 12 and so on up to the maximum, which is there too."""
    doubling = [2**power for power in range(maximum.bit_length())]
    between = [3 * size // 2 for size in doubling[1:]]
    return (*(size for size in (*doubling, *between) if size < maximum), maximum)


def _by_kind(shapes: Iterable[Shape], block_size: int, source: str) -> ShapeLists:
    usable = {shape for shape in shapes if shape[1] <= shape[2] * block_size}
    decode = tuple(sorted(shape for shape in usable if shape[1] == 1))
    prompt = tuple(sorted(shape for shape in usable if shape[1] > 1))
    if not decode or not prompt:
        kind = "decoding (a query of 1)" if not decode else "prompts (a query above 1)"
        raise ConfigError(f"{source} give no bucket for {kind}; expected some of each kind")
    return ShapeLists(decode, prompt)
