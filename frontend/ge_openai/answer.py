"""From pieces of text to the JSON of an answer, whole or event by event."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ge_openai.forms import Form
from ge_openai.text_call import Piece, joined

__all__ = ["END", "TextAnswerWriter", "event"]

END = b"data: [DONE]\n\n"


def event(body: dict[str, Any]) -> bytes:
    """Return a JSON object as a server-sent event."""
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


class TextAnswerWriter:
    """The answer to one request in the making.

    Args:
        head: `id`, `created` and `model`.
        samples: of each prompt; choice i is of prompt i // samples.
        usage: whether events have usage; an answer that is whole always does.
        running: whether each has that so far; else the last one alone.
        held: the field of the request that says what the answer has to be.
    """

    def __init__(  # noqa: PLR0913 - what an answer says besides its text
        self,
        form: Form,
        head: dict[str, Any],
        choices: int,
        samples: int,
        *,
        usage: bool,
        running: bool = False,
        held: str = "",
    ) -> None:
        self._form = form
        self._head = head
        self._pieces: list[list[Piece]] = [[] for _ in range(choices)]
        self._letters = [0] * choices
        self._tokens = 0
        self._prompts: dict[int, int] = {}
        self._samples = samples
        self._usage = usage
        self._running = running
        self._held = held
        self._warnings: tuple[str, ...] = ()
        self._begun = False

    def take(self, index: int, piece: Piece) -> None:
        """Keep what is new of a choice, for `whole`."""
        if self._counts(index, piece):
            self._pieces[index].append(piece)

    def whole(self) -> dict[str, Any]:
        """Return the answer of all that was taken."""
        choices = [
            self._form.choice(index, joined(pieces)) for index, pieces in enumerate(self._pieces)
        ]
        head = {**self._head, "object": self._form.whole, **self._warned()}
        return {**head, "choices": choices, "usage": self._figures()}

    def events(self, index: int, piece: Piece) -> Iterator[bytes]:
        """Yield the events that tell what is new of a choice; none if nothing is."""
        begins = not self._pieces[index]
        if not self._counts(index, piece):
            return
        first = self._form.first(index) if begins else None
        new = self._form.deltas(index, piece, self._letters[index])
        for each in [*([] if first is None else [first]), *new]:
            yield self._event([each])
        # Those of tokens: their text may be held back while a stop text could begin in it.
        self._letters[index] += sum(len(token.token) for token in piece.logprobs)
        self._pieces[index] = [piece]  # the last: whether there was one, and whether it was the end

    def end(self) -> Iterator[bytes]:
        """Yield the events that end a stream."""
        if self._usage:
            yield self._event([], usage=self._figures())
        yield END

    def _warned(self) -> dict[str, list[str]]:
        """Return what is said of the request beside the answer; a stream says it once."""
        field = self._held or "the structure"
        said = [f"{field} is kept to but for this: {warning}" for warning in self._warnings]
        return {"warnings": said} if said else {}

    def _counts(self, index: int, piece: Piece) -> bool:
        """Count a piece; False if its choice has ended, which every later response repeats."""
        self._warnings = self._warnings or piece.warnings
        before = self._pieces[index]
        if before and before[-1].finish:
            return False
        self._tokens += piece.tokens
        self._prompts[index // self._samples] = piece.prompt_tokens
        return True

    def _event(self, choices: list[Any], usage: dict[str, int] | None = None) -> bytes:
        body = {**self._head, "object": self._form.part, "choices": choices}
        if not self._begun:
            self._begun, body = True, {**body, **self._warned()}
        if self._running:
            usage = self._figures()
        return event({**body, "usage": usage} if self._usage else body)

    def _figures(self) -> dict[str, int]:
        prompt = sum(self._prompts.values())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self._tokens,
            "total_tokens": prompt + self._tokens,
        }
