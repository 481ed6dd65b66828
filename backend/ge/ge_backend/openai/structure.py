"""What an answer has to be: `response_format` and forced tool calls, as the engine's structures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ge_backend.openai.api_error import ApiError

__all__ = ["GUIDED", "forced_calls", "forced_name", "read_response_format"]

# The engine's own parameters; one of them at most.
GUIDED = (
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    "structured_outputs",
)
_ANY_OBJECT = {"type": "object"}
# Of a JSON schema: keywords that name schemas, and those that hold values and no schemas.
# Source: JSON Schema, draft 2020-12; `definitions` is what `$defs` was called before.
_NAMED = {"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"}
_VALUES = {"const", "default", "enum", "examples"}


def read_response_format(given: Any) -> dict[str, Any]:
    """Return the sampling parameters that hold an answer to its format.

    `strict` changes nothing: every schema is kept to, or refused.

    Raises:
        ApiError: it is none that OpenAI has.
    """
    kind = given.get("type") if isinstance(given, dict) else None
    if given is None or kind == "text":
        return {}
    if kind == "json_object":
        return {"guided_json": _ANY_OBJECT}
    described = given.get("json_schema") if kind == "json_schema" else None
    if not isinstance(described, dict) or not isinstance(described.get("schema"), dict):
        raise ApiError(
            "response_format has to be {'type': 'text'}, {'type': 'json_object'}, or {'type': "
            f"'json_schema', 'json_schema': {{'name': …, 'schema': {{…}}}}}}, got {given!r:.80}",
            param="response_format",
        )
    return {"guided_json": described["schema"]}


def forced_name(choice: Any, tools: Sequence[dict[str, Any]]) -> str | None:
    """Return the tool that has to be called: "" is any of them; None: none has to.

    Raises:
        ApiError: the choice is none that OpenAI has, or names a tool that is not among them.
    """
    if choice in (None, "auto", "none"):
        return None
    name: Any = ""
    if choice != "required":
        function = choice.get("function") if isinstance(choice, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not name:
            raise ApiError(
                "tool_choice has to be 'auto', 'none', 'required' or {'type': 'function', "
                f"'function': {{'name': …}}}}, got {choice!r:.80}",
                param="tool_choice",
            )
    if name not in {"", *_schemas(tools)} or not tools:
        known = ", ".join(_schemas(tools)) or "none"
        raise ApiError(
            f"tool_choice asks for {name or 'a tool'}; the request's tools are: {known}",
            param="tool_choice",
        )
    return str(name)


def forced_calls(name: str, tools: Sequence[dict[str, Any]], *, several: bool) -> dict[str, Any]:
    """Return the sampling parameters that make an answer the call of a tool.

    Args:
        name: the answer is its arguments; "": the answer is a list of names and arguments.
        tools: as the client sent them.
        several: that list may be longer than one.

    Raises:
        ApiError: a tool's schema is nested too deeply, or of something that is no object.
    """
    schemas = {each: _of_an_object(each, schema) for each, schema in _schemas(tools).items()}
    if name:
        return {"guided_json": schemas[name] | _ANY_OBJECT}
    # Numbers stand for the tools: a reference cannot hold every name as it is.
    places = {each: f"#/$defs/{number}" for number, each in enumerate(schemas)}
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": each}, "arguments": {"$ref": place, **_ANY_OBJECT}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for each, place in places.items()
    ]
    try:
        moved = {str(n): _moved(schemas[each], at) for n, (each, at) in enumerate(places.items())}
    except RecursionError as error:
        raise ApiError("a tool's parameters are nested too deeply", param="tools") from error
    most = {} if several else {"maxItems": 1}
    listed = {"type": "array", "items": {"anyOf": calls}, "minItems": 1, **most, "$defs": moved}
    return {"guided_json": listed}


def _of_an_object(name: str, schema: Any) -> dict[str, Any]:
    """Return a tool's schema, which has to allow objects; it need not say so."""
    if schema is True:
        return _ANY_OBJECT
    kinds = schema.get("type", "object") if isinstance(schema, dict) else ()
    if "object" not in (kinds if isinstance(kinds, (list, tuple)) else [kinds]):
        raise ApiError(
            f"the parameters of {name!r} have to be a JSON schema of an object, got {schema!r:.80}",
            param="tools",
        )
    return dict(schema)


def _moved(schema: Any, place: str) -> Any:
    """Return a schema whose references lead where they did once its root stands at this place.

    What has an `$id` is a root of its own: references in it stay.
    """
    if isinstance(schema, list):
        return [_moved(each, place) for each in schema]
    if not isinstance(schema, dict) or isinstance(schema.get("$id"), str):
        return schema
    return {key: _moved_keyword(key, value, place) for key, value in schema.items()}


def _moved_keyword(key: str, value: Any, place: str) -> Any:
    if key in _VALUES:
        return value
    if key in _NAMED and isinstance(value, dict):
        return {name: _moved(each, place) for name, each in value.items()}
    if key == "$ref" and isinstance(value, str) and f"{value}/".startswith("#/"):
        return place + value.removeprefix("#")
    return _moved(value, place)


def _schemas(tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the schema of each tool's arguments, by name."""
    functions: list[Any] = [tool.get("function") for tool in tools]
    if not all(isinstance(each, dict) and isinstance(each.get("name"), str) for each in functions):
        raise ApiError(
            "tools has to be a list of {'type': 'function', 'function': {'name': …}}",
            param="tools",
        )
    return {each["name"]: each.get("parameters") or _ANY_OBJECT for each in functions}
