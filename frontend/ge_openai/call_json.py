"""Calls of tools as JSON, which keep their arguments as the model wrote them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

__all__ = [
    "NO_JSON",
    "ToolCall",
    "calls_behind",
    "check_end",
    "listed_calls",
    "read_call",
    "read_calls",
]

NO_JSON = ValueError, RecursionError
_BLANKS = frozenset(" \t\n\r")
# Of Mistral's later models: [TOOL_CALLS]name[ARGS]{…}, some with an id between. Their tokens may be
# special ones, and so be missing.
_NAMED = re.compile(r"\s*([^\s\[{]+)\s*(?:\[CALL_ID\]\s*\w*\s*)?(?:\[ARGS\])?")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call; `arguments` is JSON as the model wrote it: an object, unless it wrote another."""

    name: str
    arguments: str


def read_call(text: str, at: int, *, marked: bool = False) -> tuple[ToolCall | None, int]:
    """Return the call that the JSON object at a place is, if it is one, and where it ends.

    Where tags have `marked` it as a call it is one; else only if its arguments are an object.

    Raises:
        ValueError: no object is there.
        RecursionError: it is nested too deeply.
    """
    found, end = _object(text, at)
    name, _ = found.get("name", (None, ""))
    if not isinstance(name, str) or not name or not _is_unicode(name):
        return None, end
    given = [found[key] for key in ("arguments", "parameters") if key in found]
    if not given and not marked:
        return None, end
    arguments = _arguments(*given[0]) if given else "{}"
    is_call = marked or arguments.startswith("{")
    return (ToolCall(name, arguments) if is_call else None), end


def read_calls(text: str, at: int) -> tuple[list[ToolCall | None], int]:
    """Return the calls that a JSON object or a list of such is, marked by tags, and where it ends.

    Raises:
        ValueError, RecursionError: as `read_call`.
    """
    if _next(text, at) == "[":
        return _list(text, at, marked=True)
    call, at = read_call(text, at, marked=True)
    return [call], at


def listed_calls(text: str) -> list[ToolCall | None]:
    """Return the calls that a text is, a JSON list.

    Raises:
        ValueError, RecursionError: as `read_call`.
    """
    calls, at = _list(text, 0)
    check_end(text, at)
    return calls


def calls_behind(tag: str, text: str) -> list[ToolCall | None]:
    """Return the calls of a text that begins with a tag and has one before each or each list.

    Raises:
        ValueError, RecursionError: as `read_call`.
    """
    calls: list[ToolCall | None] = []
    at = 0
    while _next(text, at):
        at = _behind(text, at, tag)
        if _next(text, at) in {"[", "{"}:
            found, at = read_calls(text, at)
        else:
            found, at = _named(text, at)
        calls += found
    return calls


def check_end(text: str, at: int) -> None:
    """See that nothing but blanks stands behind a place.

    Raises:
        ValueError: something does.
    """
    if _next(text, at):
        raise ValueError(f"expected nothing at {at}")


def _list(text: str, at: int, *, marked: bool = False) -> tuple[list[ToolCall | None], int]:
    calls: list[ToolCall | None] = []
    sign = "["
    while sign != "]":
        call, at = read_call(text, _behind(text, at, sign), marked=marked)
        calls.append(call)
        sign = "]" if _next(text, at) == "]" else ","
    return calls, _behind(text, at, sign)


def _named(text: str, at: int) -> tuple[list[ToolCall | None], int]:
    named = _NAMED.match(text, at)
    if not named:
        raise ValueError(f"expected a name at {at}")
    begin = _behind(text, named.end(), "")
    _, at = _object(text, begin)
    return [ToolCall(named[1], text[begin:at])], at


def _arguments(value: Any, written: str) -> str:
    """Return arguments as JSON; some models write a text that holds it, or null for none."""
    if value is None:
        return "{}"
    if not isinstance(value, str):
        return written
    try:
        held, at = _DECODER.raw_decode(value, _behind(value, 0, ""))
        check_end(value, at)
    except NO_JSON:
        return written if value.strip() else "{}"
    return value.strip() if isinstance(held, dict) and _is_unicode(value) else written


def _object(text: str, at: int) -> tuple[dict[str, tuple[Any, str]], int]:
    """Return by name what a JSON object holds and how it is written, and where it ends."""
    found: dict[str, tuple[Any, str]] = {}
    at, sign = _behind(text, at, "{"), ","
    if _next(text, at) == "}":
        return found, _behind(text, at, "}")
    while sign != "}":
        name, at = _DECODER.raw_decode(text, _behind(text, at, ""))
        begin = _behind(text, _behind(text, at, ":"), "")
        value, at = _DECODER.raw_decode(text, begin)
        if not isinstance(name, str):
            raise ValueError(f"{name!r} is no name")  # noqa: TRY004 - of JSON
        found[name] = value, text[begin:at]
        sign = "}" if _next(text, at) == "}" else ","
        at = _behind(text, at, sign)
    return found, at


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")


# Numbers are only looked through; as integers their digits would be limited.
_DECODER = json.JSONDecoder(parse_int=float, parse_constant=_refuse)


def _next(text: str, at: int) -> str:
    """Return the letter behind blanks; "" at the end."""
    at = _behind(text, at, "")
    return text[at : at + 1]


def _behind(text: str, at: int, sign: str) -> int:
    """Return the place behind blanks and a sign, which has to be there."""
    while text[at : at + 1] in _BLANKS:
        at += 1
    if not text.startswith(sign, at):
        raise ValueError(f"expected {sign} at {at}")
    return at + len(sign)


def _is_unicode(text: str) -> bool:
    """Return whether an answer can hold a text: JSON can write half of a pair of surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
