"""One axis of a bucket grid: rules that turn a few numbers into ascending sizes.

    exponential       geometric spacing, rounded up to multiples of `step`; duplicates vanish
    exponential_fill  the older form, which fills the places of duplicates with near multiples
    linear            a doubling ramp up to `step`, then every multiple of it
    padding_aware     the same, leaving out sizes while the padding that this costs stays small
    unified           ten points of geometric spacing, rounded up to a turning point

Interior points of geometric spacing can be exact multiples of `step`. The reference computes them
in float64, where some land one ulp above and round up by a whole step: (0, 1, 32, 6) gives 9 and 17
instead of 8 and 16. Here the rounding is exact; `compat=True` repeats the reference bit for bit.

Source: vllm-project/vllm-gaudi@091bbadd vllm_gaudi/extension/bucketing/{exponential,linear,
padding_aware}.py; v0.17.1 unified.py; HabanaAI/vllm-hpu-extension@ad55828 bucketing/common.py.
"""

from __future__ import annotations

import math

from ge_backend.errors import ConfigError
from ge_backend.shapes.buckets.curve import Curve

__all__ = [
    "default_limit",
    "exponential",
    "exponential_fill",
    "linear",
    "padding_aware",
    "unified",
]

MAX_SIZE = 2**31 - 1
MAX_LIMIT = 4096  # points of one geometric axis
MAX_VALUES = 100_000  # values of one axis
MAX_PAD_PERCENT = 50
UNIFIED_POINTS = 10


def default_limit(maximum: int) -> int:
    """Return the number of points that gives steps of about two: ceil(log2(maximum)) + 1."""
    return (max(maximum, 1) - 1).bit_length() + 1


def exponential(
    minimum: int,
    step: int,
    maximum: int,
    limit: int,
    *,
    contiguous: bool = False,
    compat: bool = False,
) -> tuple[int, ...]:
    """Return at most `limit` geometrically spaced sizes, rounded up to `step`, capped at `maximum`.

    A minimum of 0 or 1 is kept beside them as it is, and the spacing starts at `step`; any other
    one is rounded up. With `minimum` above `maximum` (and with `step` above it) the sizes fall; the
    largest is still replaced by `maximum`, which may then be there twice.

    Args:
        minimum: the first size, or 0 or 1 beside the others.
        step: sizes are multiples of it.
        maximum: the last size.
        limit: number of points before duplicates are removed; 1 gives `maximum` alone.
        contiguous: the last point is exactly `maximum`, as with contiguous paged attention.
        compat: round like the reference, in float64.

    Raises:
        ConfigError: a number is outside its range.
    """
    counts = 1 if limit == 1 else step  # a single size is max, whatever the step
    _check_geometric("exponential", minimum, counts, maximum, limit)
    if limit == 1:
        return (maximum,)
    kept = {minimum} if minimum in (0, 1) else set()
    curve = Curve(step if kept else minimum, maximum, limit - 1, compat)
    ordered = sorted(curve.points(step, contiguous=contiguous) | kept)
    ordered[-1] = min(ordered[-1], maximum)
    return tuple(sorted(ordered))


def exponential_fill(
    minimum: int,
    step: int,
    maximum: int,
    limit: int,
    *,
    contiguous: bool = False,
    compat: bool = False,
) -> tuple[int, ...]:
    """Return geometrically spaced sizes; a duplicate becomes the nearest multiple still unused.

    The last size is `maximum` rounded up to `step`, or exactly `maximum` if `contiguous`. Makes
    the sizes in the 36 prompt and 42 decode buckets that vLLM's Gaudi documentation prints.

    Raises:
        ConfigError: a number is outside its range; with more points than one `minimum` must be at
            least 1 here.
    """
    _check_geometric("exponential_fill", minimum, step, maximum, limit)
    if limit == 1:
        return (maximum,)
    _check("exponential_fill", "min", minimum, least=1)
    curve = Curve(minimum, maximum, limit - 1, compat)
    multiples = range(minimum, maximum + 1, step)
    used: set[int] = set()
    for index in range(limit):
        last = contiguous and index == limit - 1
        size: int | None = maximum if last else curve.ceil(index, step)
        if size in used:
            size = curve.nearest_unused(index, multiples, used)
        if size is None:
            break
        used.add(size)
    return tuple(sorted(used))


