"""Messages of a chat."""

import pytest

from ge_backend.openai.api_error import ApiError
from ge_backend.openai.messages import read_messages, read_tools, with_calls_as_text


def test_contents_become_one_text():
    """Parts are lines of it, as with vLLM, and none is empty."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    given = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "name": "x"},
    ]
    assert read_messages(given) == (
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "", "name": "x"},
    )


def test_arguments_of_tool_calls_become_objects():
    """Templates print them as JSON; ids and answers of tools stay as they are."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    answer = {"role": "tool", "tool_call_id": "1", "content": "3"}
    first, second = read_messages([{"role": "assistant", "tool_calls": [call]}, answer])
    assert first["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert first["tool_calls"][0]["id"] == "1"
    assert second == answer


@pytest.mark.parametrize("calls", [None, []])
def test_what_is_null_is_left_out(calls):
    """As OpenAI's client sends an answer back; Llama 3's template takes it for a call of a tool."""
    nulls = {"refusal": None, "audio": None, "function_call": None}
    given = {"role": "assistant", "content": "a", **nulls, "tool_calls": calls}
    assert read_messages([given]) == ({"role": "assistant", "content": "a"},)


@pytest.mark.parametrize(
    "given",
    [
        None,
        [],
        "hi",
        [1],
        [{"content": "a"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
        [{"role": "user", "content": 3}],
        [{"role": "assistant", "tool_calls": 3}],
        [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"arguments": "[" * 100_000}}]}],
    ],
)
def test_other_messages_are_refused(given):
    """With where it is."""
    with pytest.raises(ApiError) as caught:
        read_messages(given)
    assert caught.value.param.startswith("messages")


def test_arguments_become_texts_again_where_a_template_wants_them_so():
    """With a content that is none; what calls no tool stays as it is."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "é"}'}}
    given = [{"role": "user", "content": ""}, {"role": "assistant", "tool_calls": [call]}]
    first, second = map(with_calls_as_text, read_messages(given))
    assert first == given[0]
    assert second == given[1] | {"content": None}


def test_tools_are_objects():
    """None is none."""
    assert read_tools(None) == ()
    assert read_tools([{"a": 1}]) == ({"a": 1},)
    with pytest.raises(ApiError, match="tools"):
        read_tools(["a"])
