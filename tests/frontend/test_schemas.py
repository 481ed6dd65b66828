"""JSON schemas of a request."""

import pytest

from ge_openai.api_error import ApiError
from ge_openai.schemas import Schema, read_response_format, tool_schemas

A = {"type": "object", "properties": {"a": {"type": "integer"}}}
CLOSED = {"additionalProperties": False}
EMPTY = {"type": "object", "properties": {}, **CLOSED}


def tool(**function):
    return {"type": "function", "function": {"name": "f", **function}}


def parameters(schema):
    return tool_schemas([tool(parameters=schema)])["f"].given


def test_a_format_is_a_schema():
    """OpenAI's two forms, and a schema beside the older one's name, as instructor sends it."""
    assert read_response_format(None) is None
    assert read_response_format({"type": "text"}) is None
    assert read_response_format({"type": "json_object"}).written == {"type": "object"}
    beside = read_response_format({"type": "json_object", "schema": A})
    assert (beside.given, beside.field) == ({**A, **CLOSED}, "response_format.schema")
    for strict in (True, False, None):
        described = {"name": "x", "schema": A, "strict": strict}
        read = read_response_format({"type": "json_schema", "json_schema": described})
        assert (read.given, read.strict) == ({**A, **CLOSED}, strict is True)
        assert ("x-guidance" in read.written) is not read.strict


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        (None, EMPTY),
        ({}, EMPTY),
        ({"type": "object"}, EMPTY),
        ({"type": "object", "properties": {}}, EMPTY),
        ({"title": "x", "properties": {}, "type": "object", "required": []}, None),
        ({"type": "object", "additionalProperties": True}, {"additionalProperties": True}),
        (True, {"type": "object"}),
    ],
)
def test_a_tool_without_parameters_has_no_arguments(schema, arguments):
    """As OpenAI has it; what allows any says so."""
    found = parameters(schema)
    assert found == (arguments if arguments is None else {"type": "object", **arguments}) or (
        arguments is None and found == {**schema, **CLOSED}
    )


@pytest.mark.parametrize(
    "schema", [{"type": "string"}, {"type": ["array", "null"]}, [1], "{}", False]
)
def test_arguments_that_are_no_object_are_refused(schema):
    """Nothing could be a call of the tool; its place among the tools is told."""
    with pytest.raises(ApiError, match="has to be a JSON schema of an object") as caught:
        tool_schemas([tool(), tool(parameters=schema)])
    assert caught.value.param == "tools[1].function.parameters"


@pytest.mark.parametrize(
    "schema", [{"type": "json_object", "schema": 7}, {"type": "json_schema", "schema": {}}]
)
def test_a_format_without_a_schema_is_refused(schema):
    """With the field."""
    with pytest.raises(ApiError) as caught:
        read_response_format(schema)
    assert caught.value.param.startswith("response_format")


def test_objects_are_closed_however_deep_they_are():
    """A model may well invent properties for ever."""
    schema = {
        "properties": {"list": {"items": {"$ref": "#/$defs/A"}}, "any": {"anyOf": [A, {}]}},
        "$defs": {"A": A},
    }
    found = parameters(schema)
    assert found["additionalProperties"] is False
    assert found["$defs"]["A"] == found["properties"]["any"]["anyOf"][0] == {**A, **CLOSED}


@pytest.mark.parametrize(
    "schema",
    [
        {**A, "additionalProperties": {"type": "string"}},
        {**A, "patternProperties": {"^x": True}},
        {**A, "minProperties": 1},
        {**A, "required": ["b"]},
        {"allOf": [A, {"properties": {"b": {}}}]},
        {"allOf": [{"$ref": "#/$defs/A"}, {"properties": {"b": {}}}], "$defs": {"A": A}},
        {**A, "anyOf": [{"required": ["a"]}, {"properties": {"b": {}}}]},
        {**A, "$ref": "#/$defs/A", "$defs": {"A": A}},
    ],
)
def test_objects_that_may_have_other_properties_stay_open(schema):
    """By their own words, or because schemas are joined that know them."""
    assert parameters(schema) == {"type": "object", **schema}


@pytest.mark.parametrize("needed", [True, None, "a", [7], [{}], [["a"]]])
@pytest.mark.parametrize("listed", [{"a": {}}, [], 7, None])
def test_what_is_no_schema_is_left_to_the_compiler(needed, listed):
    """It says what is wrong with it."""
    given = {"properties": listed, "required": needed, "allOf": 7, "x": 1}
    assert parameters(given).keys() - {"additionalProperties"} == {*given, "type"}


def test_a_schema_that_is_nested_too_deeply_is_refused():
    """As JSON that is."""
    deep = {}
    for _ in range(5_000):
        deep = {"not": deep}
    with pytest.raises(ApiError, match="too deeply") as caught:
        parameters(deep)
    assert caught.value.param == "tools[0].function.parameters"


def test_only_schemas_are_closed():
    """Neither values, nor names of properties that are called like a keyword."""
    values = {"const": A, "enum": [A], "default": A, "examples": [A], "x-guidance": A}
    found = parameters({"properties": {"const": A, "properties": values}})
    assert found["properties"] == {"const": {**A, **CLOSED}, "properties": values}


@pytest.mark.parametrize("own", [{}, {"x-guidance": {"lenient": False, "a": 1}}, {"x-guidance": 7}])
def test_the_clients_options_go_before_ours(own):
    """Where they are none, ours stand in their place; a strict schema is as it was sent."""
    given = {"type": "object", **own}
    theirs = own.get("x-guidance") if isinstance(own.get("x-guidance"), dict) else {}
    written = Schema(field="f", given=given).written
    assert written == {"type": "object", "x-guidance": {"lenient": True, **theirs}}
    assert Schema(field="f", given=given, strict=True).written == given


def test_tools_without_names_have_no_schema():
    """They are the template's alone."""
    assert tool_schemas([{"type": "web_search"}, {"function": {"name": 7}}]) == {}
