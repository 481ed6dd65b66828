"""The two forms of answers: a text completion's and a chat's, whole and in pieces."""

from __future__ import annotations

import secrets
from collections import Counter
from typing import Any, Protocol

from ge_openai.call_json import ToolCall
from ge_openai.logprobs import chat_logprobs, completion_logprobs
from ge_openai.text_call import Piece
from ge_openai.tool_calls import CallReader, MakeReader, ParsedText

__all__ = ["ChatForm", "CompletionForm", "Form"]


class Form(Protocol):
    """How a choice is written.

    Attributes:
        prefix: of an answer's id.
        whole, part: what OpenAI calls an answer, and one of its events.
    """

    prefix: str
    whole: str
    part: str

    def choice(self, index: int, piece: Piece) -> dict[str, Any]:
        """Return a choice that is complete."""

    def first(self, index: int) -> dict[str, Any] | None:
        """Return what is said of a choice before its text, None if nothing."""

    def deltas(self, index: int, piece: Piece, offset: int) -> list[dict[str, Any]]:
        """Return what is new of a choice, an event each; `offset`: letters of tokens before."""


class CompletionForm:
    """Text that follows a prompt.

    Args:
        top: as in `ReplyForm`.
    """

    prefix = "cmpl"
    whole = part = "text_completion"

    def __init__(self, top: int | None) -> None:
        self._logprobs = top is not None

    def choice(self, index: int, piece: Piece) -> dict[str, Any]:
        """See `Form`."""
        return self._written(index, piece, 0)

    def first(self, index: int) -> dict[str, Any] | None:
        """See `Form`."""
        del index
        return None

    def deltas(self, index: int, piece: Piece, offset: int) -> list[dict[str, Any]]:
        """See `Form`."""
        new = piece.text or piece.finish or piece.logprobs
        return [self._written(index, piece, offset)] if new else []

    def _written(self, index: int, piece: Piece, offset: int) -> dict[str, Any]:
        return {
            "index": index,
            "text": piece.text,
            "logprobs": completion_logprobs(piece.logprobs, offset) if self._logprobs else None,
            "finish_reason": piece.finish or None,
        }


class ChatForm:
    """A message of the assistant.

    Args:
        top: as in `ReplyForm`.
        make_reader: reads calls of tools out of a choice; None: there are none to read.
        several: a choice may have more than one call; else those behind its first are not told.
    """

    prefix = "chatcmpl"
    whole = "chat.completion"
    part = "chat.completion.chunk"

    def __init__(
        self, top: int | None, make_reader: MakeReader | None = None, *, several: bool = True
    ) -> None:
        self._top = top
        self._several = several
        self._make_reader = make_reader
        self._readers: dict[int, CallReader] = {}
        self._calls: Counter[int] = Counter()

    def choice(self, index: int, piece: Piece) -> dict[str, Any]:
        """See `Form`."""
        parsed = self._parsed(index, piece)
        message: dict[str, Any] = {"role": "assistant", "content": parsed.text, "refusal": None}
        if parsed.calls:
            message["content"] = parsed.text or None
            message["tool_calls"] = [_written(call) for call in parsed.calls]
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(piece),
            "finish_reason": self._finish(index, piece),
        }

    def first(self, index: int) -> dict[str, Any] | None:
        """See `Form`."""
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def deltas(self, index: int, piece: Piece, offset: int) -> list[dict[str, Any]]:
        """See `Form`; the end is an event of its own.

        OpenAI's client tells that a call is complete only with an event that holds no part of it.
        Source: openai-python 3.54.0, `lib/streaming/chat/_completions.py`.
        """
        del offset
        begun = self._calls[index]
        parsed = self._parsed(index, piece)
        delta: dict[str, Any] = {"content": parsed.text} if parsed.text else {}
        if parsed.calls:
            delta["tool_calls"] = [
                {"index": number, **_written(call)}
                for number, call in enumerate(parsed.calls, begun)
            ]
        new = {"index": index, "delta": delta, "logprobs": self._logprobs(piece)}
        end = {"index": index, "delta": {}, "logprobs": None}
        finish = self._finish(index, piece)
        choices = [new | {"finish_reason": None}] if delta or piece.logprobs else []
        return choices + ([end | {"finish_reason": finish}] if finish else [])

    def _parsed(self, index: int, piece: Piece) -> ParsedText:
        """Return what is certain with a piece: calls apart from text."""
        if self._make_reader is None:
            return ParsedText(piece.text)
        reader = self._readers.get(index) or self._readers.setdefault(index, self._make_reader())
        parsed = reader.take(piece.text)
        if piece.finish:
            rest = reader.end()
            parsed = ParsedText(parsed.text + rest.text, parsed.calls + rest.calls)
        if not self._several:
            parsed = ParsedText(parsed.text, parsed.calls[: 0 if self._calls[index] else 1])
        self._calls[index] += len(parsed.calls)
        return parsed

    def _logprobs(self, piece: Piece) -> dict[str, Any] | None:
        wanted = self._top is not None and piece.logprobs
        return chat_logprobs(piece.logprobs, self._top or 0) if wanted else None

    def _finish(self, index: int, piece: Piece) -> str | None:
        called = piece.finish == "stop" and self._calls[index]
        return (self._readers[index].reason if called else piece.finish) or None


def _written(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    # Nine letters and digits: templates of Mistral's refuse a chat's history with any other id.
    return {"id": secrets.token_hex(5)[1:], "type": "function", "function": function}
