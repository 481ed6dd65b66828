"""Bodies of both kinds of completions."""

import json

import pytest

from ge_backend.openai.api_error import ApiError
from ge_backend.openai.text_body import ReplyForm, read_chat, read_completion

MESSAGES = [{"role": "user", "content": "hi"}]


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


@pytest.mark.parametrize(
    "given",
    [
        {"echo": True},
        {"suffix": "x"},
        {"best_of": 3},
        {"n": 0},
        {"logprobs": 6},
        {"stream_options": {"include_usage": True}},
        {"response_format": {"type": "json_object"}},
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
    assert asked.sampling == {"max_tokens": None}
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


def test_tools_can_be_left_out():
    """`none` hides them from the template; a call cannot be forced."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert chat(tools=tools).tools == chat(tools=tools, tool_choice="auto").tools == tuple(tools)
    assert chat(tools=tools, tool_choice="none").tools == ()
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        with pytest.raises(ApiError, match="tool_choice"):
            chat(tools=tools, tool_choice=choice)


@pytest.mark.parametrize(
    "given",
    [
        {"functions": []},
        {"audio": {}},
        {"modalities": ["audio"]},
        {"response_format": {"type": "json_schema"}},
    ],
)
def test_what_a_chat_cannot_do_is_named(given):
    """Never ignored."""
    with pytest.raises(ApiError, match="not supported") as caught:
        chat(**given)
    assert caught.value.param == next(iter(given))
