"""JSON schemas of a request: that of its `response_format`, and those of its tools' arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ge_openai.api_error import ApiError

__all__ = ["Schema", "read_response_format", "tool_schemas"]

# The compiler's own options stand in the schema; a client may set them, too.
# Source: llguidance 1.9.1, `_lib.pyi`, `JsonCompileOptions`.
_OPTIONS = "x-guidance"
# Keywords that name schemas, and those that hold values and no schemas.
# Source: JSON Schema, draft 2020-12; `definitions` is what `$defs` was called before.
_NAMED = {"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"}
_VALUES = {"const", "default", "enum", "examples", "required", _OPTIONS}
_ANY_OBJECT = {"type": "object"}
_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
# Of a schema that says no more of its object than that it is one.
_NO_MORE = {"type", "title", "description", "$schema", "$id", "$comment", "required"}
# They join objects' schemas, so that none of them knows all properties; or they allow others.
_JOINS = {"$ref", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"}
_OTHERS = {"additionalProperties", "patternProperties", "unevaluatedProperties", "minProperties"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """A schema that an answer, or a part of it, is held to.

    Attributes:
        field: where the request has it.
        given: as the client sent it, but for objects, which are closed.
        strict: it is kept to in all that it says, or refused; else what cannot be kept to is left
            out.
    """

    field: str
    given: Mapping[str, Any]
    strict: bool = False

    @property
    def written(self) -> dict[str, Any]:
        """As the engine takes it."""
        own = self.given.get(_OPTIONS)
        options = {"lenient": True, **(own if isinstance(own, dict) else {})}
        return dict(self.given) if self.strict else {**self.given, _OPTIONS: options}


def read_response_format(given: Any) -> Schema | None:
    """Return the schema that an answer has to keep to; None: to none.

    Raises:
        ApiError: it is none that OpenAI has.
    """
    kind = given.get("type") if isinstance(given, dict) else None
    if given is None or kind == "text":
        return None
    if kind == "json_object":
        schema = given.get("schema")
        if schema is None:
            return Schema(field="response_format", given=_ANY_OBJECT, strict=True)
        return _schema("response_format.schema", schema)
    described = given.get("json_schema") if kind == "json_schema" else None
    if not isinstance(described, dict) or not isinstance(described.get("schema"), dict):
        raise ApiError(
            "response_format has to be {'type': 'text'}, {'type': 'json_object'}, or {'type': "
            f"'json_schema', 'json_schema': {{'name': …, 'schema': {{…}}}}}}, got {given!r:.80}",
            param="response_format",
        )
    strict = described.get("strict") is True
    return _schema("response_format.json_schema.schema", described["schema"], strict=strict)


def tool_schemas(tools: Sequence[dict[str, Any]]) -> dict[str, Schema]:
    """Return by name the schemas of tools' arguments, which are objects; tools without names not.

    A tool without parameters has no arguments.

    Raises:
        ApiError: a schema allows no object.
    """
    found = {}
    for number, tool in enumerate(tools):
        function = tool.get("function")
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            field = f"tools[{number}].function.parameters"
            strict = function.get("strict") is True
            schema = _of_an_object(field, function.get("parameters"))
            found[function["name"]] = _schema(field, schema, strict=strict)
    return found


def _schema(field: str, given: Any, *, strict: bool = False) -> Schema:
    if not isinstance(given, dict):
        raise ApiError(f"{field} has to be a JSON schema, got {given!r:.80}", param=field)
    try:
        return Schema(field=field, given=_closed(given), strict=strict)
    except RecursionError as error:
        raise ApiError(f"{field} is nested too deeply", param=field) from error


def _of_an_object(field: str, schema: Any) -> dict[str, Any]:
    """Return a tool's schema, which has to allow objects; it need not say so."""
    if schema is True:
        return _ANY_OBJECT
    if schema is None:
        return _NO_ARGUMENTS
    kinds = schema.get("type", "object") if isinstance(schema, dict) else ()
    if "object" not in (kinds if isinstance(kinds, (list, tuple)) else [kinds]):
        raise ApiError(
            f"{field} has to be a JSON schema of an object, got {schema!r:.80}", param=field
        )
    if schema.keys() <= _NO_MORE and not schema.get("required"):
        return _NO_ARGUMENTS
    return {**schema, **_ANY_OBJECT}


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose objects have no properties but those that it lists.

    A model may well invent others for ever. Where schemas of objects are joined none is closed, as
    each may list what the others do not.
    """
    joined: list[bool] = []

    def look(each: dict[str, Any]) -> dict[str, Any]:
        several = isinstance(each.get("allOf"), list) and len(each["allOf"]) > 1
        joined.append(several or ("properties" in each and not _JOINS.isdisjoint(each)))
        return each

    _mapped(schema, look)
    made: dict[str, Any] = schema if any(joined) else _mapped(schema, _without_others)
    return made


def _mapped(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return a schema with every object in it that is one changed, the innermost first."""
    if isinstance(schema, list):
        return [_mapped(each, change) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, dict):
            made[key] = {name: _mapped(each, change) for name, each in value.items()}
        elif key not in _VALUES:
            made[key] = _mapped(value, change)
    return change(made)


def _without_others(schema: dict[str, Any]) -> dict[str, Any]:
    listed, needed = schema.get("properties"), schema.get("required")
    if not isinstance(listed, dict) or not _OTHERS.isdisjoint(schema):
        return schema
    names = list(listed)
    if isinstance(needed, list) and any(name not in names for name in needed):
        return schema
    return {**schema, "additionalProperties": False}
