"""Calls are told from text, whole or in pieces."""

import json
import time
from functools import partial

import pytest

from ge_openai.call_json import ToolCall
from ge_openai.tool_calls import (
    BareCalls,
    ListedCalls,
    NamedCall,
    ParsedText,
    TaggedCalls,
    TrailingCalls,
)

F = ToolCall("f", '{"a": 1}')
G = ToolCall("g", '{"b": "é"}')
TAG_F = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TAG_G = '<tool_call>{"arguments": {"b": "é"}, "name": "g"}</tool_call>'
H = ToolCall("h", '{"a": "say </tool_call> \\"now\\" <tool_call>"}')
TAG_H = f'<tool_call>{{"name": "h", "arguments": {H.arguments}}}</tool_call>'
GRANITE, MISTRAL = partial(TrailingCalls, "<|tool_call|>"), partial(TrailingCalls, "[TOOL_CALLS]")
BARE_F, BARE_G = '{"name": "f", "parameters": {"a": 1}}', '{"name": "g", "parameters": {"b": "é"}}'


def read(make, text, size):
    """Return what is read of a text that comes in pieces of a size."""
    reader = make()
    parsed = [reader.take(text[at : at + size]) for at in range(0, len(text), size)]
    parsed.append(reader.end())
    return ParsedText(
        "".join(each.text for each in parsed), tuple(call for each in parsed for call in each.calls)
    )


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    ("make", "text", "parsed"),
    [
        (TaggedCalls, "a < b", ParsedText("a < b")),
        (TaggedCalls, "a <tool", ParsedText("a <tool")),
        (TaggedCalls, TAG_F, ParsedText("", (F,))),
        (TaggedCalls, f"let me see\n{TAG_F}\n{TAG_G}\n", ParsedText("let me see", (F, G))),
        (TaggedCalls, f"{TAG_F} and {TAG_G}", ParsedText(" and", (F, G))),
        (TaggedCalls, TAG_F.removesuffix("</tool_call>"), ParsedText("", (F,))),
        (TaggedCalls, "<tool_call>no</tool_call> x", ParsedText("<tool_call>no</tool_call> x")),
        (TaggedCalls, '<tool_call>{"name": "f"', ParsedText('<tool_call>{"name": "f"')),
        (
            TaggedCalls,
            "a \n <tool_call>no</tool_call>",
            ParsedText("a \n <tool_call>no</tool_call>"),
        ),
        (TaggedCalls, 'a <tool_call>{"name"', ParsedText('a <tool_call>{"name"')),
        (TaggedCalls, f"{TAG_F}\n<tool_call>7", ParsedText("\n<tool_call>7", (F,))),
        (TaggedCalls, f"a {TAG_H} \n{TAG_G}\n", ParsedText("a", (H, G))),
        (TaggedCalls, TAG_H.removesuffix("</tool_call>"), ParsedText("", (H,))),
        (TaggedCalls, '<tool_call>{"</tool_call> b', ParsedText('<tool_call>{"</tool_call> b')),
        (
            TaggedCalls,
            f'<tool_call>{{"</tool_call> {TAG_F}',
            ParsedText('<tool_call>{"</tool_call>', (F,)),
        ),
        (
            TaggedCalls,
            f'<tool_call>{{"</tool_call>{TAG_G}',
            ParsedText('<tool_call>{"</tool_call>', (G,)),
        ),
        (TaggedCalls, f"{TAG_F[:-12]} 7</tool_call>", ParsedText(f"{TAG_F[:-12]} 7</tool_call>")),
        (BareCalls, "hello {", ParsedText("hello {")),
        (BareCalls, BARE_F, ParsedText("", (F,))),
        (BareCalls, f" {BARE_F}; {BARE_G}", ParsedText("", (F, G))),
        (BareCalls, BARE_F + " yes", ParsedText(BARE_F + " yes")),
        (BareCalls, '{"a": 1}', ParsedText('{"a": 1}')),
        (BareCalls, "{", ParsedText("{")),
        (BareCalls, "", ParsedText()),
        (BareCalls, f"<|python_tag|>{BARE_F}", ParsedText("", (F,))),
        (BareCalls, " <|python", ParsedText(" <|python")),
        (BareCalls, "<|python_tag|>f()", ParsedText("<|python_tag|>f()")),
        (TaggedCalls, f"<tool_call>[{BARE_F}, {BARE_G}]</tool_call>", ParsedText("", (F, G))),
        (TaggedCalls, "<tool_call>[]</tool_call>", ParsedText("<tool_call>[]</tool_call>")),
        (GRANITE, f"so <|tool_call|>[{BARE_F}, {BARE_G}]", ParsedText("so", (F, G))),
        (GRANITE, f"<|tool_call|>{BARE_F}", ParsedText("", (F,))),
        (GRANITE, "a <|tool", ParsedText("a <|tool")),
        (GRANITE, "a <|tool_call|>[{", ParsedText("a <|tool_call|>[{")),
        (GRANITE, "<|tool_call|>[]", ParsedText("<|tool_call|>[]")),
        (MISTRAL, f"[TOOL_CALLS] [{BARE_F}]\n", ParsedText("", (F,))),
        (MISTRAL, f"a[TOOL_CALLS]f[ARGS]{F.arguments}", ParsedText("a", (F,))),
        (
            MISTRAL,
            f"[TOOL_CALLS]f[CALL_ID]abcdefgh1[ARGS]{F.arguments}[TOOL_CALLS]g{G.arguments}",
            ParsedText("", (F, G)),
        ),
        (MISTRAL, "[TOOL_CALLS]f and", ParsedText("[TOOL_CALLS]f and")),
        (MISTRAL, "[TOOL_CALLS][f]", ParsedText("[TOOL_CALLS][f]")),
        (ListedCalls, '[{"name": "f", "arguments": {"a": 1}}]', ParsedText("", (F,))),
        (ListedCalls, '[{"name": "f", "arg', ParsedText('[{"name": "f", "arg')),
        (
            ListedCalls,
            '[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": 7}]',
            ParsedText('[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": 7}]'),
        ),
        (lambda: NamedCall("f"), '{"a": 1}', ParsedText("", (F,))),
    ],
)
def test_calls_are_told_from_text(make, text, parsed, size):
    """However the text is divided; what is no call stays as it was written."""
    assert read(make, text, size) == parsed


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


