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

from ge_backend.buckets.curve import Curve
from ge_backend.errors import ConfigError

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

    A minimum of 0 or 1 is kept as it is and the spacing starts at `step`; any other one is rounded
    up. With `minimum` above `maximum` (and with `step` above it) the sizes fall; the largest is
    still replaced by `maximum`, which may then be there twice.

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
    _check_geometric("exponential", minimum, step, maximum, limit)
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
        ConfigError: a number is outside its range; `minimum` must be at least 1 here.
    """
    _check_geometric("exponential_fill", minimum, step, maximum, limit)
    _check("exponential_fill", "min", minimum, least=1)
    if limit == 1:
        return (maximum,)
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
        ConfigError: a number is outside its range, or `minimum` is above `maximum`.
    """
    _check_ramp("linear", minimum, step, maximum)
    if (minimum, maximum) == (0, 0):
        return (0,)
    _check_count("linear", step, maximum)
    zero = {0} if minimum == 0 else set()
    first = minimum or step
    values = {size for size in range(step, maximum + 1, step) if size >= first}
    size = first
    while size < step and size <= maximum:
        values.add(size)
        size *= 2
    return tuple(sorted(values | zero))


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
        ConfigError: a number is outside its range, or `minimum` is above `maximum`.
    """
    _check_ramp("padding_aware", minimum, step, maximum)
    _check("padding_aware", "pad_max", pad_max, least=0)
    _check("padding_aware", "pad_percent", pad_percent, least=0, most=MAX_PAD_PERCENT)
    _check_count("padding_aware", step, maximum)
    bound = pad_max or maximum
    kept = [minimum]
    current = minimum
    while current <= maximum:
        last = kept[-1]
        if current <= step:
            current = 2 * last or 1
            if current <= maximum:
                kept.append(current)
            continue
        following = current + step
        gap = following - last - 1
        wasteful = gap * 100 > pad_percent * following or gap > bound
        if current != last and (wasteful or current % bound == 0):
            kept.append(current)
        current = following
    if maximum not in kept:
        kept.append(maximum)
    return tuple(kept)


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
    _check(rule, "max", maximum, least=1)
    _check(rule, "limit", limit, least=1, most=MAX_LIMIT)


def _check_ramp(rule: str, minimum: int, step: int, maximum: int) -> None:
    _check(rule, "min", minimum, least=0)
    _check(rule, "step", step, least=1)
    _check(rule, "max", maximum, least=0)
    if minimum > maximum:
        raise ConfigError(f"{rule}: min is {minimum}, expected at most max, which is {maximum}")


def _check_count(rule: str, step: int, maximum: int) -> None:
    if maximum // step > MAX_VALUES:
        raise ConfigError(
            f"{rule}: max {maximum} by step {step} is {maximum // step} values, expected at most "
            f"{MAX_VALUES}; take a larger step"
        )


def _check(rule: str, name: str, value: int, *, least: int, most: int = MAX_SIZE) -> None:
    if not least <= value <= most:
        raise ConfigError(f"{rule}: {name} is {value}, expected a whole number {least} to {most}")
