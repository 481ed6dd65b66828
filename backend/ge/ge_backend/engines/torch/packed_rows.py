"""Rows laid end to end without their padding, and the attention that keeps them apart."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch

from ge_backend.tensors import Array

__all__ = [
    "CurrentRows",
    "PackedRows",
    "is_causal",
    "pack_rows",
    "packed_attention",
    "rounded_tokens",
]

# oneDNN makes ready for each new number of tokens and keeps that for ever (measured: 3 to 8 ms and
# about 1 MB for each), so numbers are rounded up, to this many steps per power of two.
STEPS_PER_OCTAVE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows:
    """T tokens of B rows, shortest row first, and R rounded up from T.

    Attributes:
        ids, columns, positions: INT64 `[R]`: the tokens, where in its row each one stood, and what
            the modules count that as; 0 behind T.
        types: INT64 `[R]`, `token_type_ids`, 0 behind T; None where no request has sent any.
        rows: INT64 `[T]`, the row that each token belongs to.
        firsts: INT64 `[B']`, where each row that has tokens begins.
        owners: INT64 `[B']`, which row that is.
        spans: (begin, count, length): `count` rows of one length lie from `begin` on.
    """

    ids: Array
    columns: Array
    positions: Array
    rows: Array
    firsts: Array
    owners: Array
    spans: Sequence[tuple[int, int, int]]
    types: Array | None = None


class CurrentRows(threading.local):
    """What the calling thread runs now, as `PackedRows`; every module of a model looks here."""

    spans: Sequence[tuple[int, int, int]] = ()
    columns: Array = np.zeros(0, np.int64)


def pack_rows(
    ids: Array, mask: Array, padding: int | None = None, types: Array | None = None
) -> PackedRows:
    """Return the tokens of INT64 `[B, L]` where a mask of that shape and type is not 0.

    `types` are `token_type_ids`, of that shape and type, too.

    In numpy: torch lets go of Python's lock in each of its operations, and then waits for it.

    RoBERTa and its kin have a token of `padding`, which stands at the position of that number; they
    count the others of a row, masked ones too, from behind it.
    """
    if len(ids) == 1 and mask.size and mask.all():
        return _pack_row(ids[0], padding, None if types is None else types[0])
    real = mask != 0
    lengths = real.sum(1)
    order = np.argsort(lengths, kind="stable")
    rows, columns = np.nonzero(real[order])
    rows = order[rows]
    sorted_lengths = lengths[order]
    there = sorted_lengths > 0
    tokens = len(rows)
    packed = np.zeros((3, rounded_tokens(tokens)), np.int64)
    packed[0, :tokens] = ids[rows, columns]
    packed[1:, :tokens] = columns
    if padding is not None:
        counted = ids != padding
        packed[2, :tokens] = padding + (counted * counted.cumsum(1))[rows, columns]
    kinds = None
    if types is not None:
        kinds = np.zeros_like(packed[0])
        kinds[:tokens] = types[rows, columns]
    return PackedRows(
        ids=packed[0],
        columns=packed[1],
        positions=packed[2],
        rows=rows,
        firsts=(sorted_lengths.cumsum() - sorted_lengths)[there],
        owners=order[there],
        spans=tuple(_spans(sorted_lengths.tolist())),
        types=kinds,
    )


def _pack_row(ids: Array, padding: int | None, types: Array | None) -> PackedRows:
    """Return one row, all of whose tokens count, as `pack_rows` does, at a third of its cost."""
    tokens, none = len(ids), np.zeros(1, np.int64)
    packed = np.zeros((3, rounded_tokens(tokens)), np.int64)
    packed[0, :tokens] = ids
    packed[1:, :tokens] = np.arange(tokens)
    if padding is not None:
        counted = ids != padding
        packed[2, :tokens] = padding + counted * counted.cumsum()
    kinds = None
    if types is not None:
        kinds = np.zeros_like(packed[0])
        kinds[:tokens] = types
    return PackedRows(
        ids=packed[0],
        columns=packed[1],
        positions=packed[2],
        rows=np.zeros(tokens, np.int64),
        firsts=none,
        owners=none,
        spans=((0, 1, tokens),),
        types=kinds,
    )


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend within each row, as transformers' attention functions do.

    FP `[1, H, R, D]` each, keys and values perhaps of fewer heads, give `[1, R, H, D]`, 0 behind
    the last token. The module has the `CurrentRows` of its model as `ge_rows`. A token sees those
    that stood less than `sliding_window` away, masked places counted; None: all of its row. With
    a decoder's modules it sees none behind itself.
    Source: transformers, modeling_modernbert.py (`sliding_window + 1`, as flash attention).
    """
    rows: Any = module.ge_rows
    causal = is_causal(module)
    found = query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])
    for begin, count, length in rows.spans:
        end = begin + count * length
        asked, keys, values = (
            item[0, :, begin:end].unflatten(1, (count, length)).transpose(0, 1)
            for item in (query, key, value)
        )
        near = None
        if sliding_window is not None:
            columns = rows.columns[begin:end].reshape(count, length)
            near = _near(columns, sliding_window, causal=causal)
        result = torch.nn.functional.scaled_dot_product_attention(
            asked,
            keys,
            values,
            attn_mask=near,
            is_causal=causal and near is None,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        found[0, begin:end] = result.transpose(1, 2).flatten(0, 1)
    return found, None


def is_causal(module: torch.nn.Module) -> bool:
    """Return whether tokens see only those before them, and themselves, in a module's attention.

    Source: transformers, masking_utils.py, `create_causal_mask`: a checkpoint may say otherwise.
    """
    said = getattr(getattr(module, "config", None), "is_causal", True)
    return bool(getattr(module, "is_causal", False) and said)


def _near(columns: Array, window: int, *, causal: bool) -> torch.Tensor | None:
    """Return which tokens a token of a row sees, BOOL `[B or 1, 1, L, L]`; None: all it may."""
    reach = int((columns[:, -1] - columns[:, 0]).max())
    if reach < window:
        return None
    if reach < columns.shape[1]:  # no row has masked places between its tokens: all are alike
        columns = columns[:1]
    back = columns[:, None, :, None] - columns[:, None, None, :]
    return torch.from_numpy((back < window) & (back > (-1 if causal else -window)))


def _spans(lengths: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    begin = 0
    for length, group in groupby(lengths):
        count = len(list(group))
        if length:
            yield begin, count, length
            begin += count * length


def rounded_tokens(tokens: int, steps: int = STEPS_PER_OCTAVE) -> int:
    """Return a number of tokens that is made ready for, the next from this one on; at least 1.

    There are `steps` such numbers per power of two.
    """
    step = max(1, (1 << max(0, tokens - 1).bit_length()) // 2 // steps)
    return max(1, -(-tokens // step) * step)
