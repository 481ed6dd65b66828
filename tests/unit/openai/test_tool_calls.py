"""Calls are told from text, whole or in pieces."""

import json

import pytest

from ge_backend.openai.tool_calls import (
    BareCalls,
    ListedCalls,
    NamedCall,
    Said,
    TaggedCalls,
    ToolCall,
    reader_for,
)

F = ToolCall("f", '{"a": 1}')
G = ToolCall("g", '{"b": "é"}')
TAG_F = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TAG_G = '<tool_call>{"arguments": {"b": "é"}, "name": "g"}</tool_call>'
BARE_F, BARE_G = '{"name": "f", "parameters": {"a": 1}}', '{"name": "g", "parameters": {"b": "é"}}'


def read(make, text, size):
    """Return what is read of a text that comes in pieces of a size."""
    reader = make()
    said = [reader.take(text[at : at + size]) for at in range(0, len(text), size)]
    said.append(reader.end())
    return Said(
        "".join(each.text for each in said), tuple(call for each in said for call in each.calls)
    )


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    ("make", "text", "said"),
    [
        (TaggedCalls, "a < b", Said("a < b")),
        (TaggedCalls, "a <tool", Said("a <tool")),
        (TaggedCalls, TAG_F, Said("", (F,))),
        (TaggedCalls, f"let me see\n{TAG_F}\n{TAG_G}\n", Said("let me see", (F, G))),
        (TaggedCalls, f"{TAG_F} and {TAG_G}", Said(" and", (F, G))),
        (TaggedCalls, TAG_F.removesuffix("</tool_call>"), Said("", (F,))),
        (TaggedCalls, "<tool_call>no</tool_call> x", Said("<tool_call>no</tool_call> x")),
        (TaggedCalls, '<tool_call>{"name": "f"', Said('<tool_call>{"name": "f"')),
        (BareCalls, "hello {", Said("hello {")),
        (BareCalls, BARE_F, Said("", (F,))),
        (BareCalls, f" {BARE_F}; {BARE_G}", Said("", (F, G))),
        (BareCalls, BARE_F + " yes", Said(BARE_F + " yes")),
        (BareCalls, '{"a": 1}', Said('{"a": 1}')),
        (BareCalls, "{", Said("{")),
        (BareCalls, "", Said()),
        (ListedCalls, '[{"name": "f", "arguments": {"a": 1}}]', Said("", (F,))),
        (ListedCalls, '[{"name": "f", "arg', Said('[{"name": "f", "arg')),
        (
            ListedCalls,
            '[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": 7}]',
            Said('[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": 7}]'),
        ),
        (lambda: NamedCall("f"), '{"a": 1}', Said("", (F,))),
    ],
)
def test_calls_are_told_from_text(make, text, said, size):
    """However the text is divided; what is no call stays as it was written."""
    assert read(make, text, size) == said


def test_text_is_told_at_once():
    """Only what may be the beginning of a call is held back."""
    tagged, bare = TaggedCalls(), BareCalls()
    assert [tagged.take(piece).text for piece in ("hello", " <", "b", " ")] == [
        "hello",
        "",
        " <b",
        "",
    ]
    assert [bare.take(piece).text for piece in (" ", "hello", "{")] == ["", " hello", "{"]


@pytest.mark.parametrize(
    ("template", "reader"),
    [
        ("{{ x }}<tool_call>{{ tool_call | tojson }}</tool_call>", TaggedCalls),
        ("<tool_call>\n<function=f>", None),
        (
            'Respond in the format {"name": function name, "parameters": dictionary of',
            BareCalls,
        ),
        ("{{ tools | tojson }}", None),
    ],
)
def test_the_template_says_how_its_model_calls(template, reader):
    """Where it is not known, text stays text."""
    assert reader_for(template) is reader


def test_arguments_are_json():
    """As OpenAI's clients read them."""
    assert json.loads(read(TaggedCalls, TAG_G, 3).calls[0].arguments) == {"b": "é"}


@pytest.mark.parametrize("make", [TaggedCalls, ListedCalls, BareCalls])
def test_half_a_pair_of_surrogates_stays_as_the_model_wrote_it(make):
    """An answer cannot hold it but as an escape; a name of a tool it is in none."""
    call = '{"name": "f", "arguments": {"b": "\\ud800é"}}'
    around = {TaggedCalls: "<tool_call>%s</tool_call>", ListedCalls: "[%s]", BareCalls: "%s"}[make]
    (called,) = read(make, around % call, 3).calls
    assert called.arguments.isascii()
    assert json.loads(called.arguments) == {"b": "\ud800é"}
    assert read(make, around % call.replace('"f"', '"\\ud800"'), 3).calls == ()
