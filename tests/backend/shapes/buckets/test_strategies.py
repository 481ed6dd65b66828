import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_backend.errors import ConfigError
from ge_backend.shapes.buckets.curve import Curve
from ge_backend.shapes.buckets.strategies import (
    default_limit,
    exponential,
    exponential_fill,
    linear,
    padding_aware,
    unified,
)

SIZES = st.integers(1, 5000)
STEPS = st.sampled_from([1, 2, 3, 8, 16, 100, 128]) | st.integers(1, 300)
LIMITS = st.integers(2, 20)


def exact_points(first, last, step, limit):
    """Return the points by bisection over whole numbers: slow, and without floats."""
    points = []
    for index in range(limit):
        power = first ** (limit - 1 - index) * last**index
        low, high = 0, max(first, last) // step + 1
        while low < high:
            middle = (low + high) // 2
            if (middle * step) ** (limit - 1) >= power:
                high = middle
            else:
                low = middle + 1
        points.append(low * step)
    return points


def float_points(first, last, step, limit):
    """Return the points by the reference's expression."""
    return [
        math.ceil(first * (last / first) ** ((1.0 / float(limit - 1)) * index) / step) * step
        for index in range(limit)
    ]


def make(case, compat):
    kind = case["strategy"]
    numbers = [case[name] for name in ("min", "step", "max") if name in case]
    if kind == "range_lin":
        return linear(*numbers)
    if kind == "range_pad":
        return padding_aware(*numbers, case["pad_max"], case["pad_percent"])
    if kind == "range_uni":
        return unified(*numbers, case["turning_point"])
    rule = exponential if kind == "range_exp" else exponential_fill
    return rule(*numbers, case["limit"], contiguous=case["contiguous_pa"], compat=compat)


def tied(case):
    """Return whether float64 puts a point on the other side of a size, or of halfway between two.

    Sizes are whole numbers, so that only points which are multiples of 0.5 can be put there.
    """
    if case["strategy"] not in ("range_exp", "range_exp_legacy_fill") or case["limit"] == 1:
        return False
    starts_at_step = case["strategy"] == "range_exp" and case["min"] in (0, 1)
    first = case["step"] if starts_at_step else case["min"]
    twice = (2 * first, 2 * case["max"], 1, case["limit"])
    return float_points(*twice) != exact_points(*twice)


KINDS = ["range_exp", "range_exp_legacy_fill", "range_lin", "range_pad", "range_uni"]


@pytest.mark.parametrize("kind", KINDS)
def test_reproduces_the_reference(golden, kind):
    """Every reference range comes out in float64, and exactly where no tie decides it."""
    for case in golden(kind):
        for compat in (True, False):
            if "error" in case:
                with pytest.raises(ConfigError):
                    make(case, compat)
            elif compat or not tied(case):
                assert make(case, compat) == tuple(case["values"]), case


def test_rounds_exact_multiples_exactly():
    """Points that are multiples of step stay there; float64 puts some a whole step higher."""
    assert exponential(0, 1, 32, 6) == (0, 1, 2, 4, 8, 16, 32)
    assert exponential(0, 1, 32, 6, compat=True) == (0, 1, 2, 4, 9, 17, 32)


def test_rounds_its_ends_exactly():
    """The last point is max; float64 puts it above where min is above max or no multiple."""
    assert exponential(100, 1, 7, 2) == (7, 7)
    assert exponential(100, 1, 7, 2, compat=True) == (7, 8)
    assert exponential_fill(22, 5, 25, 2) == (22, 25)
    assert exponential_fill(22, 5, 25, 2, compat=True) == (25, 30)


def test_a_maximum_of_zero_gives_zero():
    """The reference makes lists of 0, and `unified` rounds its other points up."""
    for compat in (True, False):
        assert exponential(0, 1, 0, 1, compat=compat) == (0,)
        assert exponential(0, 1, 0, 2, compat=compat) == (0, 0)
        assert exponential_fill(1, 1, 0, 1, compat=compat) == (0,)
        assert exponential_fill(3, 2, 0, 3, compat=compat) == (0, 4)
    assert unified(0, 0, 32) == (0, 32)


def test_numbers_without_effect_may_be_zero():
    """What the reference does not look at for a single size is not asked for here."""
    assert exponential(0, 0, 8, 1) == (8,)
    assert exponential_fill(0, 7, 8, 1) == (8,)
    assert linear(0, 0, 0) == (0,)


@given(first=SIZES, step=STEPS, last=SIZES, limit=LIMITS)
def test_points_agree_with_whole_number_arithmetic(first, step, last, limit):
    """The default rounding is what bisection over integers finds, for any parameters."""
    points = Curve(first, last, limit - 1, compat=False).points(step, contiguous=False)
    assert points == set(exact_points(first, last, step, limit))


@given(first=SIZES, step=STEPS, last=SIZES, limit=LIMITS)
def test_compat_agrees_with_the_reference_expression(first, step, last, limit):
    """Compat rounds as the float64 expression does, for any parameters."""
    points = Curve(first, last, limit - 1, compat=True).points(step, contiguous=False)
    assert points == set(float_points(first, last, step, limit))


@given(first=SIZES, step=STEPS, last=SIZES, limit=LIMITS, contiguous=st.booleans())
def test_exponential_ends_at_its_maximum(first, step, last, limit, contiguous):
    """From min to max the sizes ascend, the last is max, and there are no more than asked for."""
    least, most = sorted((first, last))
    values = exponential(least, step, most, limit, contiguous=contiguous)
    assert values[-1] == most
    assert values == tuple(sorted(values))
    assert len(set(values)) <= limit + (least == 1)


