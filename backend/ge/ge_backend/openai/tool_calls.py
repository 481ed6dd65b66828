"""Calls of tools in what a model writes, as the families of chat templates have it.

    TaggedCalls   <tool_call>{"name": …, "arguments": {…}}</tool_call>   Hermes, Qwen 2.5 and 3
    BareCalls     {"name": …, "parameters": {…}}, nothing else           Llama 3

Text that is no call stays text. A call is told when it is complete.
Source: the checkpoints' own templates, which show a model's calls to it again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = [
    "BareCalls",
    "CallReader",
    "ListedCalls",
    "MakeReader",
    "NamedCall",
    "Said",
    "TaggedCalls",
    "ToolCall",
    "reader_for",
]

OPEN, CLOSE = "<tool_call>", "</tool_call>"
# Llama's templates say in their instructions what a call looks like.
BARE_MARKS = ('{"name": function name, "parameters": dictionary', '"parameters": dictionary of')
OTHER_CALLS = "<function="  # within the tags, by Qwen's coders: another form
_BLANKS = frozenset(" \t\n\r")
_NO_JSON = ValueError, RecursionError


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call; `arguments` is a JSON object, as the model wrote it."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Said:
    """What is certain now of an answer: text, and behind it calls."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()


class CallReader(Protocol):
    """Reads one answer, piece by piece.

    Attributes:
        reason: why an answer with calls has ended, in OpenAI's words.
    """

    reason: str

    def take(self, text: str) -> Said:
        """Return what is certain with this piece."""

    def end(self) -> Said:
        """Return what was held back."""


MakeReader = Callable[[], CallReader]


def reader_for(template: str) -> MakeReader | None:
    """Return what reads the calls of a chat template's model; None where that is not known."""
    if OPEN in template and OTHER_CALLS not in template:
        return TaggedCalls
    return BareCalls if any(mark in template for mark in BARE_MARKS) else None


class TaggedCalls:
    """Calls between tags; text may stand before and between them, and tags within a call."""

    reason = "tool_calls"

    def __init__(self) -> None:
        self._held = ""  # nothing certain: blanks, an opening tag, what may be a call
        self._looked = 0  # so far there is no closing tag in it that ends the call
        self._called = False

    def take(self, text: str) -> Said:
        """See `CallReader`."""
        self._held += text
        return self._read(over=False)

    def end(self) -> Said:
        """See `CallReader`; a call whose closing tag is missing is one all the same."""
        said, held = self._read(over=True), self._held
        self._held = ""
        return said if self._called and not held.strip() else Said(said.text + held, said.calls)

    def _read(self, *, over: bool) -> Said:
        """Take what is certain from what is held; `over`: nothing more comes."""
        told: list[str] = []
        calls: list[ToolCall] = []
        while True:
            opened = self._held.find(OPEN)
            certain = len(self._held) - _begun(self._held) if opened < 0 else opened
            told.append(self._cut(len(self._held[:certain].rstrip())))
            if opened < 0:
                break
            call, length = self._first(over=over)
            if not length:
                break
            text = self._cut(length)
            told += [] if call else [text]
            calls += [call] if call else []
        self._called |= bool(calls)
        return Said("".join(told), tuple(calls))

    def _first(self, *, over: bool) -> tuple[ToolCall | None, int]:
        """Return the call that what is held begins with, if it is one, and the length to the end.

        A closing tag within a text of the call is none: where the call is read up to it, its text
        has no end. The length is 0 while a call may still become whole.
        """
        begin = self._held.index(OPEN) + len(OPEN)
        self._looked = max(self._looked, begin)
        while (close := self._held.find(CLOSE, self._looked)) >= 0:
            call, text_goes_on = _whole(self._held[begin:close])
            self._looked = close + len(CLOSE)
            if call:
                return call, self._looked
            if not text_goes_on:
                return None, self._held.index(CLOSE, begin) + len(CLOSE)
        self._looked = max(self._looked, len(self._held) - len(CLOSE) + 1)
        if not over:
            return None, 0
        call, _ = _whole(self._held[begin:])
        close = self._held.find(CLOSE, begin)
        return call, len(self._held) if call or close < 0 else close + len(CLOSE)

    def _cut(self, length: int) -> str:
        """Return so many letters of what is held, and hold the others."""
        text, self._held = self._held[:length], self._held[length:]
        if length:
            self._looked = 0
        return text


