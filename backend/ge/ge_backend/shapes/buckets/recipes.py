"""Bucket sizes of an axis as text: `16,32,64` or a rule such as `exponential(16, 16, 256, 6)`.

Numbers are given in order, by name, or both: `exponential(min=16, step=16, max=256)`. What is left
out gets a default where there is one. Rules that round geometric points also take `compat=true` and
`contiguous=true`; see `strategies`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ge_backend.errors import ConfigError
from ge_backend.shapes.buckets import strategies

__all__ = ["RULES", "Recipe", "SpacingRule", "make_recipe", "parse_recipe", "rule_named"]

DEFAULT_PAD_PERCENT = 25
_CALL = re.compile(r"(?P<name>[a-z_]+)\s*\((?P<arguments>[^()]*)\)")
_WHOLE = re.compile(r"-?\d{1,18}")
_OPTIONAL = ("limit", "pad_max", "pad_percent")
_SWITCHES = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpacingRule:
    """One strategy: how it is called and what it takes.

    Attributes:
        numbers: names of its numbers, in order.
        switches: names of its on/off options.
    """

    name: str
    numbers: tuple[str, ...]
    make: Callable[..., tuple[int, ...]]
    switches: tuple[str, ...] = ()


_GEOMETRIC = ("min", "step", "max", "limit")
_ROUNDING = ("compat", "contiguous")

RULES: tuple[SpacingRule, ...] = (
    SpacingRule(
        name="exponential", numbers=_GEOMETRIC, make=strategies.exponential, switches=_ROUNDING
    ),
    SpacingRule(
        name="exponential_fill",
        numbers=_GEOMETRIC,
        make=strategies.exponential_fill,
        switches=_ROUNDING,
    ),
    SpacingRule(name="linear", numbers=("min", "step", "max"), make=strategies.linear),
    SpacingRule(
        name="padding_aware",
        numbers=("min", "step", "max", "pad_max", "pad_percent"),
        make=strategies.padding_aware,
    ),
    SpacingRule(name="unified", numbers=("min", "max", "turning_point"), make=strategies.unified),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A rule with its numbers, complete: `str()` of it parses back to itself.

    Attributes:
        numbers: one per name in `rule.numbers`.
        switches: names of the options that are on.
    """

    rule: SpacingRule
    numbers: tuple[int, ...]
    switches: tuple[str, ...] = ()

    def values(self) -> tuple[int, ...]:
        """Return the sizes, ascending.

        Raises:
            ConfigError: a number is outside its range.
        """
        return self.rule.make(*self.numbers, **dict.fromkeys(self.switches, True))

    def number(self, name: str) -> int:
        """Return the number of that name."""
        return self.numbers[self.rule.numbers.index(name)]

    def __str__(self) -> str:
        pairs = [f"{n}={v}" for n, v in zip(self.rule.numbers, self.numbers, strict=True)]
        pairs += [f"{name}=true" for name in self.switches]
        return f"{self.rule.name}({', '.join(pairs)})"


def rule_named(name: str) -> SpacingRule:
    """Return the rule of that name.

    Raises:
        ConfigError: there is none; lists those that there are.
    """
    for rule in RULES:
        if rule.name == name:
            return rule
    raise ConfigError(f"rule {name!r} is unknown; known are {', '.join(r.name for r in RULES)}")


def make_recipe(
    rule: SpacingRule, numbers: Mapping[str, int], switches: tuple[str, ...] = ()
) -> Recipe:
    """Return a complete recipe: numbers that are left out get their defaults.

    `limit` is ceil(log2(max)) + 1, `pad_max` 0 (no bound but the percentage), `pad_percent` 25.

    Raises:
        ConfigError: the rule has no such number or option, or needs one that is missing.
    """
    _check_names(rule, (*numbers, *switches))
    missing = [n for n in rule.numbers if n not in numbers and n not in _OPTIONAL]
    if missing:
        raise ConfigError(f"{rule.name} needs {', '.join(missing)}; such as {_example(rule)}")
    limit = strategies.default_limit(numbers["max"])
    complete = {"limit": limit, "pad_max": 0, "pad_percent": DEFAULT_PAD_PERCENT, **numbers}
    return Recipe(
        rule=rule,
        numbers=tuple(complete[name] for name in rule.numbers),
        switches=tuple(name for name in rule.switches if name in switches),
    )


def parse_recipe(text: str) -> Recipe | tuple[int, ...]:
    """Return a recipe, or the numbers of an explicit list in the order given.

    Raises:
        ConfigError: the text is neither; says what was expected.
    """
    call = _CALL.fullmatch(text.strip())
    if call is None:
        return tuple(_whole(part, "a list such as 1,2,4 or a rule") for part in text.split(","))
    rule = rule_named(call["name"])
    parts = call["arguments"].split(",") if call["arguments"].strip() else []
    given: dict[str, str] = {}
    for position, part in enumerate(parts):
        name, equals, value = map(str.strip, part.partition("="))
        if not equals:
            name, value = _name_at(rule, position, part, parts[:position]), part.strip()
        if name in given:
            raise ConfigError(f"{rule.name}: {name!r} is given twice")
        given[name] = value
    _check_names(rule, given)
    numbers = {n: _whole(t, f"a number for {n}") for n, t in given.items() if n in rule.numbers}
    switches = tuple(n for n, t in given.items() if n in rule.switches and _switch(n, t))
    return make_recipe(rule, numbers, switches)


def _name_at(rule: SpacingRule, position: int, part: str, before: list[str]) -> str:
    """Return which number an argument without a name is."""
    if any("=" in earlier for earlier in before):
        raise ConfigError(
            f"{rule.name}: {part.strip()!r} needs a name too, as those before it have"
        )
    if position >= len(rule.numbers):
        raise ConfigError(
            f"{rule.name}: {part.strip()!r} is one too many; such as {_example(rule)}"
        )
    return rule.numbers[position]


def _check_names(rule: SpacingRule, names: Iterable[str]) -> None:
    known = (*rule.numbers, *rule.switches)
    for name in names:
        if name not in known:
            raise ConfigError(f"{rule.name} does not take {name!r}; it takes {', '.join(known)}")


def _whole(text: str, expected: str) -> int:
    if not _WHOLE.fullmatch(text.strip()):
        raise ConfigError(f"{text.strip()!r} is no whole number; expected {expected}")
    return int(text)


def _switch(name: str, text: str) -> bool:
    if text not in _SWITCHES:
        raise ConfigError(f"{name} is {text!r}, expected true or false")
    return _SWITCHES[text]


def _example(rule: SpacingRule) -> str:
    """Return a call of a rule, for messages."""
    example = {"min": 16, "step": 16, "max": 512, "limit": 6, "turning_point": 32}
    example |= {"pad_max": 128, "pad_percent": DEFAULT_PAD_PERCENT}
    return f"{rule.name}({', '.join(f'{name}={example[name]}' for name in rule.numbers)})"
