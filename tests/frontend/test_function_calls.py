"""Calls of tools with a parameter each: read by the tools' schemas, and held to them."""

import json

import pytest

from builders.guides import Structure, StructureKind, open_guides
from builders.writer import write_tokenizer
from ge_openai.call_forms import form_of
from ge_openai.schemas import tool_schemas
from ge_openai.structure import call_or_format

FORM = form_of("<tool_call>\n<function=name>")
NODE = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
PARAMETERS = {
    "type": "object",
    "$defs": {"Node": NODE},
    "properties": {
        "text": {"type": "string"},
        "kind": {"enum": ["a", "b"]},
        "any": {},
        "count": {"type": "integer"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "node": {"$ref": "#/$defs/Node"},
    },
    "required": ["text", "node"],
}
TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "none"}},
]


def written(name, **values):
    parameters = (f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{''.join(parameters)}</function>\n</tool_call>"


def read(text, size=1000):
    reader = FORM.reader(tool_schemas(TOOLS))
    parsed = [reader.take(text[at : at + size]) for at in range(0, len(text), size)]
    parsed.append(reader.end())
    calls = [(call.name, json.loads(call.arguments)) for each in parsed for call in each.calls]
    return "".join(each.text for each in parsed), calls


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    ("values", "arguments"),
    [
        ({"text": "1"}, {"text": "1"}),
        ({"text": "a\n\nb </tool_call> é"}, {"text": "a\n\nb </tool_call> é"}),
        ({"text": ""}, {"text": ""}),
        ({"text": "a </parameter> b", "count": "3"}, {"text": "a </parameter> b", "count": 3}),
        (
            {"text": "<parameter=count>\n3\n</parameter>", "any": "</function>"},
            {"text": "<parameter=count>\n3\n</parameter>", "any": "</function>"},
        ),
        ({"kind": "a", "any": "2"}, {"kind": "a", "any": "2"}),
        ({"count": "3", "maybe": "null"}, {"count": 3, "maybe": None}),
        ({"maybe": "word", "count": "three"}, {"maybe": "word", "count": "three"}),
        ({"node": '{"x": 1}', "other": "4"}, {"node": {"x": 1}, "other": "4"}),
    ],
)
def test_values_are_texts_or_json_by_the_schema(values, arguments, size):
    """Piece by piece, too; what should be JSON and is none stays a text."""
    assert read(written("f", **values), size) == ("", [("f", arguments)])


def test_several_calls_and_text_before_them():
    """A tool that is not known has texts."""
    parsed = "Well. " + written("none") + "\n" + written("g", x="1")
    assert read(parsed) == ("Well.", [("none", {}), ("g", {"x": "1"})])


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n<function=f>\nwords\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=text>\nx\n</function>\n</tool_call>",
        "<tool_call>\n{}\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=city",
    ],
)
def test_what_is_no_call_stays_text(text):
    """Nothing of it is lost."""
    assert read(text) == (text, [])


@pytest.fixture(scope="module")
def fits(tmp_path_factory):
    """Return whether a text keeps to the grammar of these tools."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = write_tokenizer(folder)
    held = call_or_format(FORM, TOOLS, None, {}, several=True)
    text = held.sampling["guided_grammar"]
    made = open_guides(folder / "tokenizer.json", tokenizer.get_vocab_size(), (0,))
    guide = made(Structure(StructureKind.GRAMMAR, text))

    def fit(text):
        ids = [*tokenizer.encode(text).ids, 0]
        return guide.fork().fitting(ids) == len(ids)

    return fit


def test_an_answer_is_held_to_the_schemas(fits):
    """What is needed is there, in the schema's order; what is no text is JSON of its schema."""
    node = '{"x": 1}'
    assert fits(written("none"))
    assert fits(written("f", text="a\nb <x>", node=node))
    assert fits(written("f", text="a </parameter> b", node=node))
    assert fits(written("f", text="", kind="b", any="z", count="3", maybe="null", node=node))
    assert fits(written("none") + "\n" + written("none"))
    assert not fits(written("f", text="a"))
    assert not fits(written("f", node=node, text="a"))
    assert not fits(written("f", text="a", node="{}"))
    assert not fits(written("f", text="a", kind="c", node=node))
    assert not fits(written("f", text="a", count="x", node=node))
    assert not fits(written("none", x="1"))
    assert not fits(written("g"))


def test_of_arguments_that_are_not_listed_any_may_stand():
    """Their values are texts."""
    free = {"type": "object", "additionalProperties": True}
    (schema,) = tool_schemas(
        [{"type": "function", "function": {"name": "f", "parameters": free}}]
    ).values()
    lines, values = FORM.argument_rules([schema])
    assert 'arguments_0: ("<parameter=" /[^>\\n]+/ ">\\n" text)*' in lines
    assert values == {}
