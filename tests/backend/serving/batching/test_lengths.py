"""Rows with real sizes of their own: what tells them, what is cut, and what stands behind."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_backend.errors import GraphFailed
from ge_backend.model.layout.layout import OutputLayout
from ge_backend.serving.batching.lengths import concatenated, cut_to_lengths, row_lengths
from ge_backend.tensors import DATA_TYPES


def output(dims, lengths, *, fill=0.0, dtype="INT64"):
    names = tuple(f"d{at}" for at in range(len(dims)))
    return OutputLayout(
        name="y",
        dtype=DATA_TYPES[dtype],
        dims=dims,
        axes=(-1,) * len(dims),
        names=names,
        lengths=lengths,
        fill=fill,
    )


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        pytest.param([3, 0, 2], [3, 0, 2], id="a number per row"),
        pytest.param([[3], [0], [2]], [3, 0, 2], id="a column of numbers"),
        pytest.param([[1, 1, 1], [0, 0, 0], [1, 1, 0]], [3, 0, 2], id="a mask"),
        pytest.param([[0, 0, 1], [0, 1, 0]], [3, 2], id="a mask with holes hides nothing real"),
        pytest.param([[1], [0]], [1, 0], id="a mask of one place"),
        pytest.param([[True, False]], [1], id="a mask of truth values"),
        pytest.param(np.zeros((2, 0), np.int64), [0, 0], id="a mask of no places"),
    ],
)
def test_lengths_are_numbers_or_masks(told, expected):
    """Both are common: speech encoders tell frame counts, tokenizers a mask."""
    assert row_lengths("n", {"n": np.array(told)}, batched=True).tolist() == expected


@pytest.mark.parametrize("told", [5, [1, 1, 1, 1, 1, 0]])
def test_without_a_batch_dimension_there_is_one_row(told):
    """A number is a scalar then, and a mask has one dimension."""
    assert row_lengths("n", {"n": np.array(told)}, batched=False).tolist() == [5]


@pytest.mark.parametrize(
    ("outputs", "named"),
    [
        ({}, "no output 'n'"),
        ({"n": np.zeros(2, np.float32)}, r"float32 \[2\]"),
        ({"n": np.zeros((2, 3, 4), np.int64)}, r"int64 \[2, 3, 4\]"),
    ],
)
def test_an_output_that_tells_no_lengths_fails_the_run(outputs, named):
    """What it is instead is named."""
    with pytest.raises(GraphFailed, match=named):
        row_lengths("n", outputs, batched=True)


def test_each_part_is_cut_to_its_longest_row():
    """What is behind a shorter row's end is the fill, whatever the graph left there."""
    whole = np.arange(24).reshape(4, 6)
    parts = [whole[:1], whole[1:3], whole[3:]]
    cut = cut_to_lengths(
        output((-1,), ("n",), fill=-7), parts, {"n": np.array([2, 1, 3, 6])}, batched=True
    )
    assert [part.tolist() for part in cut] == [
        [[0, 1]],
        [[6, -7, -7], [12, 13, 14]],
        [[18, 19, 20, 21, 22, 23]],
    ]
    assert whole[1, 1] == 7  # the graph's own tensor is not written


def test_a_part_of_equal_rows_is_a_view():
    """Nothing is copied before the reply unless it has to be."""
    whole = np.zeros((2, 6))
    (cut,) = cut_to_lengths(output((-1,), ("n",)), [whole], {"n": np.array([4, 4])}, batched=True)
    assert np.shares_memory(cut, whole)


def test_two_dimensions_with_lengths_of_their_own():
    """Images keep their height and their width; other dimensions stay whole."""
    whole = np.ones((2, 3, 5, 7), np.int64)
    lengths = {"h": np.array([4, 2]), "w": np.array([3, 6])}
    (cut,) = cut_to_lengths(output((3, -1, -1), ("", "h", "w")), [whole], lengths, batched=True)
    assert cut.shape == (2, 3, 4, 6)
    assert cut[0].sum() == 3 * 4 * 3
    assert cut[1].sum() == 3 * 2 * 6
    assert cut[0, :, :4, :3].all()
    assert cut[1, :, :2, :6].all()


def test_without_a_batch_dimension_the_row_is_cut():
    """The output has no batch dimension afterwards either."""
    (cut,) = cut_to_lengths(
        output((-1,), ("n",)), [np.arange(5)], {"n": np.array([3])}, batched=False
    )
    assert cut.tolist() == [0, 1, 2]


def test_texts_are_filled_with_empty_ones():
    """A number would be no BYTES element."""
    whole = np.array([[b"a", b"?"], [b"b", b"c"]], object)
    (cut,) = cut_to_lengths(
        output((-1,), ("n",), dtype="BYTES"), [whole], {"n": np.array([1, 2])}, batched=True
    )
    assert cut.tolist() == [[b"a", b""], [b"b", b"c"]]


@pytest.mark.parametrize("told", [[2, 7], [-1, 2], [2]])
def test_a_length_beyond_the_output_fails_the_run(told):
    """Cutting would give clients something wrong without a word."""
    with pytest.raises(GraphFailed, match=r"'n' says .* 'y' have .* from 0 to 6"):
        cut_to_lengths(
            output((-1,), ("n",)), [np.zeros((2, 6))], {"n": np.array(told)}, batched=True
        )


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4), st.integers(0, 4)), min_size=1))
def test_parts_of_different_sizes_are_put_together(shapes):
    """Every part lies in its corner of the whole, and all the rest is the fill."""
    parts = [np.full(shape, at + 1) for at, shape in enumerate(shapes)]
    whole = concatenated(parts, -1.0)
    assert whole.shape == (sum(rows for rows, _, _ in shapes), *np.max(shapes, axis=0)[1:])
    first = 0
    for at, (rows, high, wide) in enumerate(shapes):
        block = whole[first : first + rows]
        assert (block[:, :high, :wide] == at + 1).all()
        assert (block == at + 1).sum() == rows * high * wide
        first += rows
    assert set(np.unique(whole)) <= {-1, *range(1, len(shapes) + 1)}


def test_texts_of_different_sizes_are_put_together():
    """The fill of texts is empty text."""
    parts = [np.array([[b"a"]], object), np.array([[b"b", b"c"]], object)]
    assert concatenated(parts, 0.0).tolist() == [[b"a", b""], [b"b", b"c"]]
