import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_backend.errors import ConfigError
from ge_backend.shapes.buckets.axis import default_axis, listed_axis, parse_axis


def test_a_list_is_sorted_and_each_size_once():
    """Sizes may be given in any order."""
    assert parse_axis("8, 4,4,1", name="rows").values == (1, 4, 8)


def test_one_line_says_how_the_sizes_came_about():
    """The log line has the rule, all its numbers, and what they made."""
    line = parse_axis("exponential(16, 16, 256, 5)", name="length").describe()
    assert line == (
        "length: exponential(min=16, step=16, max=256, limit=5) -> 16, 32, 64, 128, 256"
    )
    assert parse_axis("2,1", name="rows").describe() == "rows: list -> 1, 2"


def test_the_line_warns_of_sizes_without_bucket():
    """A rule that ends below its own maximum says so."""
    line = parse_axis("linear(1, 32, 100)", name="length").describe()
    assert line.endswith("96 (sizes above 96 have no bucket)")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0,1", "size 0 is outside 1 to"),
        ("linear(0, 1, 5)", "size 0 is outside 1 to"),
        ("-1", "size -1 is outside"),
        ("2147483648", "size 2147483648 is outside"),
        ("linear(128, 10, 128)", "makes no sizes"),
        ("exponential(9, 1, 4)", "min is 9, expected at most max, which is 4"),
        ("exponential(1, 1, 8, 0)", "limit is 0"),
        ("exponential(0, 1, 0)", "size 0 is outside 1 to"),
        ("unified(0, 0, 32)", "size 0 is outside 1 to"),
        ("word", "no whole number"),
    ],
)
def test_a_bad_parameter_is_named(text, said):
    """An error names the parameter, its text, and what was expected."""
    with pytest.raises(ConfigError, match=said) as caught:
        parse_axis(text, name="length")
    assert str(caught.value).startswith(f"parameter 'buckets.length' is '{text}': ")


def test_listed_axes_are_checked_too():
    """Sizes that do not come from a parameter are held to the same bounds."""
    assert listed_axis("rows", (4, 1)).values == (1, 4)
    with pytest.raises(ConfigError, match="axis 'rows': makes no sizes"):
        listed_axis("rows", ())
    with pytest.raises(ConfigError, match="axis 'rows': has 100001 sizes"):
        listed_axis("rows", tuple(range(1, 100_002)))


@pytest.mark.parametrize(
    ("name", "maximum", "values"),
    [
        ("rows", 1, (1,)),
        ("rows", 8, (1, 2, 4, 8)),
        ("rows", 6, (1, 2, 4, 6)),
        ("length", 512, (16, 32, 64, 128, 256, 512)),
        ("length", 500, (16, 32, 64, 128, 256, 500)),
        ("length", 10, (10,)),
    ],
)
def test_defaults(name, maximum, values):
    """With nothing configured sizes about double, up to the maximum."""
    assert default_axis(name, maximum).values == values


@pytest.mark.parametrize(
    ("name", "maximum", "values"),
    [
        ("sequence", 256, (16, 24, 32, 48, 64, 96, 128, 184, 256)),
        ("sequence", 8, (8,)),
        ("rows", 8, (1, 2, 4, 8)),
    ],
)
def test_finer_defaults(name, maximum, values):
    """Twice as many lengths, where a bucket costs little; rows are as they were."""
    assert default_axis(name, maximum, finer=True).values == values


def test_a_default_needs_a_maximum():
    """An axis of no size at all is an error, not an empty axis."""
    for name in ("rows", "length"):
        with pytest.raises(ConfigError, match="size 0 is outside 1 to"):
            default_axis(name, 0)


@given(name=st.sampled_from(["rows", "length"]), maximum=st.integers(1, 10**6))
def test_every_size_up_to_the_maximum_is_covered(name, maximum):
    """The default covers every size, at most rounding beyond twice the one below it."""
    axis = default_axis(name, maximum)
    assert axis.largest == maximum
    for lower, upper in itertools.pairwise(axis.values):
        assert upper <= 2 * lower + axis.values[0]


@given(values=st.sets(st.integers(1, 99), min_size=1), maximum=st.integers(1, 99))
def test_clipping_keeps_what_is_below_covered(values, maximum):
    """After clipping nothing is above the maximum, and what was covered below it still is."""
    axis = listed_axis("length", tuple(values))
    clipped = axis.clipped(maximum)
    assert clipped.largest <= maximum
    assert clipped.largest == min(maximum, axis.largest)
    assert {v for v in axis.values if v <= maximum} <= set(clipped.values)
