import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_backend.errors import ConfigError
from ge_backend.shapes.traffic.histogram import (
    SizeHistogram,
    dump_histograms,
    independent_shapes,
    load_histograms,
)

ONE_AXIS = (
    '{{"version": 1, "axes": {{"rows": '
    '{{"max_bins": 64, "digits": {digits}, "largest": 1, "counts": [[1, {count}]]}}}}}}'
)
VALUES = st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 300), max_size=300)


def histogram_of(values, max_bins=64):
    histogram = SizeHistogram(max_bins=max_bins)
    for value in values:
        histogram.add(value)
    return histogram


def test_few_values_are_kept_exactly():
    """Up to the number of bins every value is itself."""
    histogram = histogram_of([7, 3, 7, 1000])
    histogram.add(3, 4)
    assert histogram.points() == [(3, 5), (7, 2), (1000, 1)]
    assert histogram.total == 8


@given(values=VALUES)
def test_memory_is_bounded_and_nothing_is_lost(values):
    """However many values there are, bins stay few and counts add up."""
    histogram = histogram_of(values)
    points = histogram.points()
    assert len(points) <= 64
    assert sum(count for _, count in points) == len(values)
    assert histogram.largest == max(values, default=0)
    assert all(value <= histogram.largest for value, _ in points)


@given(values=VALUES, bound=st.integers(0, 2**31))
def test_coarse_values_are_never_too_small(values, bound):
    """A bin stands for values up to its own: whatever covers the bin covers them."""
    histogram = histogram_of(values)
    within = sum(count for value, count in histogram.points() if value <= bound)
    assert within <= sum(value <= bound for value in values)


@given(values=VALUES, data=st.data())
def test_order_and_merging_make_no_difference(values, data):
    """Histograms of two halves, merged, are the histogram of the whole in any order."""
    shuffled = data.draw(st.permutations(values))
    cut = data.draw(st.integers(0, len(values)))
    merged = histogram_of(shuffled[:cut])
    merged.merge(histogram_of(shuffled[cut:]))
    assert merged == histogram_of(values)


@given(values=VALUES)
def test_survives_a_file(values):
    """What was written reads back the same."""
    histograms = {"rows": histogram_of(values), "length": SizeHistogram()}
    assert load_histograms(dump_histograms(histograms), "f") == histograms


def test_shapes_of_independent_axes():
    """Weights of shapes are products of the axes' shares, over powers of two."""
    shapes = independent_shapes([histogram_of([1, 1, 1, 4]), histogram_of([100, 128])])
    assert shapes == {(1, 128): 0.75, (4, 128): 0.25}
    assert independent_shapes([SizeHistogram()]) == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 1}',
        '{"version": 1, "axes": []}',
        '{"version": 1, "axes": {"rows": {}}}',
        ONE_AXIS.format(digits=64, count=-1),
        ONE_AXIS.format(digits=0, count=1),
        ONE_AXIS.format(digits=64, count="1e999"),
        ONE_AXIS.format(digits=64, count="[" * 100_000),
    ],
)
def test_other_files_are_refused(text):
    """A file that holds something else is one error that names it."""
    with pytest.raises(ConfigError, match=r"traffic\.json is no traffic histogram"):
        load_histograms(text, "traffic.json")


def test_a_sound_file_of_that_form_is_read():
    """The malformed files above differ from a sound one in a single number."""
    read = load_histograms(ONE_AXIS.format(digits=64, count=1), "f")
    assert read["rows"].points() == [(1, 1)]


def test_other_versions_are_refused():
    """A later version's file says which version was expected."""
    text = json.dumps({"version": 2, "axes": {}})
    with pytest.raises(ConfigError, match="has version 2, expected 1"):
        load_histograms(text, "traffic.json")


def test_too_few_bins_are_refused():
    """Fewer bins than powers of two cannot be kept."""
    with pytest.raises(ConfigError, match="max_bins is 63, expected at least 64"):
        SizeHistogram(max_bins=63)
