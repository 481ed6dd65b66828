"""Frozen dataclasses as JSON, and back: nothing is executed and nothing is guessed.

Used for the messages of the protocol, and by services for what they say in their own bodies where
that is not hot.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Generic, TypeVar

from ge_backend.errors import ProtocolError
from ge_backend.executor.protocol.rules import MAX_NUMBER, Rule
from ge_backend.tensors import DATA_TYPES, DataType

__all__ = ["Codec"]

_Message = TypeVar("_Message")
_Builder = Callable[[Any], Any]
_Check = Callable[[Any], None]
_Rules = Mapping[tuple[type, str], Rule]
# For fields without a rule of their own: numbers so small that any two can be added in 64 bits.
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
    """Return what looks at whole numbers together: a prompt has thousands of them."""

    def build(packed: Any) -> tuple[int, ...]:
        if type(packed) is not list or not {int}.issuperset(map(type, packed)):
            raise TypeError(f"expected a list of int, got {packed!r:.80}")
        for number in (min(packed), max(packed)) if packed else ():
            rule.check_number(number)
        rule.check_numbers(packed)
        return tuple(packed)

    return build


def _dict_builder(key: _Builder, element: _Builder) -> _Builder:
    def build(packed: Any) -> dict[str, Any]:
        return {key(name): element(item) for name, item in packed.items()}

    return build


def _scalar_builder(annotation: Any, rule: Rule) -> _Builder:
    accepted = (int, float) if annotation is float else (annotation,)
    checks: Mapping[Any, _Check] = {
        int: rule.check_number,
        float: rule.check_real,
        str: rule.check_text,
    }
    free = annotation is str and rule.words and not rule.choices
    check = None if free else checks.get(annotation)

    def build(packed: Any) -> Any:
        if type(packed) not in accepted:  # not isinstance: in Python a bool is an int too
            raise TypeError(f"expected {annotation.__name__}, got {packed!r:.80}")
        if check is not None:
            check(packed)
        return packed

    return build
