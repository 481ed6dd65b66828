"""From tokens to text as it may be sent: whole characters, and nothing that a stop text may cut.

Text is held back while a stop text could still begin in it, and cut where one does. The stop text
that is complete first counts, of several the longest; so the answer does not depend on how tokens
divide the text, nor on how many come at once.
"""

from __future__ import annotations

from functools import lru_cache

from ge_text.models.base import TextStream

__all__ = ["TextAssembler"]

KEPT = 8  # of the latest requests; its samples follow each other, and the largest takes 4 MB


class TextAssembler:
    """The text of one sequence.

    Args:
        stream: gives the text of the sequence's tokens, whole characters at a time.
        stop: none of them empty.
        min_tokens: a stop text that is complete with one of the first `min_tokens` is none.
        include_stop: a stop text is not cut off; what is behind it is.

    Attributes:
        stopped: a stop text was found; its sequence has nothing more to say.
        tokens: how many were taken, the last one that with which the stop text was complete.
    """

    def __init__(
        self,
        stream: TextStream,
        stop: tuple[str, ...],
        min_tokens: int = 0,
        *,
        include_stop: bool = False,
    ) -> None:
        self.stopped = False
        self.tokens = 0
        self._stream = stream
        self._stops = _stops(stop) if stop else None
        self._begun = 0
        self._min_tokens = min_tokens
        self._include_stop = include_stop
        self._held = ""

    def take(self, token: int) -> str:
        """Return the text that is certain with this token; "" after a stop text."""
        if self.stopped:
            return ""
        self.tokens += 1
        return self._certain(self._stream.step(token))

    def rest(self) -> str:
        """Return what was held back, once the sequence has ended for another reason.

        The stream's last characters may complete a stop text all the same.
        """
        text = self._certain(self._stream.rest())
        rest, self._held = self._held, ""
        return text + rest

    def _certain(self, new: str) -> str:
        """Return what is certain of the text that was held back and of what follows it."""
        stops, begun = self._stops, self._begun
        if stops is None:
            return new
        text, counts = self._held + new, self.tokens > self._min_tokens
        for end, letter in enumerate(new, len(self._held) + 1):
            begun = stops.after(begun, letter)
            if counts and stops.whole[begun]:
                self.stopped = True
                self._held = ""
                return text[: end if self._include_stop else end - stops.whole[begun]]
        self._begun = stops.going_on(begun)
        certain = len(text) - stops.length[self._begun]
        self._held = text[certain:]
        return text[:certain]


class _Stops:
    """Where a text stands in many stop texts at once; a letter costs the same for few and many.

    A state is the longest end of the text with which a stop text begins; 0 is that of no letter.
    Source: Aho, Corasick, "Efficient string matching", CACM 18 (1975).

    Attributes:
        length: letters of each state.
        whole: letters of the longest stop text that is complete in each state; 0: none is.
    """

    def __init__(self, texts: tuple[str, ...]) -> None:
        self.length = [0]
        self.whole = [0]
        self._next: list[dict[str, int]] = [{}]
        for text in texts:
            self._add(text)
        self._shorter = [0] * len(self.length)  # the next longest end that is a state
        states = list(self._next[0].values())
        for state in states:  # grows: shorter ones come first
            for letter, longer in self._next[state].items():
                shorter = self._shorter[longer] = self.after(self._shorter[state], letter)
                self.whole[longer] = self.whole[longer] or self.whole[shorter]
                states.append(longer)

    def after(self, state: int, letter: str) -> int:
        """Return the state one letter on."""
        while state and letter not in self._next[state]:
            state = self._shorter[state]
        return self._next[state].get(letter, 0)

    def going_on(self, state: int) -> int:
        """Return the longest end, this one or shorter, behind which a stop text goes on."""
        while not self._next[state]:
            state = self._shorter[state]
        return state

    def _add(self, text: str) -> None:
        state = 0
        for letter in text:
            if letter not in self._next[state]:
                self._next[state][letter] = len(self._next)
                self._next.append({})
                self.length.append(self.length[state] + 1)
                self.whole.append(0)
            state = self._next[state][letter]
        self.whole[state] = len(text)


_stops = lru_cache(KEPT)(_Stops)
