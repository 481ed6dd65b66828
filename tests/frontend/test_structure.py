"""Structures of answers, as bodies ask for them; test_text_body.py has the bodies."""

import pytest

from builders.guides import InvalidRequest, open_guides, parse_parameters
from builders.writer import VOCABULARY, write_tokenizer
from ge_openai.api_error import ApiError
from ge_openai.call_forms import LISTED, form_of
from ge_openai.schemas import Schema
from ge_openai.structure import (
    FREE,
    GUIDED,
    call_or_format,
    forced_name,
    format_alone,
    named_call,
)

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


def calls(tools, answer=None, form=LISTED, *, several=True):
    return call_or_format(form, tools, answer, {}, several=several)


def named(**schemas):
    return [{"function": {"name": name, "parameters": each}} for name, each in schemas.items()]


def closed(**properties):
    return {"type": "object", "properties": properties, "required": [*properties]}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    return write_tokenizer(folder), open_guides(folder / "tokenizer.json", VOCABULARY, (0,))


@pytest.fixture(scope="module")
def begins(tokenizer):
    """Return what tells whether an answer that keeps to a structure can begin so, or be so."""
    encoded, compile_structure = tokenizer

    def check(held, text, *, whole=False):
        guide = compile_structure(parse_parameters(held.sampling).structure).fork()
        ids = [token for letter in text for token in encoded.encode(letter).ids]
        ids += [0] if whole else []
        return guide.fitting(ids) == len(ids)

    return check


@pytest.fixture(scope="module")
def told(tokenizer):
    """Return what tells the error of a structure that cannot be compiled, as its client gets it."""

    def tell(held):
        with pytest.raises(InvalidRequest) as caught:
            tokenizer[1](parse_parameters(held.sampling).structure)
        return held.renamed(ApiError(str(caught.value)))

    return tell


def test_names_are_the_engines():
    """Each of them is a parameter that it knows."""
    written = {"guided_json": {}, "guided_choice": ["a"], "structured_outputs": {"regex": "a"}}
    kinds = {"structured_outputs": "guided_regex"}
    for name in GUIDED:
        structure = parse_parameters({name: written.get(name, "a")}).structure
        assert structure.kind.value == kinds.get(name, name)


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
    with pytest.raises(ApiError) as caught:
        forced_name(choice, [*TOOLS, tool])
    assert caught.value.param == "tools"


def test_calls_are_one_or_several(begins):
    """As the client allows it, and at least one."""
    time = '{"name": "time", "arguments": {}}'
    for several in (True, False):
        held = calls(TOOLS, several=several)
        assert not begins(held, "[]")
        assert begins(held, f"[{time}]", whole=True)
        assert begins(held, f"[{time}, {time}]", whole=True) is several
        assert not begins(held, '[{"name": "day"')


def test_an_answer_is_a_call_or_in_its_format(begins):
    """Whichever the model begins; nothing else."""
    answer = Schema(field="response_format", given={"enum": [{"t": 1}]})
    for template, opened, closing in (
        ("<tool_call>", "<tool_call>", "</tool_call>"),
        ('"parameters": dictionary of', "", ""),
        ("[TOOL_CALLS]", "[TOOL_CALLS] [", "]"),
        ("<|tool_call|>", "<|tool_call|>[", "]"),
    ):
        form = form_of(template)
        held = calls(TOOLS, answer, form)
        key = "parameters" if not opened else "arguments"
        call = f'{opened}{{"name": "time", "{key}": {{}}}}{closing}'
        assert begins(held, call, whole=True)
        assert begins(held, '{"t": 1}', whole=True)
        assert not begins(held, '{"t": 2')
        assert not begins(held, "so")
        assert not begins(calls(TOOLS, None, form), '{"t"')


def test_without_a_tool_that_can_be_called_there_is_the_format_alone(begins):
    """As one of a server's own, which has no name here."""
    answer = Schema(field="response_format", given={"enum": [1]})
    held = calls([{"type": "web_search"}], answer)
    assert begins(held, "1", whole=True)
    assert not begins(held, "[")


@pytest.mark.parametrize(
    ("name", "arguments", "held_to"),
    [
        ("greet", '{"who":{"name":"Ada","friends":[{"name":"Ada"}]}}', True),
        ("greet", '{"who":{"name":"Ada","friends":[{"name":"Bob"', False),
        ("greet", '{"who":7', False),
        ("count", '{"who":7,"of":{"who":8,"of":{"who":9}}}', True),
        ("count", '{"who":7,"of":{"who":{', False),
        ("a/b~c %", '{"who":7}', True),
        ('NAME ARGUMENTS \\"é\\\\', '{"who":7}', True),
    ],
)
def test_references_of_tools_lead_into_their_own_schema(begins, name, arguments, held_to):
    """Also recursive ones, and of tools whose definitions have the same name."""
    strange = {"a/b~c %": COUNT, 'NAME ARGUMENTS "é\\': COUNT}
    held = calls(named(greet=GREET, count=COUNT, **strange))
    assert begins(held, f'[{{"name":"{name}","arguments":{arguments}') is held_to


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
    tools = named(f=schema)
    for held, before in ((named_call("f", tools), ""), (calls(tools), '[{"name":"f","arguments":')):
        assert begins(held, before + '{"a":1}')
        assert schema is True or not begins(held, before + '{"a":"')
        assert not any(begins(held, before + other) for other in ("7", '"', "null", "["))


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
def test_schemas_keep_their_roots(begins, schema):
    """Whatever they call their parts."""
    assert begins(calls(named(f=schema)), '[{"name":"f","arguments":{')


PATHS = closed(a={"type": "string", "format": "path", "maxLength": 3})


def test_what_a_strict_schema_is_refused_for_is_told_by_its_field(told):
    """The API's, not the engine's; of several tools the one that is wrong."""
    tools = named(f=closed(), g=closed(), h=PATHS)
    tools[2]["function"]["strict"] = True
    place = "tools[2].function.parameters"
    answer = Schema(field="response_format.json_schema.schema", given=PATHS, strict=True)
    for held, param in (
        (calls(tools), place),
        (calls(tools, answer.__class__(field="x", given={})), place),
        (named_call("h", tools), place),
        (calls(tools[:2], answer), answer.field),
        (format_alone(answer), answer.field),
    ):
        error = told(held)
        assert str(error) == f"{param} cannot be compiled: Unknown format: path"
        assert error.param == param


def test_a_schema_that_is_not_strict_is_kept_to_as_far_as_it_can_be(begins):
    """One beside a strict one, too."""
    tools = named(f=PATHS, g=closed())
    tools[1]["function"]["strict"] = True
    for held, before in ((calls(tools), '[{"name":"f","arguments":'), (named_call("f", tools), "")):
        assert begins(held, before + '{"a": "b/c"}')
        assert not begins(held, before + '{"a": "b/cd')


def test_other_errors_are_told_as_they_are():
    """What the engine says of something else, and of an answer that is free."""
    error = ApiError("temperature is 9", param="temperature")
    assert named_call("time", TOOLS).renamed(error) is error
    assert FREE.renamed(error) is error
    long = ApiError("guided_grammar is of 70000 letters; it has to be a text of 1 to 65536")
    assert calls(TOOLS).renamed(long).param == "tools"
