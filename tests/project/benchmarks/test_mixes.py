"""The traffic is what it says, and the same in every run."""

import numpy as np
import pytest
from benchmarks.encoder.mixes import FIRST_ID, LAST_ID, LONGEST, MIXES, draw


def lengths_of(name, count=4000, seed=0):
    return np.array([len(row) for row in draw(MIXES[name], count, seed)])


def test_lognormal_has_the_stated_median_and_tail():
    """The log-normal mix has median 24, a mean above it, and is clipped at 256."""
    lengths = lengths_of("lognormal", 20_000)
    assert 23 <= np.median(lengths) <= 25
    assert 31 <= lengths.mean() <= 35
    assert lengths.max() == LONGEST
    assert lengths.min() >= 3


def test_uniform_covers_its_whole_range():
    """The uniform mix reaches both of its ends and leaves neither."""
    lengths = lengths_of("uniform")
    assert (lengths.min(), lengths.max()) == (8, 128)
    assert 66 <= lengths.mean() <= 70


@pytest.mark.parametrize("name", MIXES)
def test_same_seed_same_rows(name):
    """A seed gives the same rows again, another seed gives others."""
    first, again, other = (draw(MIXES[name], 50, seed) for seed in (7, 7, 8))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert [len(row) for row in first] != [len(row) for row in other]


@pytest.mark.parametrize("name", MIXES)
def test_rows_are_sequences_of_the_encoder(name):
    """Every row is INT64 and has the encoder's first and last token at its ends only."""
    for row in draw(MIXES[name], 200, 1):
        assert row.dtype == np.int64
        assert (row[0], row[-1]) == (FIRST_ID, LAST_ID)
        assert row[1:-1].min(initial=1000) >= 1000