def test_arguments_are_json():
    """As OpenAI's clients read them."""
    assert json.loads(read(TaggedCalls, TAG_G, 3).calls[0].arguments) == {"b": "é"}


AROUND = {
    TaggedCalls: "<tool_call>%s</tool_call>",
    GRANITE: "<|tool_call|>[%s]",
    MISTRAL: "[TOOL_CALLS] [%s]",
    ListedCalls: "[%s]",
    BareCalls: "%s",
}
MARKED = [TaggedCalls, GRANITE, MISTRAL]


@pytest.mark.parametrize("make", AROUND)
@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('"{\\"a\\": 1}"', '{"a": 1}'),
        ('" {\\n\\"a\\": 1} "', '{\n"a": 1}'),
        ('""', "{}"),
        ("null", "{}"),
    ],
)
def test_arguments_may_be_a_text_or_null(make, written, arguments):
    """Granite 4 writes JSON as a text; a tool without arguments may get none."""
    call = f'{{"name": "f", "arguments": {written}}}'
    assert read(make, AROUND[make] % call, 5) == ParsedText("", (ToolCall("f", arguments),))


@pytest.mark.parametrize("make", AROUND)
@pytest.mark.parametrize("written", ["[1]", "7", '"Paris"', '"[1]"', '"\\ud800{}"', "true"])
def test_arguments_of_another_kind_are_told_where_tags_say_that_it_is_a_call(make, written):
    """The client tells its model what is wrong with them; without tags it is an answer."""
    text = AROUND[make] % f'{{"name": "f", "arguments": {written}}}'
    told = ParsedText("", (ToolCall("f", written),)) if make in MARKED else ParsedText(text)
    assert read(make, text, 5) == told


@pytest.mark.parametrize("make", AROUND)
def test_a_call_without_a_word_of_arguments_has_none(make):
    """Where tags say that it is a call; one without a name is none."""
    text = AROUND[make] % '{"name": "f"}'
    told = ParsedText("", (ToolCall("f", "{}"),)) if make in MARKED else ParsedText(text)
    assert read(make, text, 5) == told
    for name in ("7", '""'):
        text = AROUND[make] % f'{{"name": {name}, "arguments": {{}}}}'
        assert read(make, text, 5) == ParsedText(text)


@pytest.mark.parametrize("make", AROUND)
@pytest.mark.parametrize(
    "arguments",
    ['{"x":1e999,  "y" : 1.10}', '{"x": ' + "1" * 5000 + "}", '{\n "b": "\\u00e9é"\n}', "{ }"],
)
def test_arguments_are_as_the_model_wrote_them(make, arguments):
    """Numbers of any size among them: read and written again, 1e999 would be no JSON."""
    call = f'{{ "name" : "f" , "id": 1, "arguments" : {arguments} }}'
    assert read(make, AROUND[make] % call, 5) == ParsedText("", (ToolCall("f", arguments),))


@pytest.mark.parametrize("make", AROUND)
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "[NaN]"])
def test_what_is_no_json_is_no_call(make, value):
    """Python reads it, clients do not."""
    text = AROUND[make] % f'{{"name": "f", "arguments": {{"x": {value}}}}}'
    assert read(make, text, 5) == ParsedText(text)


def test_a_text_of_many_tags_is_read_in_time_that_grows_with_it():
    """Whether they open, close, or stand in a text that never ends."""
    opened, closed = "<tool_call>", "</tool_call>"
    for first, text in (
        ("", opened),
        ("", closed),
        ("", opened + '{"a'),
        ("", opened + '{"a' + closed),
        (opened + '{"a', closed),
        (opened + '{"a', closed + opened),
    ):
        long = first + text * 2000
        begun_s = time.thread_time()
        assert read(TaggedCalls, long, 16) == ParsedText(long)
        assert time.thread_time() - begun_s < 2


@pytest.mark.parametrize("make", AROUND)
def test_half_a_pair_of_surrogates_stays_as_the_model_wrote_it(make):
    """An answer cannot hold it but as an escape; a name of a tool it is in none."""
    call = '{"name": "f", "arguments": {"b": "\\ud800é"}}'
    around = AROUND[make]
    (called,) = read(make, around % call, 3).calls
    assert called.arguments == '{"b": "\\ud800é"}'
    assert called.arguments.encode()
    assert json.loads(called.arguments) == {"b": "\ud800é"}
    assert read(make, around % call.replace('"f"', '"\\ud800"'), 3).calls == ()
