"""Calls of tools as Qwen's coders and Qwen 3.5 write them: a parameter each, texts as they are.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Paris
    </parameter>
    </function>
    </tool_call>

Whether a value is a text or JSON is told by the tool's schema. Source: the checkpoints' templates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ge_openai.call_json import ToolCall
from ge_openai.schemas import Schema
from ge_openai.tool_calls import TaggedCalls

__all__ = ["FUNCTION", "TEXT_RULE", "parameter_rules", "typed_calls"]

FUNCTION = "<function="
_END, _VALUE_END = "</function>", "\n</parameter>\n"
_CALL = re.compile(rf"\s*{FUNCTION}([^>\n]+)>\s*(.*?)\s*{_END}\s*", re.DOTALL)
# A closing tag within a value is of the value: the next parameter, or nothing, follows the last.
_PARAMETER = re.compile(
    r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>\s*(?=<parameter=[^>\n]+>|\Z)", re.DOTALL
)
_OTHER = {"$ref", "anyOf", "oneOf", "allOf"}
TEXT_RULE = f"text[suffix={json.dumps(_VALUE_END)}]: /(?s:.*)/"


def typed_calls(schemas: Mapping[str, Schema]) -> TaggedCalls:
    """Return what reads such calls of tools whose arguments have these schemas."""

    def read(text: str) -> tuple[tuple[ToolCall, ...], bool]:
        found = _CALL.fullmatch(text)
        if not found:  # a closing tag may stand in a value
            return (), _END not in text
        schema = schemas.get(found[1])
        properties = _properties(schema) if schema else {}
        arguments, at = {}, 0
        while at < len(found[2]):
            given = _PARAMETER.match(found[2], at)
            if not given:
                return (), False
            arguments[given[1]] = _value(given[2], properties.get(given[1], {}))
            at = given.end()
        return (ToolCall(found[1], json.dumps(arguments, ensure_ascii=False)),), False

    return TaggedCalls(read)


def parameter_rules(number: int, schema: Schema) -> tuple[list[str], dict[str, Schema]]:
    """Return a grammar's rules for the arguments of a tool: lines, and schemas by their rules."""
    properties, needed = _properties(schema), schema.given.get("required") or ()
    kept = {name: schema.given[name] for name in ("$defs", "definitions") if name in schema.given}
    whole, lines, values = [], list[str](), dict[str, Schema]()
    for place, (name, each) in enumerate(properties.items()):
        rule = f"value_{number}_{place}"
        given = each if isinstance(each, dict) else {}
        begin = json.dumps(f"<parameter={name}>\n", ensure_ascii=False)
        end = f"{rule} {json.dumps(_VALUE_END)}"
        if _is_text(given):
            listed = _listed(given)
            texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in listed)
            lines += [f"{rule}: {texts}"] if listed else []
            end = end if listed else "text"
        else:
            values[rule] = replace(schema, given={**kept, **given})
        whole.append(f"({begin} {end})" + ("" if name in needed else "?"))
    if not properties and schema.given.get("additionalProperties") is not False:
        whole.append('("<parameter=" /[^>\\n]+/ ">\\n" text)*')
    return [f"arguments_{number}: {' '.join(whole) or json.dumps('')}", *lines], values


def _properties(schema: Schema) -> Mapping[str, Any]:
    found = schema.given.get("properties")
    return found if isinstance(found, Mapping) else {}


def _value(text: str, schema: Any) -> Any:
    """Return a parameter's value: a text as it stands, unless the schema wants something else."""
    if not isinstance(schema, Mapping) or _is_text(schema):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _listed(schema: Mapping[str, Any]) -> list[Any]:
    return list(schema.get("enum") or ([schema["const"]] if "const" in schema else []))


def _is_text(schema: Mapping[str, Any]) -> bool:
    if "type" in schema:
        return bool(schema["type"] == "string")
    listed = _listed(schema)
    return all(isinstance(one, str) for one in listed) if listed else _OTHER.isdisjoint(schema)
