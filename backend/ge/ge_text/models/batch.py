"""One step of a language model over many sequences, and what it gives back: plain values.

Tokens are flat, so that linear layers see no padding; only attention is computed per group of
rows that have the same number of new tokens. Letters in comments: T tokens of the step, B rows of
a group, Q new tokens of each of them, N blocks of its longest row, S tokens to be drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ge_backend.errors import GeError
from ge_backend.tensors import Array
from ge_text.models.sampling import Sampling

__all__ = ["Batch", "Drawn", "Group", "SampleRow", "full_batch", "padding_batch"]

GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rows with the same number of new tokens; their attention is computed together.

    Its B x Q tokens are contiguous in the batch, row after row; groups follow each other.

    Attributes:
        rows: B.
        query: Q.
        tables: int64 [B, N], the blocks that hold each row's keys and values, in order; behind a
            row's own blocks 0, which is no text's.
        lengths: int64 [B], keys of each row when this step is done; 0 for a row of padding.
    """

    rows: int
    query: int
    tables: Array
    lengths: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow:
    """What drawing one token needs to know about its sequence.

    Attributes:
        position: of the token to be drawn: how many tokens are known before it.
        prompt: int64 [P], the tokens that were given.
        output: int64 [O], the tokens that were drawn so far. Read only by penalties and bad words.
        forbidden: ids that must not be drawn now, such as the end of text below `min_tokens`.
        allowed: for a text that has to keep to a structure: returns which tokens may be drawn, as
            `Guide.mask` does, and raises what that raises. Called when the scores are on their way,
            so that an accelerator computes meanwhile.
    """

    sampling: Sampling
    position: int
    prompt: Array
    output: Array
    forbidden: tuple[int, ...] = ()
    allowed: Callable[[], Array] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One step. Its arrays stay the caller's, who does not change them before the step is done.

    Attributes:
        ids: int64 [T].
        positions: int64 [T], of each token in its sequence; 0 for padding.
        slots: int64 [T], where its key and value go: block * block_size + offset. Padding goes to
            a slot of block 0.
        groups: at least one; their rows x query sum to T.
        sampled: int64 [S], indexes into the T tokens, ascending: those after which a token is
            drawn.
        rows: S of them.
        adapters: for each adapter of the step, by its key, int64 [K]: the tokens that it changes.
    """

    ids: Array
    positions: Array
    slots: Array
    groups: tuple[Group, ...]
    sampled: Array
    rows: tuple[SampleRow, ...]
    adapters: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """The tokens of one step.

    Attributes:
        tokens: int64 [S]; 0 where the row failed.
        logprobs: float32 [S], of the drawn token: log-softmax of the model's own logits, before
            anything of `Sampling`; NaN where the row did not ask for it.
        ranks: int64 [S], of the drawn token by that measure, the best has 1 and the lowest id of
            equals comes first; 0 where the row did not ask.
        top: S of them: ids int64 [K] and their log-probabilities float32 [K], best first, as many
            as the row asked for; None where it asked for none.
        failed: rows that have no token, by their index in S, and why. The others are sound.
    """

    tokens: Array
    logprobs: Array
    ranks: Array
    top: tuple[tuple[Array, Array] | None, ...]
    failed: Mapping[int, GeError] = field(default_factory=dict)


def padding_batch(shape: tuple[int, int, int], sampling: Sampling = GREEDY) -> Batch:
    """Return a step of a shape (batch, query, context blocks) in which every row is padding."""
    rows, query, blocks = shape
    tokens, nothing = np.zeros(rows * query, np.int64), np.zeros(0, np.int64)
    group = Group(
        rows=rows,
        query=query,
        tables=np.zeros((rows, blocks), np.int64),
        lengths=np.zeros(rows, np.int64),
    )
    row = SampleRow(sampling=sampling, position=0, prompt=nothing, output=nothing)
    return Batch(
        ids=tokens,
        positions=tokens,
        slots=tokens,
        groups=(group,),
        sampled=np.arange(rows) * query + query - 1,
        rows=(row,) * rows,
    )


def full_batch(
    shapes: Sequence[tuple[int, int, int]], *, block_size: int, num_blocks: int, sampling: Sampling
) -> Batch:
    """Return a step with a group of each shape, whose rows' last tokens are new.

    Shapes are (batch, query, context blocks); contexts are full, and no query is longer. Rows have
    blocks in common where a cache of `num_blocks` is too small for all.
    """
    groups, positions, slots = [], [], []
    for rows, query, blocks in shapes:
        tables = 1 + np.arange(rows * blocks).reshape(rows, blocks) % (num_blocks - 1)
        length = blocks * block_size
        places = np.tile(np.arange(length - query, length), (rows, 1))
        first = np.take_along_axis(tables, places // block_size, 1) * block_size
        positions.append(places.ravel())
        slots.append((first + places % block_size).ravel())
        lengths = np.full(rows, length)
        groups.append(Group(rows=rows, query=query, tables=tables, lengths=lengths))
    counts = np.repeat([group.query for group in groups], [group.rows for group in groups])
    nothing = np.zeros(0, np.int64)
    row = SampleRow(sampling=sampling, position=0, prompt=nothing, output=nothing)
    return Batch(
        ids=np.zeros(counts.sum(), np.int64),
        positions=np.concatenate(positions),
        slots=np.concatenate(slots),
        groups=tuple(groups),
        sampled=counts.cumsum() - 1,
        rows=(row,) * len(counts),
    )
