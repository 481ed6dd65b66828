"""Rows end to end: which tokens they are, and that none sees another row's."""

import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from ge_backend.engines.torch.packed_rows import (  # noqa: E402
    CurrentRows,
    pack_rows,
    packed_attention,
)

MASKS = st.integers(1, 7).flatmap(
    lambda width: st.lists(st.lists(st.integers(0, 1), min_size=width, max_size=width), min_size=1)
)


def packed_of(ids, mask):
    """Return what `pack_rows` does, as tensors; the types are twice the ids."""
    packed = pack_rows(ids.numpy(), mask.numpy(), types=2 * ids.numpy())
    arrays = {
        field.name: torch.from_numpy(value)
        for field in dataclasses.fields(packed)
        if isinstance(value := getattr(packed, field.name), np.ndarray)
    }
    return dataclasses.replace(packed, **arrays)


@given(MASKS)
@settings(max_examples=200, deadline=None)
def test_every_real_token_is_there_once_and_no_other(drawn):
    """With its place in its row; spans cover them, and each row's first token is known."""
    mask = torch.tensor(drawn)
    ids = torch.arange(mask.numel()).view(mask.shape)
    packed = packed_of(ids, mask)

    tokens = len(packed.rows)
    assert sorted(packed.ids[:tokens].tolist()) == ids[mask != 0].tolist()
    assert torch.equal(ids[packed.rows, packed.columns[:tokens]], packed.ids[:tokens])
    assert not packed.ids[tokens:].any()
    assert torch.equal(packed.types, 2 * packed.ids)
    assert sum(count * length for _, count, length in packed.spans) == tokens
    for begin, count, length in packed.spans:
        rows = packed.rows[begin : begin + count * length].view(count, length)
        assert bool((rows == rows[:, :1]).all())
    firsts = dict(zip(packed.owners.tolist(), packed.firsts.tolist(), strict=True))
    assert firsts == {row: packed.rows.tolist().index(row) for row in set(packed.rows.tolist())}


@pytest.mark.parametrize("padding", [None, 1])
def test_a_row_alone_is_packed_as_among_others(padding):
    """All of it that says anything: positions, too, of a row with tokens of padding."""
    ids = np.array([[5, 1, 7, 9, 1]])
    alone = pack_rows(ids, np.ones_like(ids), padding, ids % 2)
    mask = np.array([[1] * 5, [0] * 5])
    among = pack_rows(np.repeat(ids, 2, 0), mask, padding, np.repeat(ids % 2, 2, 0))
    assert alone.spans == among.spans
    for field in dataclasses.fields(alone):
        if field.name != "spans":
            one, other = (getattr(packed, field.name) for packed in (alone, among))
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype == np.int64


@given(st.integers(1, 5000))
@settings(max_examples=200, deadline=None)
def test_numbers_of_tokens_are_few(count):
    """They are rounded up by at most a sixteenth, so that all up to 5,000 are about a hundred."""
    rounded = len(pack_rows(np.ones((1, count), np.int64), np.ones((1, count))).ids)
    assert count <= rounded <= count * (1 + 1 / 16) + 1


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("window", "key_heads"), [(None, 2), (2, 2), (None, 1)])
def test_rows_do_not_see_each_other(window, key_heads, causal):
    """Each one's result is that of attending alone, also with a window or shared keys."""
    torch.manual_seed(1)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 0, 0, 0], [1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    packed = packed_of(torch.zeros_like(mask), mask)
    module = torch.nn.Module()
    module.is_causal = causal
    module.ge_rows = CurrentRows()
    module.ge_rows.spans, module.ge_rows.columns = packed.spans, packed.columns.numpy()
    size = len(packed.ids)
    query = torch.randn(1, 2, size, 4)
    key, value = torch.randn(2, 1, key_heads, size, 4)
    found, _ = packed_attention(module, query, key, value, None, 0.5, window)

    for row in range(4):
        own = (packed.rows == row).nonzero().squeeze(1)
        places = torch.arange(len(own))
        near = (places - places[:, None]).abs() < (window or len(own))
        near &= (places <= places[:, None]) | (not causal)
        repeated = [item[0, :, own].repeat_interleave(2 // key_heads, 0) for item in (key, value)]
        scores = (query[0, :, own] @ repeated[0].transpose(1, 2) * 0.5).masked_fill(
            ~near, float("-inf")
        )
        expected = (scores.softmax(-1) @ repeated[1]).transpose(0, 1)
        torch.testing.assert_close(found[0, own], expected)
