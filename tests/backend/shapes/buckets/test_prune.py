import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_backend.errors import ConfigError
from ge_backend.shapes.buckets import prune as prune_module
from ge_backend.shapes.buckets.axis import listed_axis
from ge_backend.shapes.buckets.grid import listed_grid, padded_elements, product_grid
from ge_backend.shapes.buckets.prune import prune

ENTRIES = st.sets(st.tuples(st.integers(1, 8), st.integers(1, 20)), min_size=1, max_size=10)


def expected_cost(grid, traffic):
    """Return what the traffic costs: each shape pays for the cheapest bucket that covers it."""
    paid = 0.0
    for (rows, *sizes), weight in traffic.items():
        covering = [
            e for e in grid.entries if all(a >= b for a, b in zip(e[1:], sizes, strict=True))
        ]
        whole = [e for e in covering if e[0] >= rows] or covering
        paid += weight * min(-(-rows // entry[0]) * padded_elements(entry) for entry in whole)
    return paid


def grid_of(rows, lengths):
    return product_grid([listed_axis("rows", rows), listed_axis("length", lengths)])


@given(entries=ENTRIES, count=st.integers(1, 10), data=st.data())
def test_every_length_keeps_a_bucket(entries, count, data):
    """However few graphs there may be, every length that had a bucket has one, or it is an error."""
    grid = listed_grid(("rows", "length"), entries)
    shapes = st.tuples(st.integers(1, 9), st.integers(1, 21))
    traffic = data.draw(st.none() | st.dictionaries(shapes, st.floats(0, 9), max_size=9))
    smaller = prune(grid, count, traffic)
    assert len(smaller.entries) <= count
    assert set(smaller.entries) <= set(grid.entries)
    assert max(e[1] for e in smaller.entries) == max(e[1] for e in grid.entries)


def test_the_largest_bucket_of_a_product_stays():
    """Pruned to a single graph, a product is its largest bucket."""
    assert prune(grid_of((1, 4), (16, 64)), 1).entries == ((4, 64),)


def test_traffic_decides_what_goes():
    """Buckets that traffic uses stay, wherever in the grid they are."""
    grid = grid_of((1, 2, 4, 8), (16, 32, 64, 128))
    short = prune(grid, 3, {(8, 10): 5.0, (1, 12): 9.0})
    assert short.entries == ((1, 16), (8, 16), (8, 128))
    long = prune(grid, 3, {(1, 128): 5.0, (2, 60): 9.0})
    assert long.entries == ((1, 128), (2, 64), (8, 128))


def test_pruned_grids_are_close_to_the_best_of_all():
    """On small grids no choice of as many buckets is more than a quarter cheaper."""
    generator = random.Random(5)
    for _ in range(20):
        grid = grid_of((1, 2, 4), (16, 32, 64))
        traffic = {
            (generator.randint(1, 4), generator.randint(1, 64)): generator.random()
            for _ in range(12)
        }
        for count in (2, 4, 6):
            found = expected_cost(prune(grid, count, traffic), traffic)
            best = min(
                expected_cost(listed_grid(grid.names, (*chosen, (4, 64))), traffic)
                for chosen in itertools.combinations(grid.entries[:-1], count - 1)
            )
            assert best <= found + 1e-9
            assert found <= 1.25 * best


def test_rows_that_no_bucket_has_are_split():
    """A shape with more rows than any bucket pays for several runs, and keeps the bucket with most."""
    grid = listed_grid(("rows", "length"), [(1, 16), (2, 16), (3, 16), (4, 16), (4, 32)])
    assert prune(grid, 2, {(4, 10): 1.0, (8, 10): 1.0}).entries == ((4, 16), (4, 32))


def test_more_buckets_than_can_be_weighed_are_refused():
    """Each one is weighed against each other one: that is refused, not begun."""
    grid = grid_of(range(1, 65), range(8, 513, 8))
    with pytest.raises(ConfigError, match=r"max_graphs.* 4096 buckets, more .* larger steps"):
        prune(grid, 100)
    assert len(prune(grid, 100, {(3, 100): 1.0, (5, 9): 2.0}).entries) == 100


def test_of_too_much_traffic_the_heaviest_counts(monkeypatch):
    """A model that was loaded before there was traffic is loaded after it, too."""
    monkeypatch.setattr(prune_module, "MAX_OFFERS", 2 * 3)
    grid = grid_of((1,), (16, 32, 64))
    traffic = {(1, 20): 0.1, (1, 10): 0.6, (1, 60): 0.3}
    assert prune(grid, 2, traffic).entries == ((1, 16), (1, 64))
    assert prune(grid, 2, {**traffic, (1, 20): 0.7}).entries == ((1, 32), (1, 64))


def test_a_limit_below_what_coverage_needs_is_an_error():
    """Two sizes of which neither covers the other need two graphs."""
    grid = listed_grid(("rows", "height", "width"), [(1, 8, 64), (1, 64, 8), (2, 8, 64)])
    assert prune(grid, 2).entries == ((1, 64, 8), (2, 8, 64))
    with pytest.raises(ConfigError, match="max_graphs is 1, expected at least 2"):
        prune(grid, 1)
    with pytest.raises(ConfigError, match="max_graphs is 0, expected at least 1"):
        prune(grid_of((1,), (16,)), 0)
