"""The pool of sequences and the comparison with the truth."""

import numpy as np
import pytest
from benchmarks.encoder.mixes import MIXES, draw
from benchmarks.pool import CHECK_EVERY, Pool, load_pools, save_pools, truth
from benchmarks.tally import Tally


def forward(ids, mask):
    return np.repeat((ids * mask).sum(1, keepdims=True), 4, axis=1).astype(np.float32)


@pytest.fixture
def pool():
    rows = draw(MIXES["uniform"], 40, 3)
    return Pool(rows=tuple(rows), answers=truth(rows, forward), tolerance=0.5)


def test_every_sixteenth_row_has_its_truth(pool):
    """The truth is the row's own forward pass, for every 16th row."""
    assert list(pool.answers) == [0, CHECK_EVERY, 2 * CHECK_EVERY]
    assert pool.answers[CHECK_EVERY][0] == pool.rows[CHECK_EVERY].sum()


def test_pools_survive_their_file(pool, tmp_path):
    """What was saved is loaded again."""
    path = tmp_path / "pools.npz"
    save_pools({"a": pool, "b": pool}, path)
    loaded = load_pools(path)
    assert list(loaded) == ["a", "b"]
    assert loaded["b"].tolerance == 0.5
    assert all(np.array_equal(x, y) for x, y in zip(loaded["a"].rows, pool.rows, strict=True))
    assert np.array_equal(loaded["a"].answers[16], pool.answers[16])


def answer(pool, position, offset=0.0):
    return (pool.answers[position] + np.float32(offset)).tobytes()


def read(data):
    return np.frombuffer(data, np.float32)


def test_tally_accepts_right_answers_and_keeps_only_those_it_checks(pool):
    """Answers without a known truth are counted, not kept."""
    tally = Tally(pool)
    tally.add(0, 0.0, answer(pool, 0, 0.25), failed=False)
    tally.add(1, 0.0, b"whatever", failed=False)
    tally.check(read)
    assert (len(tally.ends), len(tally.kept), tally.errors) == (2, 1, [])


@pytest.mark.parametrize("offset", [1.0, -1.0, np.nan])
def test_tally_reports_wrong_answers(pool, offset):
    """An answer beyond the tolerance, or not a number, is an error that names the row."""
    tally = Tally(pool)
    tally.add(16, 0.0, answer(pool, 16, offset), failed=False)
    tally.check(read)
    assert len(tally.errors) == 1
    assert tally.errors[0].startswith("row 16: off by")


def test_tally_reports_failed_requests_and_wrong_shapes(pool):
    """A failed request and an answer of another size are errors."""
    tally = Tally(pool)
    tally.add(5, 0.0, b"HTTP/1.1 500 nope", failed=True)
    tally.add(0, 0.0, answer(pool, 0)[:8], failed=False)
    tally.check(read)
    assert tally.errors[0] == "HTTP/1.1 500 nope"
    assert "shape (2,), expected (4,)" in tally.errors[1]
