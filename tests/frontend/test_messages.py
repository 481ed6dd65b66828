"""Messages of a chat."""

import pytest

from ge_openai.api_error import ApiError
from ge_openai.messages import (
    content_text,
    read_messages,
    read_tools,
    with_calls_as_text,
    with_nine_letter_ids,
    with_objects_as_arguments,
    with_parts,
)


def test_contents_stay_texts_or_parts():
    """What the template takes of them is its own affair; none is empty."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    given = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "name": "x"},
    ]
    assert read_messages(given) == (
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "", "name": "x"},
    )


def test_a_content_is_one_text_or_parts():
    """Parts are lines of the text, as with vLLM; an empty text has no part."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert content_text({"role": "user", "content": parts}) == "a\nb"
    assert with_parts({"role": "user", "content": "a"})["content"] == parts[:1]
    assert with_parts({"role": "user", "content": ""})["content"] == []
    assert with_parts({"role": "user", "content": parts})["content"] == parts


def test_arguments_of_tool_calls_become_objects():
    """Templates print them as JSON; ids and answers of tools stay as they are."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    answer = {"role": "tool", "tool_call_id": "1", "content": "3"}
    first, second = read_messages([{"role": "assistant", "tool_calls": [call]}, answer])
    assert first["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert first["tool_calls"][0]["id"] == "1"
    assert second == answer


@pytest.mark.parametrize("role", ["user", "system", "developer", "tool"])
@pytest.mark.parametrize("content", [{}, {"content": None}])
def test_a_message_that_is_its_content_has_one(role, content):
    """As OpenAI's API has it; an empty one will do, and an assistant may call tools instead."""
    with pytest.raises(ApiError, match=r"messages\[0\] has no content") as caught:
        read_messages([{"role": role, **content}])
    assert (caught.value.status, caught.value.param) == (400, "messages[0].content")
    assert read_messages([{"role": role, "content": ""}])[0]["content"] == ""
    assert read_messages([{"role": "assistant", **content}])[0]["content"] == ""


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
        [{"role": "assistant", "tool_calls": [{"function": "f"}]}],
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


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ("{", {}),
        ('{"a": "Par', {}),
        ("[" * 100_000, {}),
        ("", {}),
        (None, {}),
        ("null", {}),
        ("[1]", [1]),
        ([1], [1]),
        ("7", 7),
        ({"a": 1}, {"a": 1}),
        ('"{\\"a\\": 1}"', {"a": 1}),
        ('"Paris"', {}),
    ],
)
def test_arguments_of_any_kind_go_on_with_the_chat(given, arguments):
    """A limit cuts calls off, and models write what they like; the chat is not lost for that."""
    call = {"id": "1", "function": {"name": "f", "arguments": given}}
    (message,) = read_messages([{"role": "assistant", "tool_calls": [call]}])
    (read,) = message["tool_calls"]
    assert read["function"]["arguments"] == arguments
    del call["function"]["arguments"]
    (message,) = read_messages([{"role": "assistant", "tool_calls": [call]}])
    assert message["tool_calls"][0]["function"]["arguments"] == {}


def test_arguments_that_are_no_object_are_none_where_a_template_goes_through_them():
    """What is an object stays one."""
    calls = [{"function": {"name": "f", "arguments": each}} for each in ("[1]", '{"a": 1}')]
    (message,) = read_messages([{"role": "assistant", "tool_calls": calls}])
    found = with_objects_as_arguments(message)["tool_calls"]
    assert [each["function"]["arguments"] for each in found] == [{}, {"a": 1}]
    assert with_objects_as_arguments({"role": "user"}) == {"role": "user"}


def test_ids_of_calls_become_nine_letters():
    """Those that are stay; a call's and its result's are the same, and others are others."""
    ids = ["call_0123456789", "abcDEF123", "é\ud800", None]
    calls = [{"id": each, "function": {"name": "f"}} for each in ids]
    results = [{"role": "tool", "tool_call_id": each, "content": "7"} for each in ids]
    given = read_messages([{"role": "assistant", "tool_calls": calls}, *results])
    first, *rest = map(with_nine_letter_ids, given)
    found = [each["id"] for each in first["tool_calls"]]
    assert found == [each["tool_call_id"] for each in rest]
    assert found[1] == ids[1]
    assert all(len(each) == 9 and each.isalnum() for each in found)
    assert len(set(found)) == 4
    assert with_nine_letter_ids({"role": "user"}) == {"role": "user"}


def test_tools_are_objects():
    """None is none."""
    assert read_tools(None) == ()
    assert read_tools([{"a": 1}]) == ({"a": 1},)
    with pytest.raises(ApiError, match="tools"):
        read_tools(["a"])
    function = {"type": "function", "function": {"name": "f"}}
    assert read_tools([function]) == (function,)
    for kind in ("custom", "web_search", None):
        with pytest.raises(ApiError, match=r"tools\[1\]\.type is .*expected 'function'"):
            read_tools([function, {"type": kind, "custom": {"name": "f"}}])
