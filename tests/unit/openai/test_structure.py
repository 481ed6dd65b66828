"""Structures of answers, as bodies ask for them; test_text_body.py has the bodies."""

import pytest

from builders.writer import VOCABULARY, write_tokenizer
from ge_backend.device.preprocess.guide import open_guides
from ge_backend.generate.parameters import parse_parameters
from ge_backend.openai.structure import GUIDED, forced_calls, forced_name, read_response_format

TOOLS = [
    {"function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}},
    {"function": {"name": "time"}},
]


def test_names_are_the_engines():
    """Each of them is a parameter that it knows."""
    written = {"guided_json": {}, "guided_choice": ["a"]}
    for name in GUIDED:
        assert parse_parameters({name: written.get(name, "a")}).structure.kind.value == name


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