@given(first=SIZES, step=STEPS, last=SIZES, limit=LIMITS, compat=st.booleans())
def test_fill_replaces_every_duplicate_it_can(first, step, last, limit, compat):
    """Filling gives as many sizes as there are points, unless the multiples are used up."""
    least, most = sorted((first, last))
    values = exponential_fill(least, step, most, limit, compat=compat)
    assert len(set(values)) == len(values)
    assert len(values) == limit or set(range(least, most + 1, step)) <= set(values)


@given(first=st.integers(0, 3000), step=STEPS, last=st.integers(0, 3000))
def test_linear_is_a_ramp_and_multiples(first, step, last):
    """Above step there are exactly its multiples, below it min doubled again and again."""
    least, most = sorted((first, last))
    values = set(linear(least, step, most))
    start = least or step
    multiples = {size for size in range(step, most + 1, step) if size >= start}
    ramp = {start << k for k in range(13) if start << k < step and start << k <= most}
    zero = {0} if least == 0 else set()
    assert values == multiples | ramp | zero


@given(
    first=st.integers(0, 500),
    step=st.integers(1, 64),
    span=st.integers(1, 2000),
    pad_max=st.integers(0, 300),
    percent=st.integers(0, 50),
)
def test_padding_stays_within_its_bounds(first, step, span, pad_max, percent):
    """Between two kept sizes above step the padding is one step's, or within both bounds."""
    values = padding_aware(first, step, first + span, pad_max, percent)
    assert values[0] == first
    assert values[-1] == first + span
    bound = pad_max or first + span
    for lower, upper in itertools.pairwise(values):
        gap = upper - lower - 1
        if lower > step and gap >= step:
            assert gap <= bound
            assert gap * 100 <= percent * upper or upper == values[-1]


def stepwise_padding_aware(minimum, step, maximum, pad_max, percent):
    """Return the sizes by going through all candidates, as the reference does."""
    bound = pad_max or maximum
    kept, current = [minimum], minimum
    while current <= maximum:
        last = kept[-1]
        following = current + step if current > step else 2 * last or 1
        if current > step:
            gap = following - last - 1
            wasteful = gap * 100 > percent * following or gap > bound
            if current != last and (wasteful or current % bound == 0):
                kept.append(current)
        elif following <= maximum:
            kept.append(following)
        current = following
    return (*kept, maximum) if kept[-1] != maximum else tuple(kept)


@given(
    first=st.integers(0, 500),
    step=st.integers(1, 64),
    span=st.integers(0, 5000),
    pad_max=st.integers(0, 300),
    percent=st.integers(0, 50),
)
def test_no_candidate_is_missed(first, step, span, pad_max, percent):
    """The sizes are those that going through every multiple finds."""
    numbers = (first, step, first + span, pad_max, percent)
    assert padding_aware(*numbers) == stepwise_padding_aware(*numbers)


def test_few_sizes_may_span_many_steps():
    """What counts is how many sizes a rule makes, not how many multiples there are."""
    assert len(padding_aware(1, 1, 131_072, 0, 25)) == 38
    assert padding_aware(1, 1, 2**31 - 1, 0, 50)[-1] == 2**31 - 1
    assert linear(10**9, 1, 10**9) == (10**9,)


def test_percentage_zero_keeps_every_step():
    """Without any padding allowed, every multiple is kept; with half, a doubling remains."""
    assert padding_aware(0, 8, 64, 64, 0) == (0, 1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)
    assert padding_aware(0, 8, 64, 64, 50) == (0, 1, 2, 4, 8, 16, 32, 64)
    assert padding_aware(0, 8, 64, 16, 50) == (0, 1, 2, 4, 8, 16, 32, 48, 64)


def test_default_limit_doubles():
    """The default number of points doubles from one to max."""
    assert [default_limit(size) for size in (1, 2, 3, 1024, 1025)] == [1, 2, 3, 11, 12]
    assert exponential(1, 1, 64, default_limit(64)) == (1, 2, 4, 8, 16, 32, 64)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: exponential(-1, 1, 8, 3), "min is -1"),
        (lambda: exponential(1, 0, 8, 3), "step is 0"),
        (lambda: exponential(1, 1, -1, 3), "max is -1"),
        (lambda: exponential(0, 0, 8, 2), "step is 0"),
        (lambda: exponential(1, 1, 8, 0), "limit is 0"),
        (lambda: exponential(1, 1, 8, 5000), "limit is 5000"),
        (lambda: exponential(1, 1, 2**31, 3), "max is 2147483648"),
        (lambda: exponential_fill(0, 1, 8, 3), "min is 0"),
        (lambda: exponential_fill(1, 0, 8, 1), "step is 0"),
        (lambda: linear(5, 1, 4), "min is 5, expected at most max"),
        (lambda: linear(0, 0, 8), "step is 0"),
        (lambda: linear(1, 1, 10**9), "makes 1000000000 sizes, expected at most 100000"),
        (lambda: padding_aware(1, 1, 10**9, 0, 0), "makes more than 100000 sizes; take a larger"),
        (lambda: padding_aware(1, 1, 8, -1, 0), "pad_max is -1"),
        (lambda: padding_aware(1, 1, 8, 0, 51), "pad_percent is 51"),
        (lambda: unified(1, 8, 0), "turning_point is 0"),
    ],
)
def test_numbers_out_of_range_are_named(call, said):
    """A number that makes no sense is an error that names it and what was expected."""
    with pytest.raises(ConfigError, match=said):
        call()


def test_large_limits_are_quick():
    """The most points that may be asked for take well under a second, ties or not."""
    assert len(exponential(1, 1, 2**31 - 1, 4096)) > 2000
    assert exponential(64, 64, 64, 4096) == (64,)
