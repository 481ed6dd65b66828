"""Structures of answers, as bodies ask for them; test_text_body.py has the bodies."""

import pytest

from builders.writer import VOCABULARY, write_tokenizer
from ge_backend.device.preprocess.guide import open_guides
from ge_backend.generate.parameters import parse_parameters
from ge_backend.openai.api_error import ApiError
from ge_backend.openai.structure import GUIDED, forced_calls, forced_name, read_response_format

TOOLS = [
    {"function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}},
    {"function": {"name": "time"}},
]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"const": "Ada"},
        "friends": {"type": "array", "items": {"$ref": "#/$defs/Person"}},
    },
    "required": ["name"],
    "additionalProperties": False,
}
# As pydantic writes nested models, in its order of names, and as older drafts call them.
GREET = {
    "type": "object",
    "properties": {"who": {"$ref": "#/$defs/Person"}},
    "required": ["who"],
    "additionalProperties": False,
    "$defs": {"Person": PERSON},
}
COUNT = {
    "type": "object",
    "properties": {"who": {"$ref": "#/definitions/Person"}, "of": {"$ref": "#"}},
    "required": ["who"],
    "additionalProperties": False,
    "definitions": {"Person": {"type": "integer"}},
}


@pytest.fixture
def begins(tmp_path):
    """Return what tells whether an answer that keeps to sampling parameters can begin so."""
    tokenizer = write_tokenizer(tmp_path)
    compile_structure = open_guides(tmp_path / "tokenizer.json", VOCABULARY, (0,))

    def check(sampling, text):
        guide = compile_structure(parse_parameters(sampling).structure).fork()
        ids = [token for letter in text for token in tokenizer.encode(letter).ids]
        return guide.fitting(ids) == len(ids)

    return check


def test_names_are_the_engines():
    """Each of them is a parameter that it knows."""
    written = {"guided_json": {}, "guided_choice": ["a"], "structured_outputs": {"regex": "a"}}
    kinds = {"structured_outputs": "guided_regex"}
    for name in GUIDED:
        structure = parse_parameters({name: written.get(name, "a")}).structure
        assert structure.kind.value == kinds.get(name, name)


@pytest.mark.parametrize(
    "sampling",
    [
        read_response_format({"type": "json_object"}),
        forced_calls("weather", TOOLS, several=True),
        forced_calls("time", TOOLS, several=True),
        forced_calls("", TOOLS, several=True),
        forced_calls("", TOOLS, several=False),
    ],
)
def test_all_of_them_compile(sampling, tmp_path):
    """What we make of a request is something that the engine can hold an answer to."""
    write_tokenizer(tmp_path)
    compile_structure = open_guides(tmp_path / "tokenizer.json", VOCABULARY, (0,))
    assert not compile_structure(parse_parameters(sampling).structure).complete


def test_a_choice_is_none_any_or_one():
    """Which of the tools has to be called."""
    assert [forced_name(choice, TOOLS) for choice in ("auto", "required")] == [None, ""]
    assert forced_name({"function": {"name": "time"}}, TOOLS) == "time"


@pytest.mark.parametrize(
    "tool", [{}, {"function": []}, {"function": {}}, {"function": {"name": 5}}]
)
@pytest.mark.parametrize("choice", ["required", {"function": {"name": "time"}}])
def test_a_call_of_tools_without_names_is_refused(choice, tool):
    """With the field that is wrong."""
    with pytest.raises(ApiError) as told:
        forced_name(choice, [*TOOLS, tool])
    assert told.value.param == "tools"


def named(**schemas):
    return [{"function": {"name": name, "parameters": each}} for name, each in schemas.items()]


