"""What a chat says of its prompt beside messages and tools."""

import json

import pytest

from ge_openai.api_error import ApiError
from ge_openai.fields import Fields
from ge_openai.rendering import Rendering, read_rendering


def rendering(**given):
    fields = Fields(json.dumps(given).encode())
    found = read_rendering(fields)
    fields.end()
    return found


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, Rendering()),
        ({"chat_template_kwargs": {"a": 1}}, Rendering(names={"a": 1})),
        ({"reasoning_effort": "low"}, Rendering(names={"reasoning_effort": "low"})),
        ({"verbosity": "high"}, Rendering(names={"verbosity": "high"})),
        (
            {"reasoning_effort": "none"},
            Rendering(names={"reasoning_effort": "none", "enable_thinking": False}),
        ),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            Rendering(names={"reasoning_effort": "none", "enable_thinking": True}),
        ),
        ({"add_generation_prompt": True, "continue_final_message": False}, Rendering()),
        ({"add_generation_prompt": False}, Rendering(answers=False)),
        ({"continue_final_message": True}, Rendering(answers=False, goes_on=True)),
        (
            {"chat_template_kwargs": {"continue_final_message": True}},
            Rendering(answers=False, goes_on=True),
        ),
        ({"documents": [{"text": "a"}]}, Rendering(documents=({"text": "a"},))),
        ({"documents": []}, Rendering()),
    ],
)
def test_names_and_switches(given, expected):
    """A field goes before the same name among the template's, where some clients put it."""
    assert rendering(**given) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs has to be an object"),
        ({"chat_template_kwargs": {"messages": []}}, "has messages, which is not for it"),
        ({"reasoning_effort": "huge"}, "reasoning_effort has to be one of none, minimal"),
        ({"verbosity": 1}, "verbosity has to be one of low"),
        ({"add_generation_prompt": 1}, "add_generation_prompt has to be true or false"),
        ({"documents": ["a"]}, "documents has to be a list of objects"),
        (
            {"add_generation_prompt": True, "continue_final_message": True},
            "leave one of them out",
        ),
    ],
)
def test_the_impossible_is_named(given, message):
    """With the field that is wrong."""
    with pytest.raises(ApiError, match=message) as caught:
        rendering(**given)
    assert caught.value.param in given
