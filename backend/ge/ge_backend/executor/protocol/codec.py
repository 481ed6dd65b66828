"""Frozen dataclasses as JSON, and back: nothing is executed and nothing is guessed.

Used for the messages of the protocol, and by services for what they say in their own bodies where
that is not hot.
"""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Generic, TypeVar

from ge_backend.errors import ProtocolError
from ge_backend.tensors import DATA_TYPES, DataType

__all__ = ["MAX_ELEMENTS", "MAX_NUMBER", "Codec", "Rule"]

_Message = TypeVar("_Message")
_Builder = Callable[[Any], Any]
_Check = Callable[[Any], None]
# Two of them still add up in 64 bits.
MAX_NUMBER = 2**62
# Bounds of shapes: numpy 1 knows no more dimensions; 8 bytes for each element still fit in 64 bits.
MAX_DIMENSIONS = 32
MAX_ELEMENTS = 2**48


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What one field may hold, or each element of it where it is a list.

    Attributes:
        least, most: of a number.
        shape: a list of numbers is a tensor's shape, with bounds of its own; -1 is a free
            dimension where `least` says so.
        choices: the texts there are; empty where any will do.
        words: a text is for people to read and may hold any character.
    """

    least: int = 0
    most: int = MAX_NUMBER
    shape: bool = False
    choices: Collection[str] = ()
    words: bool = False

    def check_number(self, value: int) -> None:
        """See that a number is in range.

        Raises:
            ValueError: it is not.
        """
        if not self.least <= value <= self.most:
            raise ValueError(f"expected {self.least} to {self.most}, got {value}")

    def check_real(self, value: float) -> None:
        """See that a number fits into a float; infinite ones do.

        Raises:
            ValueError: it does not; JSON knows whole numbers of any length.
        """
        if isinstance(value, int) and abs(value) > MAX_NUMBER:
            raise ValueError(f"expected a number of at most {MAX_NUMBER}, got {value}")

    def check_numbers(self, values: Sequence[int]) -> None:
        """See that numbers are in range, and a shape where one is expected: thousands at once.

        Raises:
            ValueError: one is not, or numpy could not make such a tensor.
        """
        for value in (min(values), max(values)) if values else ():
            self.check_number(value)
        if not self.shape:
            return
        if len(values) > MAX_DIMENSIONS:
            raise ValueError(f"{len(values)} dimensions, at most {MAX_DIMENSIONS} can be")
        if math.prod(max(1, value) for value in values) > MAX_ELEMENTS:
            raise ValueError(f"a tensor of shape {values} has more than {MAX_ELEMENTS} elements")

    def check_text(self, value: str) -> None:
        """See that a text is one of the choices, and can be a name.

        Raises:
            ValueError: it cannot.
        """
        if self.choices and value not in self.choices:
            raise ValueError(f"expected one of {', '.join(self.choices)}, got {value[:40]!r}")
        if not self.words:
            value.encode("utf-8", "surrogateescape")  # a UnicodeEncodeError is a ValueError
            if "\0" in value:
                raise ValueError(f"{value[:40]!r} has a NUL character")


_Rules = Mapping[tuple[type, str], Rule]
# For fields without a rule of their own.
_ANY = Rule(least=-MAX_NUMBER, words=True)


class Codec(Generic[_Message]):
    """Encodes values of some dataclasses, told apart by their names.

    Decoding checks every field against its annotation and its rule. Fields are `int`, `float`,
    `str`, `bool`, `DataType` (as its name), tuples and string-keyed mappings of such,
    dataclasses of such, and any of these or None.

    Args:
        classes: of the values.
        rules: what fields may hold, by class and name.
        usual: what all others may hold.
    """

    def __init__(
        self,
        classes: tuple[type[_Message], ...],
        rules: _Rules = types.MappingProxyType({}),
        usual: Rule = _ANY,
    ) -> None:
        found = _Builders(rules, usual)
        self._builders: Mapping[str, _Builder] = {
            cls.__name__: found.of_dataclass(cls) for cls in classes
        }

    def encode(self, message: _Message) -> bytes:
        """Return the message as bytes; `decode` is the inverse."""
        name = type(message).__name__
        return _ENCODER.encode({"type": name, **_fields(message)}).encode()

    def decode(self, block: bytes) -> _Message:
        """Return the message that `encode` wrote.

        Raises:
            ProtocolError: it is none of these messages.
        """
        try:
            packed = json.loads(block)
            message: _Message = self._builders[packed.pop("type")](packed)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ProtocolError(f"message {block[:80]!r}… cannot be read: {error!r}") from error
        return message


def _fields(value: Any) -> Any:
    if isinstance(value, DataType):
        return value.name
    if isinstance(value, Mapping):
        return dict(value)
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


_ENCODER = json.JSONEncoder(default=_fields, separators=(",", ":"))


class _Builders:
    """Makes the functions that make values of what JSON gives, or raise."""

    def __init__(self, rules: _Rules, usual: Rule) -> None:
        self._rules = rules
        self._usual = usual

    def of_dataclass(self, cls: type[Any]) -> _Builder:
        hints = typing.get_type_hints(cls)
        builders = {
            field.name: self._of(hints[field.name], self._rules.get((cls, field.name), self._usual))
            for field in fields(cls)
        }

        def build(packed: Any) -> Any:
            return cls(**{name: builders[name](value) for name, value in packed.items()})

        return build

    def _of(self, annotation: Any, rule: Rule) -> _Builder:
        if annotation is DataType:
            return DATA_TYPES.__getitem__
        if is_dataclass(annotation):
            return self.of_dataclass(typing.cast("type[Any]", annotation))
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is types.UnionType:
            (one,) = (argument for argument in arguments if argument is not types.NoneType)
            return _optional_builder(self._of(one, rule))
        if origin is tuple:
            one = arguments[0]
            return _numbers_builder(rule) if one is int else _tuple_builder(self._of(one, rule))
        if origin in {dict, Mapping}:
            return _dict_builder(_scalar_builder(str, self._usual), self._of(arguments[1], rule))
        return _scalar_builder(annotation, rule)


def _optional_builder(build: _Builder) -> _Builder:
    return lambda packed: None if packed is None else build(packed)


def _tuple_builder(element: _Builder) -> _Builder:
    def build(packed: Any) -> tuple[Any, ...]:
        if type(packed) is not list:
            raise TypeError(f"expected a list, got {packed!r:.80}")
        return tuple([element(item) for item in packed])

    return build


def _numbers_builder(rule: Rule) -> _Builder:
    def build(packed: Any) -> tuple[int, ...]:
        if type(packed) is not list or not {int}.issuperset(map(type, packed)):
            raise TypeError(f"expected a list of int, got {packed!r:.80}")
        rule.check_numbers(packed)
        return tuple(packed)

    return build


def _dict_builder(key: _Builder, element: _Builder) -> _Builder:
    def build(packed: Any) -> dict[str, Any]:
        return {key(name): element(item) for name, item in packed.items()}

    return build


def _scalar_builder(annotation: Any, rule: Rule) -> _Builder:
    words = rule.words and not rule.choices
    by_annotation: Mapping[Any, Mapping[type, _Check | None]] = {
        int: {int: rule.check_number},
        float: {float: None, int: rule.check_real},
        str: {str: None if words else rule.check_text},
    }
    checks = by_annotation.get(annotation, {annotation: None})

    def build(packed: Any) -> Any:
        kind = type(packed)  # not isinstance: in Python a bool is an int too
        if kind not in checks:
            raise TypeError(f"expected {annotation.__name__}, got {packed!r:.80}")
        check = checks[kind]
        if check is not None:
            check(packed)
        return packed

    return build
