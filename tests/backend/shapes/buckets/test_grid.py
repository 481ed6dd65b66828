import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_backend.errors import ConfigError
from ge_backend.shapes.buckets import grid as grid_module
from ge_backend.shapes.buckets.axis import default_axis, listed_axis, parse_axis
from ge_backend.shapes.buckets.grid import (
    covers,
    file_grid,
    largest_buckets,
    listed_grid,
    product_grid,
)

SIZES = st.sets(st.integers(1, 40), min_size=1, max_size=4).map(tuple)
GRIDS = st.lists(SIZES, min_size=1, max_size=3).map(
    lambda columns: product_grid(listed_axis(f"axis{i}", v) for i, v in enumerate(columns))
)
ENTRIES = st.sets(st.tuples(st.integers(1, 9), st.integers(1, 40)), min_size=1, max_size=9)


def grid_of(rows, lengths):
    return product_grid([listed_axis("rows", rows), listed_axis("length", lengths)])


@given(grid=GRIDS, budget=st.integers(1, 60_000))
def test_a_budget_leaves_a_bucket_for_every_size(grid, budget):
    """Within a budget no bucket exceeds it, and one row of any size still has a bucket."""
    try:
        smaller = grid.within(budget)
    except ConfigError:
        largest_single = min(e for e in grid.entries if e[1:] == grid.entries[-1][1:])
        assert math.prod(largest_single) > budget
        return
    assert all(math.prod(entry) <= budget for entry in smaller.entries)
    for sizes in itertools.product(*(axis.values for axis in grid.axes[1:])):
        assert any(covers(entry, (1, *sizes)) for entry in smaller.entries)


def test_a_budget_looks_for_cover_only_where_a_size_has_lost_its_buckets(monkeypatch):
    """Thousands of buckets would take the square of their number else, at every load."""
    asked = []
    monkeypatch.setattr(grid_module, "covers", lambda *pair: asked.append(pair) or covers(*pair))
    product = grid_of(range(1, 65), range(8, 513, 8))
    assert len(product.within(8192).entries) < len(product.entries)
    assert asked == []
    listed = listed_grid(("rows", "length"), [(1, 64), (3, 48), (4, 48)])
    assert listed.within(100).entries == ((1, 64),)
    assert asked == [((1, 64), (1, 48))]


def test_a_budget_that_is_too_small_is_explained():
    """An error names a bucket that is too large and what to change."""
    with pytest.raises(ConfigError, match=r"bucket 1x64 has 64 elements, the budget is 63.*raise"):
        grid_of((1, 2), (16, 64)).within(63)


def test_describes_itself():
    """The log has one line per axis, and one for the whole."""
    axes = [default_axis("rows", 4), parse_axis("16, 64", name="length")]
    grid = product_grid(axes)
    assert grid.describe() == [
        "rows: exponential(min=1, step=1, max=4, limit=3) -> 1, 2, 4",
        "length: list -> 16, 64",
        "6 buckets (rows x length), the largest 4x64",
    ]
    assert grid.within(128).describe()[-1] == ("5 of 6 buckets (rows x length), the largest 2x64")


def test_huge_products_are_refused():
    """A product larger than any device holds is an error with the counts, and not computed."""
    axis = tuple(range(1, 1001))
    with pytest.raises(ConfigError, match="1000 rows x 1000 length make 1000000 buckets"):
        grid_of(axis, axis)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([], "axis 'rows': makes no sizes"),
        ([(1, 2, 3)], "has 3 places, expected rows, length"),
        ([(0, 2)], "axis 'rows': size 0 is outside"),
    ],
)
def test_lists_that_make_no_grid(entries, said):
    """Entries are as many numbers as there are axes, each at least one."""
    with pytest.raises(ConfigError, match=said):
        listed_grid(("rows", "length"), entries)


def test_a_grid_from_a_file(tmp_path):
    """A file for a model with one ragged axis has two places a line."""
    path = tmp_path / "buckets.txt"
    path.write_text("([1, 4], 64)\n(8, 16)\n")
    grid = file_grid(path, ("length",))
    assert grid.names == ("rows", "length")
    assert grid.entries == ((1, 64), (4, 64), (8, 16))
    path.write_text("(1, 0)\n")
    with pytest.raises(ConfigError, match=r"line 1: .*place 2 is 0"):
        file_grid(path, ("length",))


def test_the_largest_buckets_cover_all_others():
    """And none of them another; of a product it is one."""
    assert largest_buckets([(1, 16), (1, 256), (8, 16), (4, 16)]) == [(1, 256), (8, 16)]
    grid = product_grid([listed_axis("rows", [1, 4]), listed_axis("length", [8, 32])])
    assert largest_buckets(grid.entries) == [(4, 32)]
