"""Where things are in the text of a config.pbtxt, and setting one value; all else stays as it is.

Protobuf's own parser tells what a text means and not where; its printer drops comments and order.
So commands that change a user's file look places up here and write only those anew; they compare
what both texts mean afterwards.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass, field

__all__ = [
    "Field",
    "Message",
    "Span",
    "parameter_line",
    "read_fields",
    "set_number",
    "set_parameter",
]

INDENT = "  "
_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
      | (?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
      | (?P<mark>[{}<>\[\]:,;])
      | (?P<word>[^\s{}<>\[\]:,;"'#]+)""",
    re.VERBOSE,
)

Span = tuple[int, int]


def parameter_line(key: str, value: str) -> str:
    """Return the line that sets a parameter."""
    return f"parameters {{ key: {_quoted(key)} value {{ string_value: {_quoted(value)} }} }}"


def set_parameter(text: str, key: str, value: str) -> str:
    """Return a config.pbtxt's text with a parameter set: in its place, or as a new last line.

    Of a text that protobuf does not accept the result means nothing.
    """
    found = _values(text, key)
    if not found:
        return _with_last(text, parameter_line(key, value))
    replaced = text
    for spans in reversed(found):
        first, *others = _joined(text, spans)
        for begin, end in reversed(others):
            replaced = replaced[:begin] + replaced[end:]
        replaced = replaced[: first[0]] + _quoted(value) + replaced[first[1] :]
    return replaced


def set_number(text: str, block: str, name: str, value: int, *, new_block: str) -> str:
    """Return a config.pbtxt's text with `block { name: value }` set.

    The number is replaced in its place. Where the block has none it becomes the block's first
    field; where there is no block, `new_block`, a line with both, becomes the last one. The block
    is a message, or a list of one. Of a text that protobuf refuses the result means nothing.
    """
    messages = [m for f in read_fields(text) if f.name == block for m in f.messages]
    if not messages:
        return _with_last(text, new_block)
    words = [span for f in messages[-1].fields if f.name == name for span in f.words]
    if words:
        begin, end = words[-1]
        return f"{text[:begin]}{value}{text[end:]}"
    return _with_first(text, messages[-1], f"{name}: {value}")


def _with_last(text: str, line: str) -> str:
    end = _line_end(text)
    gap = "" if text.endswith("\n") or not text else end
    return f"{text}{gap}{line}{end}"


def _line_end(text: str) -> str:
    """Return what lines of the text end with."""
    return "\r\n" if "\r\n" in text else "\n"


def _values(text: str, key: str) -> list[list[Span]]:
    """Return where the string values of a parameter are, in order; a key may be there twice."""
    found = []
    for parameter in read_fields(text):
        for entry in parameter.messages if parameter.name == "parameters" else []:
            keys = [f for f in entry.fields if f.name == "key"]
            if keys and _said(text, keys[-1].texts) == key:
                strings = [
                    inner.texts
                    for outer in entry.fields
                    for message in outer.messages
                    for inner in message.fields
                    if inner.name == "string_value"
                ]
                found += [spans for spans in strings if spans]
    return found


def _said(text: str, spans: list[Span]) -> str:
    return "".join(str(ast.literal_eval(text[begin:end])) for begin, end in spans)


def _joined(text: str, spans: list[Span]) -> list[Span]:
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


def _with_first(text: str, message: Message, field: str) -> str:
    """Return the text with one more field in a message, on its own line where others are."""
    begin, end = message.inside
    opening = re.match(r"[^\S\n]*(#[^\n]*)?\n", text[begin:end])
    if opening is None:
        space = "" if text[begin:end][:1].isspace() else " "
        return f"{text[:begin]} {field}{space}{text[begin:]}"
    at = begin + opening.end()
    indent = _indent(text, message, at)
    return f"{text[:at]}{indent}{field}{_line_end(text)}{text[at:]}"


def _indent(text: str, message: Message, at: int) -> str:
    """Return the white space before what follows in the message, or one step more than its line."""
    following = re.match(r"\s*?([^\S\n]*)\S", text[at : message.inside[1]])
    if following is not None:
        return following[1]
    line = text[text.rfind("\n", 0, message.inside[0]) + 1 : message.inside[0]]
    return line[: len(line) - len(line.lstrip())] + INDENT


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
