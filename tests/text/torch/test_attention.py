"""Attention over blocks equals attention over the keys themselves, written out."""

import math
from types import SimpleNamespace

import pytest
import torch

from ge_text.torch import attention
from ge_text.torch.attention import FEW_QUERIES, Attend, RowAttention

BLOCK, HEADS, KEY_HEADS, DIM = 4, 6, 2, 8


def plain(how, query, keys, values, last):
    """Return what one query [H, D] finds among keys and values [K, L, D] up to position `last`."""
    out = []
    for head in range(HEADS):
        key, value = keys[head // (HEADS // KEY_HEADS)], values[head // (HEADS // KEY_HEADS)]
        first = max(0, last + 1 - how.window) if how.window else 0
        scores = key[first : last + 1] @ query[head] * how.scale
        if how.softcap:
            scores = how.softcap * torch.tanh(scores / how.softcap)
        out.append(torch.softmax(scores, -1) @ value[first : last + 1])
    return torch.cat(out)


@pytest.mark.parametrize("window", [0, 1, 5, 100])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("queries", [1, 3, FEW_QUERIES + 2])
@pytest.mark.parametrize("rows", [1, 3])
def test_every_query_sees_the_keys_before_it_and_no_others(rows, queries, softcap, window):
    """What lies behind a row's keys, or in other rows' blocks, is as if it were not there."""
    generator = torch.Generator().manual_seed(7)
    lengths = [queries + 9 * index for index in range(rows)]
    blocks = -(-max(lengths) // BLOCK)
    keys = torch.randn(1 + rows * blocks, KEY_HEADS, BLOCK, DIM, generator=generator)
    values = torch.randn(1 + rows * blocks, KEY_HEADS, BLOCK, DIM + 3, generator=generator)
    tables = torch.randperm(rows * blocks, generator=generator).view(rows, blocks) + 1
    positions = torch.stack([torch.arange(length - queries, length) for length in lengths])
    query = torch.randn(rows * queries, HEADS, DIM, generator=generator)
    how = Attend(scale=1 / math.sqrt(DIM), window=window, softcap=softcap)
    alone = rows == 1
    part = RowAttention(
        tables=tables,
        positions=positions,
        length=lengths[0] if alone else blocks * BLOCK,
        alone=alone,
    )
    found = part.attend(how, query, keys, values)
    for row in range(rows):
        own = [cache[tables[row]].transpose(0, 1).flatten(1, 2) for cache in (keys, values)]
        for index in range(queries):
            at = row * queries + index
            expected = plain(how, query[at], *own, int(positions[row, index]))
            torch.testing.assert_close(found[at], expected, rtol=1e-4, atol=1e-5)


def test_chunks_are_given_to_an_npu_as_its_fused_kernel_takes_them(monkeypatch):
    """A mask of booleans, and keys for each head: anything else is refused, or not fused, there."""
    asked = []

    def fused(query, key, value, *, attn_mask, scale, enable_gqa):
        asked.append((attn_mask.dtype, key.shape[1] == query.shape[1], enable_gqa))
        return real(query, key, value, attn_mask=attn_mask, scale=scale)

    class Npu(torch.Tensor):
        """Says that it is on one; what is computed of it is, too."""

        device = property(lambda self: SimpleNamespace(type="npu"))

    real = torch.nn.functional.scaled_dot_product_attention
    queries = FEW_QUERIES + 4
    generator = torch.Generator().manual_seed(3)
    keys = torch.randn(8, KEY_HEADS, BLOCK, DIM, generator=generator)
    query = torch.randn(queries, HEADS, DIM, generator=generator)

    def found(query):
        part = RowAttention(
            tables=torch.arange(8).view(1, 8),
            positions=torch.arange(queries).view(1, queries),
            length=8 * BLOCK,
            alone=False,
        )
        return part.attend(Attend(scale=0.3), query, keys, keys)

    expected = found(query)
    monkeypatch.setattr(attention.functional, "scaled_dot_product_attention", fused)
    torch.testing.assert_close(torch.Tensor(found(query.as_subclass(Npu))), expected)
    assert asked == [(torch.bool, True, False)]
