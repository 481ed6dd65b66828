"""Setting one parameter in the text of a config.pbtxt; all else, comments too, is left as it is."""

from __future__ import annotations

import ast
import json

from ge_backend.cli.model.pbtxt import Span, read_fields

__all__ = ["parameter_line", "set_parameter"]


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
