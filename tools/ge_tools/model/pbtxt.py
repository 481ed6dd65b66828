"""Where things are in the text of a config.pbtxt.

Protobuf's own parser tells what a text means and not where; its printer drops comments and order.
So commands that change a user's file look places up here and write only those anew; they compare
what both texts mean afterwards.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["Field", "Message", "Span", "read_fields"]

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
      | (?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
      | (?P<mark>[{}<>\[\]:,;])
      | (?P<word>[^\s{}<>\[\]:,;"'#]+)""",
    re.VERBOSE,
)

Span = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What is between two brackets.

    Attributes:
        inside: from after the opening bracket to before the closing one.
    """

    fields: list[Field]
    inside: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One `name: value`; a list is several values.

    Attributes:
        texts: where the pieces of its string are; adjacent literals are one string.
        words: where its numbers and names are.
        messages: those among its values.
    """

    name: str
    texts: list[Span] = field(default_factory=list)
    words: list[Span] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)


def read_fields(text: str) -> list[Field]:
    """Return the fields of a text that protobuf accepts; of others the result means nothing."""
    return _Reader(text).fields()


class _Reader:
    """Goes through the tokens; comments and white space are skipped."""

    def __init__(self, text: str) -> None:
        self._tokens = [m for m in _TOKEN.finditer(text) if m.lastgroup != "space"]
        self._at = 0

    def fields(self) -> list[Field]:
        """Return the fields up to the end of the message, or of the text."""
        fields: list[Field] = []
        while self._at < len(self._tokens) and not self._skip("}>"):
            read = Field(name=self._tokens[self._at][0])
            self._at += 1
            self._skip(":")
            self._value(read)
            self._skip(",;")
            fields.append(read)
        return fields

    def _value(self, into: Field) -> None:
        if self._skip("["):
            while not self._skip("]"):
                self._value(into)
                self._skip(",")
        elif self._skip("{<"):
            begin = self._tokens[self._at - 1].end()
            fields = self.fields()
            inside = (begin, self._tokens[self._at - 1].start())
            into.messages.append(Message(fields=fields, inside=inside))
        elif self._is_text():
            while self._is_text():
                into.texts.append(self._tokens[self._at].span())
                self._at += 1
        else:
            into.words.append(self._tokens[self._at].span())
            self._at += 1

    def _is_text(self) -> bool:
        return self._at < len(self._tokens) and self._tokens[self._at].lastgroup == "text"

    def _skip(self, marks: str) -> bool:
        """Go past the next token if it is one of these marks."""
        found = self._at < len(self._tokens) and self._tokens[self._at][0] in tuple(marks)
        self._at += found
        return found
