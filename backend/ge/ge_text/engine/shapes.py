"""The shapes of a model's steps, from what is configured: decoding and prompts apart.

A decoding shape is (batch, 1, context), a prompt's (1, query, context); a prompt's context is never
shorter than its query, because it counts the step's own tokens too. Where drafts are verified there
are (batch, 1 + drafts, context) too, which count as prompts'.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from collections.abc import Sequence as Many
from pathlib import Path

from ge_backend.errors import ConfigError
from ge_backend.shapes.buckets.axis import Axis, default_axis, listed_axis, parse_axis
from ge_backend.shapes.buckets.bucket_file import read_buckets
from ge_text.engine.plan import Shape, ShapeLists
from ge_text.engine.settings import EngineSettings

__all__ = ["file_shapes", "rule_shapes", "step_shapes"]


def step_shapes(settings: EngineSettings, max_length: int, block_size: int) -> ShapeLists:
    """Return the shapes of the settings' file, else of their rules; see there.

    Raises:
        ConfigError: they make nothing that can be used, or the file lists more than `max_graphs`.
    """
    if settings.bucket_file is None:
        return rule_shapes(settings, max_length, block_size)
    lists = file_shapes(settings.bucket_file, block_size)
    if _exceed(lists, settings.max_graphs):
        raise ConfigError(
            f"bucket file {settings.bucket_file} lists {len(lists)} buckets, more than max_graphs, "
            f"which is {settings.max_graphs}; list fewer or raise it"
        )
    return lists


def rule_shapes(settings: EngineSettings, max_length: int, block_size: int) -> ShapeLists:
    """Return the shapes that the settings' texts make; an empty text is a default.

    The defaults are exponential, but for the context, which doubles in two steps: with powers of
    two attention would read up to twice what it has to. Where that is more than `max_graphs`, the
    axis with the most sizes loses every other one, its largest never, until it is not. Lengths are
    tokens, of the longest sequence and of a block.

    Raises:
        ConfigError: a text is no list and no rule, or makes no size that can be used.
    """
    longest = -(-max_length // block_size)
    batch = _axis("batch", settings.batch_buckets, settings.max_num_seqs)
    most = min(settings.max_num_batched_tokens, longest * block_size)
    query = _axis("query", settings.query_buckets, most)
    if settings.context_buckets:
        context = _axis("context", settings.context_buckets, longest)
    else:
        context = listed_axis("context", _half_octaves(longest))
    sizes = [batch.values, query.values, context.values]
    while _exceed(lists := _product(sizes, settings, block_size), settings.max_graphs):
        axis = max(range(len(sizes)), key=lambda at: len(sizes[at]))
        if len(sizes[axis]) == 1:
            raise ConfigError("max_graphs is 1; expected 2 at least, for decoding and for prompts")
        sizes[axis] = sizes[axis][::-2][::-1]
    return lists


def file_shapes(path: Path, block_size: int) -> ShapeLists:
    """Return the shapes that a bucket file lists: (batch, query, context blocks) in each line.

    Raises:
        ConfigError: the file cannot be used, no context of a line can hold its query, or there are
            no shapes of one kind.
    """

    def unusable(entry: tuple[int, ...]) -> str | None:
        _, query, context = entry
        if query <= context * block_size:
            return None
        return (
            f"{entry}: context {context}, in blocks of {block_size} tokens, holds "
            f"{context * block_size}, the query is {query}; expected "
            f"{-(-query // block_size)} at least, as a context counts the step's own tokens"
        )

    entries = read_buckets(path, (1, 1, 1), unusable)
    return _by_kind(((b, q, c) for b, q, c in entries), block_size, f"bucket file {path}")


def _product(sizes: Many[tuple[int, ...]], settings: EngineSettings, block_size: int) -> ShapeLists:
    batch, query, context = sizes
    decode = itertools.product(batch, (1,), context)
    prompt = itertools.product((1,), query, context)
    verify = itertools.product(batch, (1 + n for n in settings.draft_lengths), context)
    return _by_kind(itertools.chain(decode, prompt, verify), block_size, "the rules")


def _exceed(lists: ShapeLists, max_graphs: int) -> bool:
    return bool(max_graphs) and len(lists) > max_graphs


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