class _Held:
    """What is read when it is complete."""

    reason = "tool_calls"

    def __init__(self, read: Callable[[str], Said]) -> None:
        self._read = read
        self._held = ""

    def take(self, text: str) -> Said:
        """See `CallReader`."""
        self._held += text
        return Said()

    def end(self) -> Said:
        """See `CallReader`."""
        return self._read(self._held)


class BareCalls:
    """An answer that is a call, or several with semicolons between, or text."""

    reason = "tool_calls"

    def __init__(self) -> None:
        self._held: str | None = ""

    def take(self, text: str) -> Said:
        """See `CallReader`."""
        if self._held is None:
            return Said(text)
        self._held += text
        if self._held.lstrip()[:1] in {"", "{"}:
            return Said()
        told, self._held = self._held, None
        return Said(told)

    def end(self) -> Said:
        """See `CallReader`."""
        held = self._held or ""
        calls, rest = [], held.strip()
        try:
            while rest:
                call, end = _call(rest, 0)
                calls.append(call)
                rest = rest[end:].lstrip("; \n")
        except _NO_JSON:
            return Said(held)
        return _all_or(held, calls)


class NamedCall(_Held):
    """The whole answer is the arguments of one tool, which the client has named."""

    reason = "stop"  # as OpenAI has it where the client chose the tool

    def __init__(self, name: str) -> None:
        super().__init__(lambda text: Said(calls=(ToolCall(name, text),)))


class ListedCalls(_Held):
    """The whole answer is a JSON list of calls; text if it was cut off."""

    def __init__(self) -> None:
        super().__init__(_listed)


def _listed(text: str) -> Said:
    calls: list[ToolCall | None] = []
    at, sign = 0, "["
    try:
        while sign != "]":
            call, at = _call(text, _behind(text, at, sign))
            calls.append(call)
            sign = "]" if _next(text, at) == "]" else ","
        _end(text, _behind(text, at, sign))
    except _NO_JSON:
        return Said(text)
    return _all_or(text, calls)


def _all_or(text: str, calls: Sequence[ToolCall | None]) -> Said:
    """Return calls, or the text that they were read from where one of them is none."""
    whole = tuple(call for call in calls if call)
    return Said(calls=whole) if len(whole) == len(calls) else Said(text)


def _begun(text: str) -> int:
    """Return the length of a text's end that an opening tag may begin with."""
    lengths = range(min(len(OPEN) - 1, len(text)), -1, -1)
    return next(length for length in lengths if text.endswith(OPEN[:length]))


def _whole(text: str) -> tuple[ToolCall | None, bool]:
    """Return the call that a text is, if any; else whether a text in it has no end yet."""
    try:
        call, at = _call(text, 0)
        _end(text, at)
    except json.JSONDecodeError as error:
        return None, error.msg.startswith("Unterminated string")
    except _NO_JSON:
        return None, False
    return call, False


def _call(text: str, at: int) -> tuple[ToolCall | None, int]:
    """Return the call that the JSON object at a place is, if it is one, and where it ends.

    Raises:
        ValueError: no object is there.
        RecursionError: it is nested too deeply.
    """
    found, end = _object(text, at)
    name, _ = found.get("name", (None, ""))
    arguments, written = found.get("arguments") or found.get("parameters") or (None, "")
    if not isinstance(name, str) or not _is_unicode(name) or not isinstance(arguments, dict):
        return None, end
    return ToolCall(name, written), end


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


def _end(text: str, at: int) -> None:
    if _next(text, at):
        raise ValueError(f"expected nothing at {at}")


def _is_unicode(text: str) -> bool:
    """Return whether an answer can hold a text: JSON can write half of a pair of surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
