"""Bodies of both kinds of completions."""

import json

import pytest

from builders.pages import ROOT
from ge_openai import text_body
from ge_openai.api_error import ApiError
from ge_openai.text_body import ReplyForm, read_chat, read_completion

MESSAGES = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "g"}},
]


def completion(**given):
    return read_completion(json.dumps({"model": "m", "prompt": "a", **given}).encode())


def chat(**given):
    return read_chat(json.dumps({"model": "m", "messages": MESSAGES, **given}).encode())


def test_a_plain_completion():
    """Nothing is asked of the engine that the client did not ask for."""
    asked = completion()
    assert asked.reply == ReplyForm(model="m", samples=1, top=None, stream=False, usage=False)
    assert (asked.prompts, asked.sampling) == (("a",), {})


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ("a",)), (["a", "b"], ("a", "b")), ([1, 2], ((1, 2),)), ([[1], [2, 3]], ((1,), (2, 3)))],
)
def test_prompts_are_texts_or_tokens(prompt, prompts):
    """One, or several."""
    assert completion(prompt=prompt).prompts == prompts


@pytest.mark.parametrize(
    "prompt", [None, "", [], [""], [[]], [1, "a"], ["a", 1], [-1], [True], {}, 3, ["a"] * 129]
)
def test_other_prompts_are_refused(prompt):
    """With the field's name."""
    with pytest.raises(ApiError) as caught:
        completion(prompt=prompt)
    assert caught.value.param == "prompt"


def test_parameters_are_the_engines():
    """Names go through as they are; it checks them."""
    given = {"temperature": 9, "seed": 3, "stop": ["x"], "top_k": 4, "max_tokens": 5}
    asked = completion(
        **given, n=2, logprobs=0, user="u", stream=True, stream_options={"include_usage": True}
    )
    assert asked.sampling == {**given, "n": 2, "logprobs": 0}
    assert asked.reply == ReplyForm(model="m", samples=2, top=0, stream=True, usage=True)


@pytest.mark.parametrize("best_of", [None, 1, 2])
def test_as_many_samples_as_are_returned_may_be_drawn(best_of):
    """`best_of` of 1, or of `n`, chooses nothing and is left out."""
    assert completion(n=2, best_of=best_of, stream=True).sampling == {"n": 2}
    assert chat(n=2, best_of=best_of).sampling["n"] == 2


def test_more_samples_than_are_returned_are_refused():
    """With what to ask for instead."""
    for asked in (completion, chat):
        with pytest.raises(ApiError, match="best_of is not supported: leave it out, ask for all"):
            asked(n=2, best_of=5)


@pytest.mark.parametrize(
    "given",
    [
        {"echo": True},
        {"suffix": "x"},
        {"best_of": 2, "n": 3},
        {"n": 0},
        {"logprobs": 6},
        {"stream_options": {"include_usage": True}},
        {"response_format": {"type": "xml"}},
        {"tempo": 1},
    ],
)
def test_what_is_not_supported_is_named(given):
    """Never ignored."""
    with pytest.raises(ApiError) as caught:
        completion(**given)
    assert caught.value.param == next(iter(given))


def test_a_plain_chat_is_as_long_as_the_model_can_hold():
    """`max_tokens` is null for the engine, which is no limit of its own."""
    asked = chat()
    assert asked.sampling == {"add_special_tokens": False, "max_tokens": None}
    assert asked.messages == tuple(MESSAGES)


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({"max_tokens": 3}, 3),
        ({"max_completion_tokens": 4}, 4),
        ({"max_completion_tokens": 4, "max_tokens": 3}, 4),
    ],
)
def test_both_names_of_the_limit(given, limit):
    """The newer one goes before."""
    assert chat(**given).sampling["max_tokens"] == limit


def test_log_probabilities_of_a_chat():
    """A switch, and how many."""
    assert chat(logprobs=True).reply.top == 0
    assert chat(logprobs=True, top_logprobs=3).reply.top == 3
    assert chat(logprobs=False).reply.top is None
    with pytest.raises(ApiError, match="needs logprobs"):
        chat(top_logprobs=3)


@pytest.mark.parametrize("read", [completion, chat])
def test_options_of_a_stream_are_one_switch(read):
    """Whatever else is there is named; null is as good as absent."""
    for options in ({}, {"include_usage": None, "x": None}, {"include_usage": False}):
        assert not read(stream=True, stream_options=options).reply.usage
    for options, name in (
        ({"include_usage": True, "nonsense": 5}, "nonsense"),
        ({"include_usage": 1}, "include_usage"),
    ):
        with pytest.raises(ApiError, match=f"stream_options.{name} (is not|has to)") as caught:
            read(stream=True, stream_options=options)
        assert caught.value.param == f"stream_options.{name}"
    with pytest.raises(ApiError, match=r"stream_options\.include_usage is not known"):
        read(stream=True, stream_options={}, **{"stream_options.include_usage": True})


@pytest.mark.parametrize(
    ("options", "usage", "running"),
    [
        ({"include_obfuscation": False}, False, False),
        ({"include_usage": True, "include_obfuscation": True}, True, False),
        ({"include_usage": True, "continuous_usage_stats": True}, True, True),
        ({"continuous_usage_stats": True}, False, False),
    ],
)
@pytest.mark.parametrize("read", [completion, chat])
def test_options_of_a_stream_that_clients_send(read, options, usage, running):
    """OpenAI's obfuscation, which there is none of, and vLLM's running usage, as there."""
    reply = read(stream=True, stream_options=options).reply
    assert (reply.usage, reply.running_usage) == (usage, running)


