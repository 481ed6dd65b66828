"""What the graphs compute."""

import numpy as np
import pytest

from acl_simulator import Accumulate, Affine, Echo, Encoder, Kept, MatMul, Sums, TokenRows

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_small_ones():
    assert np.array_equal(Echo().expected(x=X)["y"], X)
    assert np.array_equal(Affine(a=3, b=-1).expected(x=X)["y"], 3 * X - 1)
    assert np.array_equal(Sums().expected(x=X)["y"], [3, 12])
    assert np.array_equal(Kept().expected(x=X[0])["y"], [1, 2])
    matrix = MatMul(rows=3, columns=2)
    assert np.array_equal(matrix.expected(x=X)["y"], X @ matrix.weights()["w"])
    rows = TokenRows(vocabulary=5, width=2)
    ids = np.array([[4, 0]])
    assert np.array_equal(rows.expected(input_ids=ids)["y"], rows.weights()["table"][ids])
    step = Accumulate().expected(x=X, h=2 * X, n=np.ones((2, 1), np.float32))
    assert np.array_equal(step["h_next"], 3 * X)
    assert np.array_equal(step["y"], 3 * X)
    assert step["n_next"].tolist() == [[2], [2]]


@pytest.mark.parametrize("dtype", [np.float16, np.int8, np.int64])
def test_results_keep_the_type(dtype):
    x = np.arange(4, dtype=dtype)
    assert Affine().expected(x=x)["y"].dtype == Sums().expected(x=x)["y"].dtype == dtype


def encode(rows, length):
    """Encode rows of ids, padded to a length."""
    ids = np.zeros((len(rows), length), np.int64)
    mask = np.zeros_like(ids)
    for at, row in enumerate(rows):
        ids[at, : len(row)] = row
        mask[at, : len(row)] = 1
    return Encoder().expected(input_ids=ids, attention_mask=mask)["y"]


def test_an_encoders_rows_depend_on_nothing_but_themselves():
    rows = [[1, 2, 3], [5], [7, 7, 9, 11]]
    together = encode(rows, 16)
    for row, encoded in zip(rows, together, strict=True):
        assert np.array_equal(encode([row], len(row))[0], encoded)


def test_an_encoder_mixes_its_tokens():
    first, second = encode([[1, 2, 3]], 3), encode([[1, 2, 4]], 3)
    means = [Encoder().weights()["table"][ids].mean(axis=0) for ids in ([1, 2, 3], [1, 2, 4])]
    assert not np.allclose(first, second)
    assert not np.allclose(first - second, means[0] - means[1])


def test_an_empty_row_is_zero():
    assert np.array_equal(encode([[], [1]], 2)[0], np.zeros(8))


@pytest.mark.parametrize("wrong", [-1, 100])
def test_ids_outside_the_vocabulary_fail_even_in_padding(wrong):
    ids = np.array([[1, wrong]])
    with pytest.raises(IndexError, match="an id outside"):
        Encoder().expected(input_ids=ids, attention_mask=np.array([[1, 0]]))
