"""Frozen dataclasses as JSON, and back: nothing is executed and nothing is guessed.

Used for the messages of the protocol, and by services for what they say in their own bodies where
that is not hot.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Generic, TypeVar

from ge_backend.errors import ProtocolError

__all__ = ["Codec"]

_Message = TypeVar("_Message")
_Builder = Callable[[Any], Any]


class Codec(Generic[_Message]):
    """Encodes values of some dataclasses, told apart by their names.

    Decoding checks every field against its annotation. Fields are `int`, `float`, `str`, `bool`,
    tuples and string-keyed dicts of such, and dataclasses of such.
    """

    def __init__(self, classes: tuple[type[_Message], ...]) -> None:
        self._builders: Mapping[str, _Builder] = {
            cls.__name__: _dataclass_builder(cls) for cls in classes
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


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


_ENCODER = json.JSONEncoder(default=_fields, separators=(",", ":"))


def _builder(annotation: Any) -> _Builder:
    """Return the function that makes a value of this annotation from what JSON gives, or raises."""
    if is_dataclass(annotation):
        return _dataclass_builder(typing.cast("type[Any]", annotation))
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is tuple:
        return _tuple_builder(_builder(arguments[0]))
    if origin is dict:
        return _dict_builder(_builder(arguments[1]))
    return _scalar_builder(annotation)


def _dataclass_builder(cls: type[Any]) -> _Builder:
    hints = typing.get_type_hints(cls)
    builders = {field.name: _builder(hints[field.name]) for field in fields(cls)}

    def build(packed: Any) -> Any:
        return cls(**{name: builders[name](value) for name, value in packed.items()})

    return build


def _tuple_builder(element: _Builder) -> _Builder:
    def build(packed: Any) -> tuple[Any, ...]:
        if type(packed) is not list:
            raise TypeError(f"expected a list, got {packed!r}")
        return tuple([element(item) for item in packed])

    return build


def _dict_builder(element: _Builder) -> _Builder:
    def build(packed: Any) -> dict[str, Any]:
        return {key: element(item) for key, item in packed.items()}

    return build


def _scalar_builder(annotation: Any) -> _Builder:
    accepted = (int, float) if annotation is float else (annotation,)

    def build(packed: Any) -> Any:
        if type(packed) not in accepted:  # not isinstance: in Python a bool is an int too
            raise TypeError(f"expected {annotation.__name__}, got {packed!r}")
        return packed

    return build
