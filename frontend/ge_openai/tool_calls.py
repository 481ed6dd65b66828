"""Calls of tools in what a model writes, as the families of chat templates have it.

    TaggedCalls     <tool_call>{"name": …, "arguments": {…}}</tool_call>   Hermes, Qwen 2.5 and 3
                    <tool_call><function=…>…</function></tool_call>        Qwen's coders, Qwen 3.5
    TrailingCalls   <|tool_call|>[{"name": …, "arguments": {…}}, …]        Granite 3
                    [TOOL_CALLS] likewise, or [TOOL_CALLS]name[ARGS]{…}    Mistral
    BareCalls       {"name": …, "parameters": {…}}, nothing else           Llama 3

Text that is no call stays text. A call is told when it is complete.
Source: the checkpoints' own templates, which show a model's calls to it again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from ge_openai.call_json import (
    NO_JSON,
    ToolCall,
    calls_behind,
    check_end,
    listed_calls,
    read_call,
    read_calls,
)

__all__ = [
    "BareCalls",
    "CallReader",
    "ListedCalls",
    "MakeReader",
    "NamedCall",
    "ParsedText",
    "TaggedCalls",
    "TrailingCalls",
]

OPEN, CLOSE = "<tool_call>", "</tool_call>"
PYTHON = "<|python_tag|>"


@dataclass(frozen=True, slots=True)
class ParsedText:
    """What is certain now of an answer: text, and behind it calls."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()


class CallReader(Protocol):
    """Reads one answer, piece by piece.

    Attributes:
        reason: why an answer with calls has ended, in OpenAI's words.
    """

    reason: str

    def take(self, text: str) -> ParsedText:
        """Return what is certain with this piece."""

    def end(self) -> ParsedText:
        """Return what was held back."""


MakeReader = Callable[[], CallReader]
# The calls that a text between tags is, if any; else whether a text in it has no end yet.
ReadCalls = Callable[[str], tuple[tuple[ToolCall, ...], bool]]


class TaggedCalls:
    """Calls between tags; text may stand before and between them, and tags within a call.

    Between a pair of tags is one call, or a list of them: JSON, unless they are `read` otherwise.
    """

    reason = "tool_calls"

    def __init__(self, read: ReadCalls | None = None) -> None:
        self._read_calls = read or _whole
        self._held = ""  # nothing certain: blanks, an opening tag, what may be a call
        self._looked = 0  # so far there is no closing tag in it that ends the call
        self._called = False

    def take(self, text: str) -> ParsedText:
        """See `CallReader`."""
        self._held += text
        return self._read(over=False)

    def end(self) -> ParsedText:
        """See `CallReader`; a call whose closing tag is missing is one all the same."""
        parsed, held = self._read(over=True), self._held
        self._held = ""
        return (
            parsed
            if self._called and not held.strip()
            else ParsedText(parsed.text + held, parsed.calls)
        )

    def _read(self, *, over: bool) -> ParsedText:
        """Take what is certain from what is held; `over`: nothing more comes."""
        plain: list[str] = []
        calls: list[ToolCall] = []
        while True:
            opened = self._held.find(OPEN)
            certain = len(self._held) - _begun(self._held, OPEN) if opened < 0 else opened
            plain.append(self._cut(len(self._held[:certain].rstrip())))
            if opened < 0:
                break
            found, length = self._first(over=over)
            if not length:
                break
            text = self._cut(length)
            plain += [] if found else [text]
            calls += found
        self._called |= bool(calls)
        return ParsedText("".join(plain), tuple(calls))

    def _first(self, *, over: bool) -> tuple[tuple[ToolCall, ...], int]:
        """Return the calls that what is held begins with, if any, and the length to their end.

        A closing tag within a text of the call is none: where the call is read up to it, its text
        has no end. The length is 0 while a call may still become whole.
        """
        begin = self._held.index(OPEN) + len(OPEN)
        self._looked = max(self._looked, begin)
        while (close := self._held.find(CLOSE, self._looked)) >= 0:
            calls, text_goes_on = self._read_calls(self._held[begin:close])
            self._looked = close + len(CLOSE)
            if calls:
                return calls, self._looked
            if not text_goes_on:
                return (), self._held.index(CLOSE, begin) + len(CLOSE)
        self._looked = max(self._looked, len(self._held) - len(CLOSE) + 1)
        if not over:
            return (), 0
        calls, _ = self._read_calls(self._held[begin:])
        close = self._held.find(CLOSE, begin)
        return calls, len(self._held) if calls or close < 0 else close + len(CLOSE)

    def _cut(self, length: int) -> str:
        """Return this many letters of what is held, and hold the others."""
        text, self._held = self._held[:length], self._held[length:]
        if length:
            self._looked = 0
        return text


