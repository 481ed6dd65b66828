"""The two forms of answers: a text completion's and a chat's, whole and in pieces."""

from __future__ import annotations

from typing import Any, Protocol

from ge_backend.openai.logprobs import chat_logprobs, completion_logprobs
from ge_backend.openai.text_call import Piece

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

    def delta(self, index: int, piece: Piece, offset: int) -> dict[str, Any]:
        """Return what is new of a choice; `offset`: letters that came before."""


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
        return self.delta(index, piece, 0)

    def first(self, index: int) -> dict[str, Any] | None:
        """See `Form`."""
        del index
        return None

    def delta(self, index: int, piece: Piece, offset: int) -> dict[str, Any]:
        """See `Form`."""
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
    """

    prefix = "chatcmpl"
    whole = "chat.completion"
    part = "chat.completion.chunk"

    def __init__(self, top: int | None) -> None:
        self._top = top

    def choice(self, index: int, piece: Piece) -> dict[str, Any]:
        """See `Form`."""
        message = {"role": "assistant", "content": piece.text, "refusal": None}
        return {"index": index, "message": message, **self._rest(piece)}

    def first(self, index: int) -> dict[str, Any] | None:
        """See `Form`."""
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def delta(self, index: int, piece: Piece, offset: int) -> dict[str, Any]:
        """See `Form`."""
        del offset
        delta = {"content": piece.text} if piece.text else {}
        return {"index": index, "delta": delta, **self._rest(piece)}

    def _rest(self, piece: Piece) -> dict[str, Any]:
        wanted = self._top is not None and piece.logprobs
        return {
            "logprobs": chat_logprobs(piece.logprobs, self._top or 0) if wanted else None,
            "finish_reason": piece.finish or None,
        }
