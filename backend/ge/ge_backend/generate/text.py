"""From tokens to text as it may be sent: whole characters, and nothing that a stop text may cut.

Text is held back while a stop text could still begin in it, and cut where one does. The stop text
that is complete first counts, of several the longest; so the answer does not depend on how tokens
divide the text, nor on how many come at once.
"""

from __future__ import annotations

from ge_backend.device.language.base import TextStream

__all__ = ["TextAssembler"]


class TextAssembler:
    """The text of one sequence.

    Args:
        stream: gives the text of the sequence's tokens, whole characters at a time.
        stop: none of them empty.
        min_tokens: a stop text that is complete with one of the first so many is none.

    Attributes:
        stopped: a stop text was found; its sequence has nothing more to say.
        tokens: how many were taken, the last one that with which the stop text was complete.
    """

    def __init__(self, stream: TextStream, stop: tuple[str, ...], min_tokens: int = 0) -> None:
        self.stopped = False
        self.tokens = 0
        self._stream = stream
        self._stop = stop
        self._min_tokens = min_tokens
        self._held = ""

    def take(self, token: int) -> str:
        """Return the text that is certain with this token; "" after a stop text."""
        if self.stopped:
            return ""
        self.tokens += 1
        before = len(self._held)
        text = self._held + self._stream.step(token)
        found = self._first_stop(text, before) if self.tokens > self._min_tokens else None
        if found is not None:
            self.stopped = True
            self._held = ""
            return text[:found]
        certain = len(text) - self._uncertain(text)
        self._held = text[certain:]
        return text[:certain]

    def rest(self) -> str:
        """Return what was held back, once the sequence has ended for another reason."""
        rest, self._held = self._held, ""
        return rest

    def _first_stop(self, text: str, before: int) -> int | None:
        """Return where the stop text begins that ends first, behind the first `before` letters."""
        found = [
            (start + len(stop), start)
            for stop in self._stop
            if (start := text.find(stop, max(0, before - len(stop) + 1))) >= 0
        ]
        return min(found)[1] if found else None

    def _uncertain(self, text: str) -> int:
        """Return the length of the longest end of the text with which a stop text begins."""
        return max(
            (
                length
                for stop in self._stop
                for length in range(1, min(len(stop), len(text) + 1))
                if text.endswith(stop[:length])
            ),
            default=0,
        )
