"""Setting one number in a block of a config.pbtxt; all else, comments too, is left as it is."""

from __future__ import annotations

import re

from ge_backend.cli.model.pbtxt import Message, read_fields

__all__ = ["set_number"]

INDENT = "  "


def set_number(text: str, block: str, name: str, value: int, *, new_block: str) -> str:
    """Return a config.pbtxt's text with `block { name: value }` set.

    The number is replaced in its place. Where the block has none it becomes the block's first
    field; where there is no block, `new_block` becomes the last line.

    Args:
        text: as protobuf accepts it; otherwise the result means nothing.
        block: a field that is a message, or a list of one message.
        name: a number in it.
        value: what it should be.
        new_block: a line with the block and the number.
    """
    messages = [m for f in read_fields(text) if f.name == block for m in f.messages]
    if not messages:
        line_end = "" if text.endswith("\n") or not text else "\n"
        return f"{text}{line_end}{new_block}\n"
    words = [span for f in messages[-1].fields if f.name == name for span in f.words]
    if words:
        begin, end = words[-1]
        return f"{text[:begin]}{value}{text[end:]}"
    return _with_first(text, messages[-1], f"{name}: {value}")


def _with_first(text: str, message: Message, field: str) -> str:
    """Return the text with one more field in a message, on its own line where others are."""
    begin, end = message.inside
    opening = re.match(r"[^\S\n]*(#[^\n]*)?\n", text[begin:end])
    if opening is None:
        space = "" if text[begin:end][:1].isspace() else " "
        return f"{text[:begin]} {field}{space}{text[begin:]}"
    at = begin + opening.end()
    indent = _indent(text, message, at)
    return f"{text[:at]}{indent}{field}\n{text[at:]}"


def _indent(text: str, message: Message, at: int) -> str:
    """Return the white space before what follows in the message, or one step more than its line."""
    following = re.match(r"\s*?([^\S\n]*)\S", text[at : message.inside[1]])
    if following is not None:
        return following[1]
    line = text[text.rfind("\n", 0, message.inside[0]) + 1 : message.inside[0]]
    return line[: len(line) - len(line.lstrip())] + INDENT
