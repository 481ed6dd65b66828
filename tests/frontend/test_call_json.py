"""Calls as JSON; test_tool_calls.py has whole answers."""

import pytest

from ge_openai.call_json import (
    NO_JSON,
    ToolCall,
    calls_behind,
    check_end,
    listed_calls,
    read_call,
    read_calls,
)

F = '{"name": "f", "arguments": {"a": 1}}'
CALL = ToolCall("f", '{"a": 1}')


def test_a_call_tells_where_it_ends():
    """What stands behind it is for others to read."""
    assert read_call(f"x {F} y", 1) == (CALL, 2 + len(F))
    assert read_calls(f" [{F}]y", 0) == ([CALL], 3 + len(F))
    assert read_calls(F, 0) == ([CALL], len(F))


def test_only_tags_make_a_call_of_an_object_without_arguments():
    """Without them it is an answer."""
    assert read_call('{"name": "f"}', 0)[0] is None
    assert read_call('{"name": "f"}', 0, marked=True)[0] == ToolCall("f", "{}")


def test_calls_stand_behind_a_tag_each_or_together():
    """In a list, as one object, or by name and arguments."""
    assert calls_behind("[T]", f"[T][{F}, {F}]") == [CALL, CALL]
    assert calls_behind("[T]", f'[T]{F}\n[T] f[ARGS]{{"a": 1}}') == [CALL, CALL]


@pytest.mark.parametrize(
    "read",
    [
        lambda: listed_calls(f"[{F}] x"),
        lambda: listed_calls(f"[{F}"),
        lambda: calls_behind("[T]", f"{F}"),
        lambda: calls_behind("[T]", "[T]"),
        lambda: calls_behind("[T]", "[T]f[ARGS]7"),
        lambda: check_end("a b", 1),
        lambda: read_call("[" * 100_000, 0),
    ],
)
def test_what_is_none_raises(read):
    """Also where it is nested too deeply."""
    with pytest.raises(NO_JSON):
        read()
