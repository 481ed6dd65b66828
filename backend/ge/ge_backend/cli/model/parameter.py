"""Setting one parameter in the text of a config.pbtxt, with all else, comments too, left as it is.

Protobuf's own printer would drop comments and order. So the text is cut into tokens, the place of
the value is looked up, and only that is written anew; the caller compares what both texts mean.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass, field

__all__ = ["parameter_line", "set_parameter"]

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
      | (?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
      | (?P<mark>[{}<>\[\]:,;])
      | (?P<word>[^\s{}<>\[\]:,;"'#]+)""",
    re.VERBOSE,
)

_Span = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    """One `name: value`; a list is several values.

    Attributes:
        texts: where the pieces of its string are; adjacent literals are one string.
        messages: the fields of each message among its values.
    """

    name: str
    texts: list[_Span] = field(default_factory=list)
    messages: list[list[_Field]] = field(default_factory=list)


def parameter_line(key: str, value: str) -> str:
    """Return the line that sets a parameter."""
    return f"parameters {{ key: {_quoted(key)} value {{ string_value: {_quoted(value)} }} }}"


def set_parameter(text: str, key: str, value: str) -> str:
    """Return a config.pbtxt's text with a parameter set: in its place, or as a new last line.

    Args:
        text: as protobuf accepts it; otherwise the result means nothing.
        key: the parameter.
        value: its new `string_value`.
    """
    replaced = text
    for spans in reversed(_values(text, key)):
        first, *others = _joined(text, spans)
        for begin, end in reversed(others):
            replaced = replaced[:begin] + replaced[end:]
        replaced = replaced[: first[0]] + _quoted(value) + replaced[first[1] :]
    if replaced != text or _values(text, key):
        return replaced
    line_end = "" if text.endswith("\n") or not text else "\n"
    return f"{text}{line_end}{parameter_line(key, value)}\n"


def _values(text: str, key: str) -> list[list[_Span]]:
    """Return where the string values of a parameter are, in order; a key may be there twice."""
    found = []
    for parameter in _Reader(text).fields():
        for entry in parameter.messages if parameter.name == "parameters" else []:
            keys = [f for f in entry if f.name == "key"]
            if keys and _said(text, keys[-1].texts) == key:
                strings = [
                    inner.texts
                    for outer in entry
                    for message in outer.messages
                    for inner in message
                    if inner.name == "string_value"
                ]
                found += [spans for spans in strings if spans]
    return found


def _said(text: str, spans: list[_Span]) -> str:
    return "".join(str(ast.literal_eval(text[begin:end])) for begin, end in spans)


def _joined(text: str, spans: list[_Span]) -> list[_Span]:
    """Return the spans with those made one between which there is nothing but white space."""
    joined = spans[:1]
    for begin, end in spans[1:]:
        if text[joined[-1][1] : begin].isspace() or joined[-1][1] == begin:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((begin, end))
    return joined


def _quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


class _Reader:
    """Reads the fields of a text that protobuf accepts; comments and white space are skipped."""

    def __init__(self, text: str) -> None:
        self._tokens = [m for m in _TOKEN.finditer(text) if m.lastgroup != "space"]
        self._at = 0

    def fields(self) -> list[_Field]:
        """Return the fields up to the end of the message, or of the text."""
        fields: list[_Field] = []
        while self._at < len(self._tokens) and not self._skip("}>"):
            read = _Field(name=self._tokens[self._at][0])
            self._at += 1
            self._skip(":")
            self._value(read)
            self._skip(",;")
            fields.append(read)
        return fields

    def _value(self, into: _Field) -> None:
        if self._skip("["):
            while not self._skip("]"):
                self._value(into)
                self._skip(",")
        elif self._skip("{<"):
            into.messages.append(self.fields())
        elif self._is_text():
            while self._is_text():
                into.texts.append(self._tokens[self._at].span())
                self._at += 1
        else:
            self._at += 1  # a number or a name

    def _is_text(self) -> bool:
        return self._at < len(self._tokens) and self._tokens[self._at].lastgroup == "text"

    def _skip(self, marks: str) -> bool:
        """Go past the next token if it is one of these marks."""
        found = self._at < len(self._tokens) and self._tokens[self._at][0] in tuple(marks)
        self._at += found
        return found