def linear(minimum: int, step: int, maximum: int) -> tuple[int, ...]:
    """Return `minimum` doubled while below `step`, then the multiples of `step` up to `maximum`.

    `maximum` itself is there only if it is a multiple of `step` or on the ramp: requests larger
    than the last multiple have no bucket. With `minimum` above `step` the result can be empty.

    Raises:
        ConfigError: a number is outside its range, `minimum` is above `maximum`, or there would be
            more than 100,000 sizes.
    """
    if (minimum, maximum) == (0, 0):
        return (0,)
    _check_ramp("linear", minimum, step, maximum)
    size = minimum or step
    multiples = range(-(-size // step) * step, maximum + 1, step)
    if len(multiples) > MAX_VALUES:
        raise ConfigError(
            f"linear: makes {len(multiples)} sizes, expected at most {MAX_VALUES}; take a larger "
            "step"
        )
    ramp = [0] if minimum == 0 else []
    while size < step and size <= maximum:
        ramp.append(size)
        size *= 2
    return (*ramp, *multiples)


def padding_aware(
    minimum: int, step: int, maximum: int, pad_max: int, pad_percent: int
) -> tuple[int, ...]:
    """Return a doubling ramp, then multiples of `step` as sparse as the padding bounds allow.

    A size is left out while a request just above the last kept one would waste at most
    `pad_percent` of the next candidate and at most `pad_max`. Multiples of `pad_max` and `maximum`
    are always kept.

    Args:
        minimum: the first size.
        step: where the ramp ends, and what sizes after it are multiples of.
        maximum: the last size.
        pad_max: most padding, in elements; 0 means `maximum`.
        pad_percent: most padding, in percent of the bucket, 0 to 50.

    Raises:
        ConfigError: a number is outside its range, `minimum` is above `maximum`, or there would be
            more than 100,000 sizes.
    """
    _check_ramp("padding_aware", minimum, step, maximum)
    _check("padding_aware", "pad_max", pad_max, least=0)
    _check("padding_aware", "pad_percent", pad_percent, least=0, most=MAX_PAD_PERCENT)
    bound = pad_max or maximum
    kept: list[int] = []
    size = minimum
    while size <= maximum:
        kept.append(size)
        if len(kept) > MAX_VALUES:
            raise ConfigError(
                f"padding_aware: makes more than {MAX_VALUES} sizes; take a larger step, pad_max "
                "or pad_percent"
            )
        if size <= step:
            size = 2 * size or 1
        else:
            size += step * _steps_to_next(size, step, bound, pad_percent)
    return tuple(kept) if kept[-1] == maximum else (*kept, maximum)


def _steps_to_next(last: int, step: int, bound: int, pad_percent: int) -> int:
    """Return how many steps above a kept size the next one is, for `padding_aware`.

    The size n steps above is kept if the next, n + 1 steps above, would have a padding, which is
    (n + 1) * step - 1, of more than `bound` or `pad_percent` of it; or as a multiple of `bound`.
    """
    most = (pad_percent * last + 100) // ((100 - pad_percent) * step)
    steps = max(1, min(most, (bound + 1) // step))
    shared = math.gcd(step, bound)
    if last % shared:
        return steps
    apart = bound // shared  # steps from one multiple of `bound` to the next
    to_multiple = -(last // shared) * pow(step // shared, -1, apart) % apart
    return min(steps, to_multiple or apart)


def unified(minimum: int, maximum: int, turning_point: int) -> tuple[int, ...]:
    """Return ten geometrically spaced sizes rounded up to `turning_point`, the last one `maximum`.

    Rounds in float64 always: the rule was given up upstream and serves to reproduce its lists.
    Sizes above `maximum` can appear when `turning_point` does not divide it.

    Raises:
        ConfigError: a number is outside its range.
    """
    _check_geometric("unified", minimum, turning_point, maximum, UNIFIED_POINTS)
    zero = {0} if minimum == 0 else set()
    curve = Curve(minimum or 1, maximum, UNIFIED_POINTS - 1, compat=True)
    return tuple(sorted(curve.points(turning_point, contiguous=True) | zero))


def _check_geometric(rule: str, minimum: int, step: int, maximum: int, limit: int) -> None:
    _check(rule, "min", minimum, least=0)
    _check(rule, "turning_point" if rule.startswith("unified") else "step", step, least=1)
    _check(rule, "max", maximum, least=0)
    _check(rule, "limit", limit, least=1, most=MAX_LIMIT)


def _check_ramp(rule: str, minimum: int, step: int, maximum: int) -> None:
    _check(rule, "min", minimum, least=0)
    _check(rule, "step", step, least=1)
    _check(rule, "max", maximum, least=0)
    if minimum > maximum:
        raise ConfigError(f"{rule}: min is {minimum}, expected at most max, which is {maximum}")


def _check(rule: str, name: str, value: int, *, least: int, most: int = MAX_SIZE) -> None:
    if not least <= value <= most:
        raise ConfigError(f"{rule}: {name} is {value}, expected a whole number {least} to {most}")
