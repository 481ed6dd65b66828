"""Parsing positional arguments as CPython's `PyArg_ParseTuple` does for pyACL."""

from collections.abc import Callable
from operator import index
from typing import Any

from acl_simulator.facts import Call

__all__ = ["parse"]


def parse(name: str, call: Call, arguments: tuple[object, ...]) -> list[Any]:
    """Return the arguments as the C side sees them.

    Raises:
        TypeError: wrong number or wrong type.
        OverflowError: an `i` of more than 32 bits.
        ValueError: not bytes where bytes are wanted.
    """
    fewest, most = call.arity
    if not fewest <= len(arguments) <= most:
        raise TypeError(
            f"acl.{name} args parse failed: takes {most} arguments, {len(arguments)} given"
        )
    letters = call.arguments.replace("|", "")
    return [_one(name, letter, value) for letter, value in zip(letters, arguments, strict=False)]


def _one(name: str, letter: str, value: object) -> Any:
    try:
        return _PARSERS[letter](value)
    except TypeError as error:
        raise TypeError(f"acl.{name} args parse failed: {error}") from None


def _exact(kind: type) -> Callable[[object], Any]:
    def parser(value: object) -> Any:
        if not isinstance(value, kind):
            raise TypeError(f"{kind.__name__} is required, got {type(value).__name__} {value!r}")
        return value

    return parser


def _unsigned_long(value: object) -> int:
    # numpy's integers are no int: the C side refuses them.
    return int(_exact(int)(value)) & (2**64 - 1)


def _signed(value: Any) -> int:
    number = index(value)
    if not -(2**31) <= number < 2**31:
        raise OverflowError(f"{number} does not fit into 32 bits")
    return number


def _unsigned(value: Any) -> int:
    return index(value) & (2**32 - 1)


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError(f"bytes are required, got {type(value).__name__}")  # noqa: TRY004 as pyACL
    return value


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "k": _unsigned_long,
    "K": _unsigned_long,
    "i": _signed,
    "I": _unsigned,
    "b": _signed,
    "B": _unsigned,
    "h": _signed,
    "f": float,
    "s": _exact(str),
    "S": _bytes,
    "L": _exact(list),
    "D": _exact(dict),
    "T": _exact(tuple),
    "O": lambda value: value,
}
