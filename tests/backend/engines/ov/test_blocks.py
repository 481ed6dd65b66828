"""Rows in blocks: every token once, whole rows together, and attention as with one large mask."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("openvino")
pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

from ge_backend.engines.ov.blocks import STEPS, arrange, in_blocks  # noqa: E402
from ge_backend.engines.torch.masked_layers import masks  # noqa: E402

STEP = 32


def ends_of(lengths):
    return np.cumsum([0, *lengths])


@given(
    st.lists(st.integers(1, 300), max_size=40),
    st.integers(0, 9),
    st.sampled_from(sorted(STEPS.values())),
)
def test_every_row_stands_whole_in_one_block(lengths, behind, step):
    """In order, where `slots` says; blocks are as wide as the longest row, rounded up."""
    ends = ends_of(lengths)
    blocks = arrange(ends, int(ends[-1]) + behind, step)
    tokens, rows = blocks.block_tokens
    count, width = int(ends[-1]), tokens.shape[1]
    assert width == max(1, -(-max(lengths, default=1) // step)) * step
    assert blocks.slots.shape == (count + behind,)
    assert (blocks.slots[count:] == 0).all()
    np.testing.assert_array_equal(tokens.flat[blocks.slots[:count]], np.arange(count))
    assert (rows >= 0).sum() == count
    for row, (begin, end) in enumerate(itertools.pairwise(ends)):
        slots = blocks.slots[begin:end]
        np.testing.assert_array_equal(slots, slots[0] + np.arange(end - begin))
        assert slots[0] // width == slots[-1] // width
        assert (rows.flat[slots] == row).all()


@given(st.lists(st.integers(1, 300), min_size=1, max_size=40))
def test_blocks_are_few(lengths):
    """No two of them would fit into one, so all but one are more than half full on average."""
    _, rows = arrange(ends_of(lengths), sum(lengths), STEP).block_tokens
    full, width = (rows >= 0).sum(1), rows.shape[1]
    assert all(a + b > width for i, a in enumerate(full) for b in full[i + 1 :])


def test_a_row_alone_always_stands_in_the_same_block():
    """Which nobody changes."""
    first, again = (arrange(ends_of([9]), 16, STEP) for _ in range(2))
    assert first is again
    with pytest.raises(ValueError, match="read-only"):
        first.block_tokens[0] = 1


def test_short_rows_share_the_long_ones_block():
    _, rows = arrange(ends_of([4, 8, 20, 30]), 62, STEP).block_tokens
    assert rows.shape == (2, 32)
    assert [{row for row in block if row >= 0} for block in rows.tolist()] == [{3}, {0, 1, 2}]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 5])
def test_a_token_sees_what_it_sees_with_a_mask_over_all(window, causal):
    """Its row, as far as a window goes, or a decoder's looks; what is behind the rows is finite."""
    lengths = [3, 7, 40, 33, 1]
    ends, count = ends_of(lengths), sum(lengths)
    rows = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    positions = torch.cat([torch.arange(length) for length in lengths] + [torch.zeros(2)]).long()
    heads = torch.randn(3, 1, 2, count + 2, 8, generator=torch.Generator().manual_seed(0))
    blocks = arrange(ends, count + 2, STEP)
    told = map(torch.from_numpy, (blocks.slots, blocks.block_tokens))
    how = {"scale": 0.3, "window": window, "causal": causal}
    found = in_blocks(torch.float32)(*told, positions).attend(*heads, **how)
    whole = masks(torch.float32)(torch.cat([rows, torch.full((2,), -1)]), positions)
    expected = whole.attend(*heads, **how)
    torch.testing.assert_close(found[:, :, :count], expected[:, :, :count])
    assert torch.isfinite(found).all()
