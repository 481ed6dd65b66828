"""JSON schemas as their compiler takes them; lenient ones without what it cannot keep to.

The compiler's own options stand in the schema, under `x-guidance`, whose keys a client may set too.
Source: llguidance 1.9.1, `_lib.pyi`, `JsonCompileOptions`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from ge_text.models.json_numbers import lost_number, with_kept_bounds

__all__ = ["WHITE", "left_out", "mapped", "prepared", "prepared_text", "with_prepared_rules"]

OPTIONS = "x-guidance"
# Between two parts of a JSON text: nothing, a space, or a line's end and indentation. With more a
# model may write white space for ever.
WHITE = r"( |\n {0,16})?"
# Keywords that name schemas, and those that hold values and no schemas.
# Source: JSON Schema, draft 2020-12; `definitions` is what `$defs` was called before.
_NAMED = {"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"}
_VALUES = {"const", "default", "enum", "examples", "required", OPTIONS}
_PROPERTIES = {"properties", "patternProperties"}
# Of a name, which is a text: they ask for nothing.
_NO_CONDITION = {"type", "title", "description"}
_LOOK_AROUND = re.compile(r"\(\?<?[=!]")
_NO_REGULAR_LANGUAGE = re.compile(r"\\[1-9]|\\k<|\(\?P=|\(\?>|\(\?\(")
# Of a pattern: an escape, a class of letters, or one letter.
_PART = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
_REPEATED = re.compile(r"[*+?]|\{\d*,?\d*\}")
# Of a date whose month may have its day: the compiler allows 29 February in every year.
# Source: llguidance 1.9.1, run by findings/llguidance_leap_days.sh.
_DATES = {"date", "date-time"}
_DAY = {
    "pattern": r"^([0-9]{4}-(0[13-9]|1[0-2])-|[0-9]{4}-02-([01][0-9]|2[0-8])"
    r"|([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)"
}
# In a grammar: one that is a schema, in a line of its own.
_RULE = re.compile(r"^(\w+: %json )(\{.*\})$", re.MULTILINE)


def prepared(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with the options that it is compiled with.

    Of a `oneOf` whose schemas overlap any may hold. Names of properties that are listed, or have a
    pattern, become those properties, which is what the compiler knows of `propertyNames`. Where the
    schema is lenient, look-around is left out of patterns, which so allow more, and so are values
    with a number that the compiler would round.

    Raises:
        RecursionError: it is nested too deeply.
        ValueError: it has such a value and is not lenient.
    """
    options = {"whitespace_pattern": WHITE, "coerce_one_of": True, **_options(schema)}
    kept = _lenient if options.get("lenient") else _strict
    made = mapped(schema, lambda each: _with_days(_with_names(with_kept_bounds(kept(each)))))
    return {**made, OPTIONS: options}


def prepared_text(schema: str) -> str:
    """Return a schema as `prepared` has it, both as JSON; what is none stays as it is.

    Raises:
        ValueError: as `prepared`.
    """
    try:
        read = json.loads(schema)
    except (ValueError, RecursionError):
        return schema
    try:
        return json.dumps(prepared(read)) if isinstance(read, dict) else schema
    except RecursionError:
        return schema


def with_prepared_rules(grammar: str) -> str:
    """Return a grammar whose rules `name: %json {…}`, each in a line, have prepared schemas.

    Raises:
        ValueError: as `prepared`.
    """
    return _RULE.sub(lambda rule: rule[1] + prepared_text(rule[2]), grammar)


def left_out(schema: Mapping[str, Any]) -> list[str]:
    """Return the patterns and values of which a part is left out of a lenient schema, in words."""
    found: list[str] = []

    def look(each: dict[str, Any]) -> dict[str, Any]:
        pattern = each.get("pattern")
        if isinstance(pattern, str) and _lenient(each).get("pattern") != pattern:
            found.append(f"Unimplemented parts of the pattern {json.dumps(pattern)}")
        if lost := lost_number(each):
            found.append(_rounded(*lost))
        return each

    if _options(schema).get("lenient"):
        mapped(schema, look)
    return found


def _options(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    own = schema.get(OPTIONS)
    return own if isinstance(own, Mapping) else {}


def mapped(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return a schema with every object in it that is one changed, the innermost first."""
    if isinstance(schema, list):
        return [mapped(each, change) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    return change({key: _mapped_keyword(key, value, change) for key, value in schema.items()})


def _mapped_keyword(
    key: str, value: Any, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> Any:
    if key in _VALUES:
        return value
    if key in _NAMED and isinstance(value, Mapping):
        return {name: mapped(each, change) for name, each in value.items()}
    return mapped(value, change)


def _without_nothing(schema: dict[str, Any]) -> dict[str, Any]:
    """Leave out a keyword that asks for nothing, which the compiler takes for one that asks."""
    return {key: value for key, value in schema.items() if (key, value) != ("uniqueItems", False)}


def _with_days(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a date with the days that its month has."""
    if schema.get("format") not in _DATES or not isinstance(schema.get("allOf", []), list):
        return schema
    return {**schema, "allOf": [*schema.get("allOf", []), _DAY]}


def _with_names(schema: dict[str, Any]) -> dict[str, Any]:
    """Return an object's schema that names its properties, where another one does so for it."""
    names = schema.get("propertyNames")
    if not isinstance(names, Mapping) or not _PROPERTIES.isdisjoint(schema):
        return schema
    said = {key: value for key, value in names.items() if key not in _NO_CONDITION}
    rest = {key: value for key, value in schema.items() if key != "propertyNames"}
    allowed = schema.get("additionalProperties", True)
    listed = said.get("enum", [said["const"]] if "const" in said else None)
    if not said:
        return rest
    if len(said) == 1 and isinstance(listed, list):
        properties = {name: allowed for name in listed if isinstance(name, str)}
        return {**rest, "properties": properties, "additionalProperties": False}
    if len(said) == 1 and isinstance(said.get("pattern"), str):
        pattern = {said["pattern"]: allowed}
        return {**rest, "patternProperties": pattern, "additionalProperties": False}
    return schema


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    if lost := lost_number(schema):
        raise ValueError(_rounded(*lost))
    return _without_nothing(schema)


def _rounded(keyword: str, number: int) -> str:
    return f"{keyword} has {number}, which is no number of FP64 and would be rounded; take a text"


def _lenient(schema: dict[str, Any]) -> dict[str, Any]:
    schema = _without_nothing(schema)
    while lost := lost_number(schema):
        schema = {key: value for key, value in schema.items() if key != lost[0]}
    pattern = schema.get("pattern")
    if not isinstance(pattern, str):
        return schema
    kept = _without_look_around(pattern)
    if _NO_REGULAR_LANGUAGE.search(kept):
        return {key: value for key, value in schema.items() if key != "pattern"}
    return {**schema, "pattern": kept}


def _without_look_around(pattern: str) -> str:
    """Return a pattern without its conditions on what stands before or behind."""
    kept, at = [], 0
    while at < len(pattern):
        part = _PART.match(pattern, at)
        end = part.end() if part else at + 1
        if _LOOK_AROUND.match(pattern, at):
            end = _end_of_group(pattern, at)
            repeated = _REPEATED.match(pattern, end)
            end = repeated.end() if repeated else end
        else:
            kept.append(pattern[at:end])
        at = end
    return "".join(kept)


def _end_of_group(pattern: str, at: int) -> int:
    """Return the place behind the group that begins at a place; the end if it is not closed."""
    depth = 0
    for part in _PART.finditer(pattern, at):
        depth += {"(": 1, ")": -1}.get(part.group(), 0)
        if not depth:
            return part.end()
    return len(pattern)