class TrailingCalls:
    """Calls from a tag to the answer's end; text may stand before it."""

    reason = "tool_calls"

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self._held = ""
        self._opened = False

    def take(self, text: str) -> ParsedText:
        """See `CallReader`."""
        self._held += text
        if self._opened:
            return ParsedText()
        opened = self._held.find(self._tag)
        self._opened = opened >= 0
        certain = opened if self._opened else len(self._held) - _begun(self._held, self._tag)
        plain = self._held[:certain].rstrip()
        self._held = self._held[len(plain) :]
        return ParsedText(plain)

    def end(self) -> ParsedText:
        """See `CallReader`."""
        held = self._held
        if not self._opened:
            return ParsedText(held)
        try:
            return _all_or(held, calls_behind(self._tag, held))
        except NO_JSON:
            return ParsedText(held)


class _Held:
    """What is read when it is complete."""

    reason = "tool_calls"

    def __init__(self, read: Callable[[str], ParsedText]) -> None:
        self._read = read
        self._held = ""

    def take(self, text: str) -> ParsedText:
        """See `CallReader`."""
        self._held += text
        return ParsedText()

    def end(self) -> ParsedText:
        """See `CallReader`."""
        return self._read(self._held)


class BareCalls:
    """An answer that is a call, or several with semicolons between, or text.

    Llama 3.1 may write `<|python_tag|>` before them.
    """

    reason = "tool_calls"

    def __init__(self) -> None:
        self._held: str | None = ""

    def take(self, text: str) -> ParsedText:
        """See `CallReader`."""
        if self._held is None:
            return ParsedText(text)
        self._held += text
        begun = self._held.lstrip()[: len(PYTHON)]
        if begun.startswith("{") or PYTHON.startswith(begun):
            return ParsedText()
        plain, self._held = self._held, None
        return ParsedText(plain)

    def end(self) -> ParsedText:
        """See `CallReader`."""
        held = self._held or ""
        calls, rest = [], held.strip().removeprefix(PYTHON).lstrip()
        try:
            while rest:
                call, end = read_call(rest, 0)
                calls.append(call)
                rest = rest[end:].lstrip("; \n")
        except NO_JSON:
            return ParsedText(held)
        return _all_or(held, calls)


class NamedCall(_Held):
    """The whole answer is the arguments of one tool, which the client has named."""

    reason = "stop"  # as OpenAI has it where the client chose the tool

    def __init__(self, name: str) -> None:
        super().__init__(lambda text: ParsedText(calls=(ToolCall(name, text),)))


class ListedCalls(_Held):
    """The whole answer is a JSON list of calls; text if it was cut off."""

    def __init__(self) -> None:
        super().__init__(_listed)


def _listed(text: str) -> ParsedText:
    try:
        return _all_or(text, listed_calls(text))
    except NO_JSON:
        return ParsedText(text)


def _all_or(text: str, calls: Iterable[ToolCall | None]) -> ParsedText:
    """Return calls, or the text that they were read from where there are none, or one is none."""
    found = tuple(calls)
    whole = tuple(call for call in found if call)
    return ParsedText(calls=whole) if whole and len(whole) == len(found) else ParsedText(text)


def _begun(text: str, tag: str) -> int:
    """Return the length of a text's end that a tag may begin with."""
    lengths = range(min(len(tag) - 1, len(text)), -1, -1)
    return next(length for length in lengths if text.endswith(tag[:length]))


def _whole(text: str) -> tuple[tuple[ToolCall, ...], bool]:
    """Return the calls that a text is, if any; else whether a text in it has no end yet."""
    try:
        found, at = read_calls(text, 0)
        check_end(text, at)
    except json.JSONDecodeError as error:
        return (), error.msg.startswith("Unterminated string")
    except NO_JSON:
        return (), False
    return _all_or(text, found).calls, False