def test_fields_of_vllm_and_openai_that_say_nothing_new():
    """Each is taken; those that the engine knows go through to it."""
    given = {"use_beam_search": False, "prompt_logprobs": 0, "spaces_between_special_tokens": True}
    taken = {"prompt_cache_retention": "24h", "request_id": "a", "echo": False, "top_logprobs": 0}
    asked = chat(**given, **taken, truncate_prompt_tokens=None, documents=[])
    assert given.items() <= asked.sampling.items()
    assert asked.reply.top is None
    assert "logprobs" not in asked.sampling


@pytest.mark.parametrize(("mode", "forced"), [("auto", None), ("required", "")])
def test_allowed_tools_are_the_tools(mode, forced):
    """Those alone are shown to the template, and may be called."""
    tools = [{"type": "function", "function": {"name": name}} for name in ("one", "two")]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools[1:]}}
    asked = chat(tools=tools, tool_choice=choice)
    assert (asked.tools, asked.forced) == (tuple(tools[1:]), forced)
    for wrong in ({"mode": "any", "tools": tools}, {"mode": mode, "tools": []}, 3):
        with pytest.raises(ApiError, match="allowed_tools has to have a mode"):
            chat(tools=tools, tool_choice={"type": "allowed_tools", "allowed_tools": wrong})
    with pytest.raises(ApiError, match="allows two; the request's tools are: one"):
        chat(tools=tools[:1], tool_choice=choice)


def test_special_tokens_of_a_chat_are_its_templates():
    """As with vLLM, a client may want the tokenizer's own, too; a completion has them."""
    assert chat().sampling["add_special_tokens"] is False
    assert chat(add_special_tokens=True).sampling["add_special_tokens"] is True
    assert "add_special_tokens" not in completion().sampling


def test_tools_can_be_left_out():
    """`none` hides them from the template, and nothing is forced."""
    assert chat(tools=TOOLS).tools == chat(tools=TOOLS, tool_choice="auto").tools == tuple(TOOLS)
    assert chat(tools=TOOLS, tool_choice="none").tools == ()
    assert {chat(tools=TOOLS, tool_choice=c).forced for c in (None, "auto", "none")} == {None}


def test_several_calls_are_the_clients_choice():
    """Forced or not; as many as the model writes if nothing is said."""
    assert [chat(tools=TOOLS, parallel_tool_calls=s).several for s in (False, True, None)] == [
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("several", ["false", 0, []])
def test_a_choice_of_several_calls_is_a_switch(several):
    """What is none is refused, where it would else be taken for the opposite."""
    with pytest.raises(ApiError, match="has to be true or false") as caught:
        chat(tools=TOOLS, parallel_tool_calls=several)
    assert caught.value.param == "parallel_tool_calls"


def test_a_tool_that_has_to_be_called_goes_before_the_format():
    """Both may be asked for; a chat without tools to call has its format alone."""
    wanted = {"response_format": {"type": "json_object"}}
    for choice, forced in (
        ({"type": "function", "function": {"name": "f"}}, "f"),
        ("required", ""),
        ("auto", None),
        ("none", None),
    ):
        asked = chat(tools=TOOLS, tool_choice=choice, **wanted)
        assert (asked.forced, asked.answer.field) == (forced, "response_format")


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "perhaps"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"function": {"name": "h"}}}, "tool_choice"),
        ({"tools": [{"type": "function"}], "tool_choice": "required"}, "tools"),
        ({"tools": TOOLS, "tool_choice": "required", "guided_regex": "a"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "response_format"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "response_format",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ({"response_format": "json"}, "response_format"),
    ],
)
def test_structures_that_cannot_be(given, param):
    """The field is named, also where two fields say what an answer has to be."""
    with pytest.raises(ApiError) as caught:
        chat(**given)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "given", [{"guided_choice": ["a"]}, {"structured_outputs": {"regex": "a"}}]
)
@pytest.mark.parametrize("read", [completion, chat])
def test_vllms_formats_are_the_engines(read, given):
    """As they are, of both kinds of completions."""
    asked = read(**given)
    own = ("max_tokens", "add_special_tokens")
    assert {name: value for name, value in asked.sampling.items() if name not in own} == given
    assert asked.answer is None


@pytest.mark.parametrize("read", [completion, chat])
def test_openais_format_is_a_schema(read):
    """Of both kinds of completions."""
    assert read(response_format={"type": "text"}).answer is None
    schema = {"type": "json_schema", "json_schema": {"schema": {"enum": [1]}}}
    assert read(response_format=schema).answer.given == {"enum": [1]}


@pytest.mark.parametrize(
    "given",
    [
        {"functions": []},
        {"audio": {}},
        {"modalities": ["audio"]},
    ],
)
def test_what_a_chat_cannot_do_is_named(given):
    """Never ignored."""
    with pytest.raises(ApiError, match="not supported") as caught:
        chat(**given)
    assert caught.value.param == next(iter(given))


@pytest.mark.parametrize("name", [*text_body._SAMPLING, *text_body._WITHOUT_EFFECT])
def test_every_field_is_in_the_docs(name):
    """Among those that are understood, or that are taken and do nothing."""
    page = (ROOT / "docs" / "openai.md").read_text()
    understood = page.partition("## What is understood")[2].partition("\n## ")[0]
    assert f"`{name}`" in understood
