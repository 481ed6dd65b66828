"""How an answer to a chat may call tools."""

import json
from types import SimpleNamespace

import pytest

from ge_openai.call_forms import form_of
from ge_openai.calling import read_calling
from ge_openai.chat_template import AddedTokens
from ge_openai.structure import FREE
from ge_openai.text_body import read_chat
from ge_openai.tool_calls import ListedCalls, NamedCall, TaggedCalls

TOOLS = [{"type": "function", "function": {"name": "f"}}]
NAMED = {"type": "function", "function": {"name": "f"}}
FORMAT = {"response_format": {"type": "json_object"}}
TAG = "<tool_call>"


def template(form="<tool_call>", ids=(), special=()):
    return SimpleNamespace(calls=form_of(form), tokens=AddedTokens(dict(ids), frozenset(special)))


def read(made, **given):
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **given}
    return read_calling(read_chat(json.dumps(body).encode()), made)


@pytest.mark.parametrize(
    ("given", "structure", "reader"),
    [
        ({}, None, None),
        (FORMAT, "guided_json", None),
        ({"tools": TOOLS}, None, TaggedCalls),
        ({"tools": TOOLS, "tool_choice": "none", **FORMAT}, "guided_json", None),
        ({"tools": TOOLS, **FORMAT}, "guided_grammar", TaggedCalls),
        ({"tools": TOOLS, "tool_choice": "required"}, "guided_grammar", TaggedCalls),
        ({"tools": TOOLS, "tool_choice": "required", **FORMAT}, "guided_grammar", TaggedCalls),
        ({"tools": TOOLS, "tool_choice": NAMED}, "guided_json", NamedCall),
        ({"tools": TOOLS, "tool_choice": NAMED, **FORMAT}, "guided_json", NamedCall),
    ],
)
def test_tools_and_a_format_go_together(given, structure, reader):
    """A tool that has to be called goes before the format; else the model chooses."""
    found = read(template(), **given)
    assert list(found.held.sampling) == ([structure] if structure else [])
    assert found.reader is None if reader is None else isinstance(found.reader(), reader)
    grammar = found.held.sampling.get("guided_grammar", "")
    both = "tools" in given and given.get("tool_choice") is None and structure
    assert ("| answer" in grammar) is bool(both)


def test_without_a_known_form_calls_are_a_list_where_they_are_asked_for():
    """Else an answer is text, or in its format: what the model writes as a call is not known."""
    unknown = template("")
    forced = read(unknown, tools=TOOLS, tool_choice="required")
    assert isinstance(forced.reader(), ListedCalls)
    free = read(unknown, tools=TOOLS)
    assert (free.held, free.reader, free.sampling) == (FREE, None, {})
    assert list(read(unknown, tools=TOOLS, **FORMAT).held.sampling) == ["guided_json"]


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_tags_that_are_special_tokens_are_kept_in_the_text(choice):
    """Ordinary ones are there anyway; without tools nothing changes."""
    special, ordinary = template(ids={TAG: 7}, special={TAG}), template(ids={TAG: 7})
    asked = {"tools": TOOLS, "tool_choice": choice}
    assert read(special, **asked).sampling == {"skip_special_tokens": False}
    assert read(ordinary, **asked).sampling == {}
    assert read(special).sampling == {}
    held = read(special, **asked, **FORMAT).held.sampling
    assert "<[7]>" in held["guided_grammar"]