@pytest.mark.parametrize(
    ("name", "arguments", "held_to"),
    [
        ("greet", '{"who":{"name":"Ada","friends":[{"name":"Ada"}]}}', True),
        ("greet", '{"who":{"name":"Ada","friends":[{"name":"Bob"', False),
        ("greet", '{"who":7', False),
        ("count", '{"who":7,"of":{"who":8,"of":{"who":9}}}', True),
        ("count", '{"who":7,"of":{"who":{', False),
        ("a/b~c %", '{"who":7}', True),
    ],
)
def test_references_of_tools_lead_into_their_own_schema(begins, name, arguments, held_to):
    """Also recursive ones, and of tools whose definitions have the same name."""
    tools = named(greet=GREET, count=COUNT, **{"a/b~c %": COUNT})
    sampling = forced_calls("", tools, several=True)
    assert begins(sampling, f'[{{"name":"{name}","arguments":{arguments}') is held_to


INTEGER_A = {"properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    "schema",
    [
        INTEGER_A,
        INTEGER_A | {"type": ["object", "null"]},
        {"anyOf": [INTEGER_A, {"type": "string"}]},
        {"allOf": [INTEGER_A]},
        {"$ref": "#/$defs/A", "$defs": {"A": INTEGER_A}},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "$ref": "#/definitions/A",
            "definitions": {"A": INTEGER_A},
        },
        {"enum": [{"a": 1}, "x", None]},
        INTEGER_A | {"$id": "http://a/b"},
        True,
    ],
)
def test_arguments_are_an_object_whatever_else_the_schema_allows(begins, schema):
    """Most tools do not say so: any other JSON would be no call, which was asked for."""
    for name, before in (("f", ""), ("", '[{"name":"f","arguments":')):
        sampling = forced_calls(name, named(f=schema), several=True)
        assert begins(sampling, before + '{"a":1}')
        assert schema is True or not begins(sampling, before + '{"a":"')
        assert not any(begins(sampling, before + other) for other in ("7", '"', "null", "["))


@pytest.mark.parametrize("schema", [{"type": "string"}, {"type": ["array", "null"]}, [1], "{}"])
@pytest.mark.parametrize("name", ["", "f"])
def test_a_schema_of_no_object_is_refused(name, schema):
    """Nothing could be a call of its tool."""
    with pytest.raises(ApiError, match="parameters of 'f' have to be") as caught:
        forced_calls(name, named(f=schema), several=True)
    assert caught.value.param == "tools"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"$ref": {"type": "integer"}}},
        {"properties": {"const": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"type": "integer"}}},
        {"const": {"$ref": "#/a"}},
        {"anyOf": [{"$ref": "#/$defs/a"}, {"enum": ["#"]}], "$defs": {"a": True}},
        {
            "$id": "http://a/b",
            "$schema": "http://json-schema.org/draft-07/schema#",
            "properties": {"x": {"$ref": "#/definitions/a"}},
            "definitions": {"a": {"type": "integer"}},
        },
    ],
)
def test_only_references_are_rewritten(begins, schema):
    """Neither values, nor what is called like a keyword, nor what has a base of its own."""
    assert begins(forced_calls("", named(f=schema), several=True), '[{"name":"f","arguments":{')


@pytest.mark.parametrize("reference", ["http://a/b", "other.json#/$defs/a", "#anchor"])
def test_references_that_lead_elsewhere_stay(reference):
    """Only those that begin at the schema's root know where that was."""
    made = forced_calls("", named(f={"$ref": reference}), several=True)
    assert made["guided_json"]["$defs"] == {"0": {"$ref": reference}}


def test_values_that_look_like_references_stay(begins):
    """They are what the answer has to hold."""
    sampling = forced_calls("", named(f={"const": {"$ref": "#/a"}}), several=True)
    assert begins(sampling, '[{"name":"f","arguments":{"$ref":"#/a"}}]')


def test_parameters_that_are_nested_too_deeply_are_refused():
    """As JSON that is."""
    deep = {}
    for _ in range(5_000):
        deep = {"not": deep}
    with pytest.raises(ApiError, match="too deeply") as caught:
        forced_calls("", named(f=deep), several=True)
    assert caught.value.param == "tools"
