"""How families of models write calls, by their templates."""

import json

import pytest

from builders.guides import Structure, StructureKind, open_guides
from builders.writer import write_tokenizer
from ge_openai.call_forms import LISTED, call_rules, form_of
from ge_openai.call_json import ToolCall
from ge_openai.tool_calls import BareCalls, TaggedCalls, TrailingCalls

LLAMA = 'Respond in the format {"name": function name, "parameters": dictionary of'
TEMPLATES = {
    "Hermes": "{{ x }}<tool_call>{{ tool_call | tojson }}</tool_call>",
    "Llama 3.2": LLAMA,
    "Llama 3.1": "<|python_tag|>" + LLAMA,
    "Granite 3": "respond with <|tool_call|> followed by a JSON list",
    "Mistral 7B": "[TOOL_CALLS] [{{ call }}]",
    "Mistral Small 3.1": "[TOOL_CALLS]{{ name }}[CALL_ID]{{ id }}[ARGS]{{ arguments }}",
    "Mistral Small 3.2": "[TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}",
}
TAGS = (
    *("<tool_call>", "</tool_call>", "<|python_tag|>", "<|tool_call|>"),
    *("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
)
CALLS = [ToolCall("f", '{"a": 1}'), ToolCall("g-2", "{}")]
F, G = '{"name": "f", "%s": {"a": 1}}', '{"name": "g-2", "%s": {}}'
LIST = "[" + F % "arguments" + ", " + G % "arguments" + "]"
WRITTEN = {
    "Hermes": f"<tool_call>\n{F}\n</tool_call>\n<tool_call>\n{G}\n</tool_call>",
    "Llama 3.2": f"{F}; {G}",
    "Llama 3.1": f"<|python_tag|>{F}; {G}",
    "Granite 3": f"<|tool_call|>{LIST}",
    "Mistral 7B": f"[TOOL_CALLS] {LIST}",
    "Mistral Small 3.1": '[TOOL_CALLS]f[CALL_ID]abcdefgh1[ARGS]{"a": 1}[TOOL_CALLS]g-2[ARGS]{}',
    "Mistral Small 3.2": '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g-2[ARGS]{}',
}


def written(name):
    key = "parameters" if name.startswith("Llama") else "arguments"
    return WRITTEN[name] % (key, key) if "%s" in WRITTEN[name] else WRITTEN[name]


@pytest.mark.parametrize(
    ("name", "reader"),
    [
        ("Hermes", TaggedCalls),
        ("Llama 3.1", BareCalls),
        ("Llama 3.2", BareCalls),
        ("Granite 3", TrailingCalls),
        ("Mistral 7B", TrailingCalls),
        ("Mistral Small 3.1", TrailingCalls),
    ],
)
def test_the_template_says_how_its_model_calls(name, reader):
    """Each family has its reader."""
    assert isinstance(form_of(TEMPLATES[name]).reader({}), reader)


def test_where_it_is_not_known_text_stays_text():
    """No form is guessed."""
    assert form_of("{{ tools | tojson }}") is None


@pytest.fixture(scope="module", params=["text", "tokens", "special tokens"])
def vocabulary(request, tmp_path_factory):
    """Return tokens of tags by their text, and what compiles a grammar and splits a text."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = write_tokenizer(folder)
    first = tokenizer.get_vocab_size()
    if request.param == "tokens":
        tokenizer.add_tokens(list(TAGS))
    elif request.param == "special tokens":
        tokenizer.add_special_tokens(list(TAGS))
    tokenizer.save(str(folder / "tokenizer.json"))
    tokens = {tag: tokenizer.token_to_id(tag) for tag in TAGS if request.param != "text"}
    made = open_guides(folder / "tokenizer.json", first + len(tokens), (0,))
    return tokens, made, tokenizer


@pytest.mark.parametrize("name", TEMPLATES)
def test_calls_of_every_family_keep_to_its_grammar_and_are_read(vocabulary, name):
    """With tags that are text, or tokens, special ones among them; and one where one is wanted."""
    tokens, compile_structure, tokenizer = vocabulary
    form, text = form_of(TEMPLATES[name]), written(name)
    reader = form.reader({})
    parsed = [reader.take(text), reader.end()]
    assert [call for each in parsed for call in each.calls] == CALLS
    assert "".join(each.text for each in parsed) == ""
    ids = [*tokenizer.encode(text).ids, 0]
    for several in (True, False):
        grammar = "\n".join(
            [
                "start: calls",
                *call_rules(form, ["f", "g-2"], tokens, several=several),
                'arguments_0: %json {"enum": [{"a": 1}], "x-guidance": {"whitespace_pattern": " ?"}}',
                'arguments_1: %json {"enum": [{}]}',
            ]
        )
        guide = compile_structure(Structure(StructureKind.GRAMMAR, grammar)).fork()
        assert (guide.fitting(ids) == len(ids)) is several


def test_calls_of_no_family_are_a_list():
    """Which is read as one."""
    reader = LISTED.reader({})
    reader.take(LIST)
    assert list(reader.end().calls) == CALLS
    assert json.loads(LIST)
