"""Rows end to end become one vector each."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ge_backend.engines.torch.reduction import REDUCTIONS  # noqa: E402

LENGTHS = 3, 1, 5
COUNT, SIZE, ROOM = sum(LENGTHS), 12, 6


@pytest.fixture
def given():
    """Hidden states with garbage behind the last token, whose they are, and where rows end."""
    hidden = torch.randn(SIZE, 4, generator=torch.Generator().manual_seed(1))
    hidden[COUNT:] = torch.nan
    rows = torch.tensor([7] * 3 + [0] * 1 + [4] * 5 + [-1] * (SIZE - COUNT))
    ends = torch.tensor([0, *np.cumsum(LENGTHS), SIZE, SIZE, SIZE])
    assert len(ends) == ROOM + 1
    return hidden, rows, ends


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("first", lambda row: row[0]),
        ("last", lambda row: row[-1]),
        ("mean", lambda row: row.mean(0)),
    ],
)
def test_each_row_is_reduced_alone(given, name, expected):
    """Whatever lies behind them; there is room for more rows."""
    found = REDUCTIONS[name](*given)
    assert found.shape == (ROOM, 4)
    truth = [expected(row) for row in given[0][:COUNT].split(LENGTHS)]
    torch.testing.assert_close(found[: len(LENGTHS)], torch.stack(truth))


@pytest.mark.parametrize("odd", [torch.inf, torch.nan])
def test_a_row_that_is_no_number_spoils_no_other(given, odd):
    """Texts of other clients lie beside it."""
    hidden, rows, ends = given
    hidden[4, 2] = odd
    found = REDUCTIONS["mean"](hidden, rows, ends)
    assert found[2].isnan().any()
    assert found[[0, 1]].isfinite().all()


def test_no_other_is_claimed():
    """The largest of each row is left to the host."""
    assert sorted(REDUCTIONS) == ["first", "last", "mean"]
