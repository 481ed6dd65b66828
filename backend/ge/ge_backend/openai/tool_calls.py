"""Calls of tools in what a model writes, as the families of chat templates have it.

    TaggedCalls   <tool_call>{"name": …, "arguments": {…}}</tool_call>   Hermes, Qwen 2.5 and 3
    BareCalls     {"name": …, "parameters": {…}}, nothing else           Llama 3

Text that is no call stays text. A call is told when it is complete.
Source: the checkpoints' own templates, which show a model's calls to it again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
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


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call; `arguments` is JSON."""

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
    """Calls between tags; text may stand before and between them."""

    reason = "tool_calls"

    def __init__(self) -> None:
        self._held = ""
        self._called = False

    def take(self, text: str) -> Said:
        """See `CallReader`."""
        self._held += text
        told: list[str] = []
        calls: list[ToolCall] = []
        while True:
            before, opened, behind = self._held.partition(OPEN)
            body, closed, rest = behind.partition(CLOSE)
            if not opened:
                certain = len(self._held) - _uncertain(self._held)
                told.append(self._held[:certain])
                self._held = self._held[certain:]
            elif not closed:
                told.append(before.rstrip())
                self._held = opened + behind
            else:
                call = _call(body)
                told.append(before.rstrip() if call else before + opened + body + closed)
                calls += [call] if call else []
                self._held = rest
                continue
            self._called |= bool(calls)
            return Said("".join(told), tuple(calls))

    def end(self) -> Said:
        """See `CallReader`; a call whose closing tag is missing is one all the same."""
        held, self._held = self._held, ""
        call = _call(held.removeprefix(OPEN)) if held.startswith(OPEN) else None
        if call:
            return Said(calls=(call,))
        return Said() if self._called and not held.strip() else Said(held)


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
        decoder, calls, rest = json.JSONDecoder(), [], held.strip()
        try:
            while rest:
                found, end = decoder.raw_decode(rest)
                calls.append(_call(found))
                rest = rest[end:].lstrip("; \n")
        except (ValueError, RecursionError):
            return Said(held)
        whole = tuple(call for call in calls if call)
        return Said(calls=whole) if len(whole) == len(calls) else Said(held)


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
    try:
        calls = [_call(one) for one in json.loads(text)]
    except (ValueError, TypeError, RecursionError):
        return Said(text)
    whole = tuple(call for call in calls if call)
    return Said(calls=whole) if len(whole) == len(calls) else Said(text)


def _uncertain(text: str) -> int:
    """Return the length of a text's end that a tag may begin in, blanks before it included."""
    lengths = range(min(len(OPEN) - 1, len(text)), -1, -1)
    begun = next(length for length in lengths if text.endswith(OPEN[:length]))
    return len(text) - len(text[: len(text) - begun].rstrip())


def _call(body: Any) -> ToolCall | None:
    """Return the call that an object, or a text of JSON, is; None if it is none."""
    try:
        found = json.loads(body) if isinstance(body, str) else body
        name, arguments = found["name"], found.get("arguments", found.get("parameters"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not isinstance(name, str) or not _is_unicode(name) or not isinstance(arguments, dict):
        return None
    written = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(name, written if _is_unicode(written) else json.dumps(arguments))


def _is_unicode(text: str) -> bool:
    """Return whether an answer can hold a text: JSON can write half of a pair of surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
