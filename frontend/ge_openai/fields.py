"""The fields of a request's JSON body, each taken once; what is not taken is unknown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ge_openai.api_error import ApiError

__all__ = ["Fields", "texts_or_tokens"]


class Fields:
    """A JSON object, read with the field's name in every error; null is as good as absent.

    Raises:
        ApiError: it is no JSON object.
    """

    def __init__(self, block: bytes) -> None:
        try:
            given = json.loads(block)
        except (ValueError, RecursionError) as error:
            raise ApiError(f"the body is not JSON: {error}") from error
        if not isinstance(given, dict):
            raise ApiError("the body has to be a JSON object")
        self._given = {name: value for name, value in given.items() if value is not None}

    def take(self, name: str) -> Any:
        """Return a field as it is, None if absent."""
        return self._given.pop(name, None)

    def take_all(self, names: Iterable[str]) -> dict[str, Any]:
        """Return those fields that are there."""
        return {name: self._given.pop(name) for name in names if name in self._given}

    def open_up(self, name: str, given: Mapping[str, Any]) -> None:
        """Let the fields of an object, which was taken, be taken as `name.field`.

        Raises:
            ApiError: the body has a field of such a name beside it.
        """
        for stray in (field for field in self._given if field.startswith(f"{name}.")):
            raise _unknown(stray)
        self._given |= {f"{name}.{key}": one for key, one in given.items() if one is not None}

    def text(self, name: str) -> str:
        """Return a text that has to be there."""
        value = self.take(name)
        if not isinstance(value, str) or not value:
            raise ApiError(f"{name} has to be a text, got {value!r:.80}", param=name)
        return value

    def flag(self, name: str, *, absent: bool = False) -> bool:
        """Return a switch, which is off if absent, unless told."""
        value = self._given.pop(name, absent)
        if not isinstance(value, bool):
            raise ApiError(f"{name} has to be true or false, got {value!r:.80}", param=name)
        return value

    def whole(self, name: str, low: int, high: int) -> int | None:
        """Return a whole number within a range, None if absent."""
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ApiError(
                f"{name} has to be a whole number from {low} to {high}, got {value!r:.80}",
                param=name,
            )
        return value

    def only(self, name: str, *allowed: Any, why: str) -> None:
        """Take a field that may be there, but with these values only."""
        value = self.take(name)
        if value is not None and value not in allowed:
            raise ApiError(
                f"{name} is not supported: {why}", param=name, code="unsupported_parameter"
            )

    def end(self) -> None:
        """Raise if there is a field that was not taken."""
        for name in self._given:
            raise _unknown(name)


def _unknown(name: str) -> ApiError:
    return ApiError(
        f"{name} is not known to this server; leave it out", param=name, code="unknown_parameter"
    )


def _is_token(value: Any) -> bool:
    """Return whether a value of JSON can be the number of a token."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def texts_or_tokens(
    name: str, given: Any, most: int, *, empty: bool
) -> tuple[str | tuple[int, ...], ...]:
    """Return what a field holds: a text, which may be `empty`, tokens of one, or a list of either.

    Raises:
        ApiError: it is something else, or there are more.
    """
    several = given if isinstance(given, list) and given and not _is_token(given[0]) else [given]
    if len(several) > most:
        raise ApiError(f"{name} has {len(several)} texts; at most {most}", param=name)
    return tuple(_text_or_tokens(name, one, empty=empty) for one in several)


def _text_or_tokens(name: str, given: Any, *, empty: bool) -> str | tuple[int, ...]:
    if isinstance(given, str) and (given or empty):
        return given
    if isinstance(given, list) and given and all(map(_is_token, given)):
        return tuple(given)
    raise ApiError(
        f"{name} has to be a text, a list of tokens, or a list of either, got {given!r:.80}",
        param=name,
    )
