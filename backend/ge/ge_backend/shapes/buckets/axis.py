"""One axis of a bucket grid: its name, its sizes, and how they came about."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ge_backend.errors import ConfigError
from ge_backend.shapes.buckets.recipes import Recipe, make_recipe, parse_recipe, rule_named
from ge_backend.shapes.buckets.strategies import MAX_SIZE, MAX_VALUES, default_limit

__all__ = ["Axis", "default_axis", "listed_axis", "parse_axis"]

ROWS = "rows"
# Below this, one bucket more costs a graph and saves next to nothing.
SMALLEST_RAGGED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Sizes that an axis may have in a bucket.

    Attributes:
        name: `rows`, or the name of a ragged axis.
        values: ascending, each once, at least one.
        made_by: the recipe; None for a list.
    """

    name: str
    values: tuple[int, ...]
    made_by: Recipe | None = None

    @property
    def largest(self) -> int:
        """The largest size that has a bucket."""
        return self.values[-1]

    def clipped(self, maximum: int) -> Axis:
        """Return an axis without sizes above `maximum`, which is added so that it stays covered."""
        if self.largest <= maximum:
            return self
        values = (*(value for value in self.values if value < maximum), maximum)
        return replace(self, values=values)

    def raised(self, minimum: int) -> Axis:
        """Return an axis without sizes below `minimum`, which is added if there were any."""
        if self.values[0] >= minimum:
            return self
        values = (minimum, *(value for value in self.values if value > minimum))
        return replace(self, values=values)

    def describe(self) -> str:
        """Return one line: the rule with its numbers, and what it generated."""
        made = "list" if self.made_by is None else str(self.made_by)
        line = f"{self.name}: {made} -> {', '.join(map(str, self.values))}"
        if self.made_by is not None and self.largest < self.made_by.number("max"):
            line += f" (sizes above {self.largest} have no bucket)"
        return line


def parse_axis(text: str, *, name: str) -> Axis:
    """Return the axis that a parameter's text describes.

    Args:
        text: `1,2,4,8`, in any order, or a rule: `exponential(1, 2, 32, 6)`, `linear(min=16, …)`.
        name: the axis; messages call the parameter `buckets.<name>`.

    Raises:
        ConfigError: the text is neither, or makes no axis.
    """
    try:
        recipe = parse_recipe(text)
        if isinstance(recipe, Recipe):
            _check_order(recipe)
            return _axis(name, recipe.values(), recipe)
        return _axis(name, recipe, None)
    except ConfigError as error:
        raise ConfigError(f"parameter 'buckets.{name}' is {text!r}: {error}") from error


def listed_axis(name: str, values: tuple[int, ...]) -> Axis:
    """Return an axis of these sizes.

    Raises:
        ConfigError: a size is too small or too large, or there is none.
    """
    try:
        return _axis(name, values, None)
    except ConfigError as error:
        raise ConfigError(f"axis {name!r}: {error}") from error


def default_axis(name: str, maximum: int, *, finer: bool = False) -> Axis:
    """Return the sizes of an axis that is not configured: exponential up to `maximum`.

    Rows start at 1, ragged axes at 16 (or at `maximum`, if that is less). From one size to the next
    it is at most twice, but for rounding; powers of two if `maximum` is one. `finer` halves the
    steps of a ragged axis, where a graph costs little and padding much.
    """
    first = 1 if name == ROWS else min(SMALLEST_RAGGED, maximum)
    numbers = {"min": first, "step": first, "max": maximum}
    numbers["limit"] = default_limit(-(-maximum // max(first, 1)))
    if finer and name != ROWS:
        numbers |= {"step": max(1, first // 2), "limit": 2 * numbers["limit"] - 1}
    recipe = make_recipe(rule_named("exponential"), numbers)
    return _axis(name, recipe.values(), recipe)


def _check_order(recipe: Recipe) -> None:
    """Refuse min > max: the geometric rules give something then, but nothing that was meant."""
    smallest, largest = recipe.number("min"), recipe.number("max")
    if smallest > largest:
        raise ConfigError(f"min is {smallest}, expected at most max, which is {largest}")


def _axis(name: str, values: tuple[int, ...], recipe: Recipe | None) -> Axis:
    if not values:
        raise ConfigError("makes no sizes; lower min or step, or raise max")
    if len(values) > MAX_VALUES:
        raise ConfigError(f"has {len(values)} sizes, expected at most {MAX_VALUES}")
    for value in values:
        if not 1 <= value <= MAX_SIZE:
            raise ConfigError(f"size {value} is outside 1 to {MAX_SIZE}")
    return Axis(name=name, values=tuple(sorted(set(values))), made_by=recipe)
