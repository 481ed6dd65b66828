"""The messages of a chat, checked and in the form that chat templates expect."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ge_openai.api_error import ApiError

__all__ = [
    "Message",
    "content_text",
    "read_messages",
    "read_tools",
    "with_calls_as_text",
    "with_nine_letter_ids",
    "with_objects_as_arguments",
    "with_parts",
]

Message = dict[str, Any]

_TEXT_PARTS = ("text", "refusal")
# Roles whose messages are their content. Source: OpenAI's API reference, "Create chat completion",
# where an assistant's may call tools instead.
_OF_CONTENT = ("developer", "system", "user", "tool")
_NINE = re.compile("[a-zA-Z0-9]{9}")


def read_messages(given: Any) -> tuple[Message, ...]:
    """Return a chat's messages: contents as text or parts, arguments of calls as JSON's values.

    Arguments that are null or no JSON, as those that a limit of tokens has cut off, are `{}`.

    Everything else in a message is the template's: tool calls, their ids, names. What a client
    writes as null or as no calls, as OpenAI's own does with a message that it got, is left out:
    templates ask whether a message has `tool_calls`, not how many.

    Raises:
        ApiError: it is no list of messages, or a message holds something that is not text.
    """
    if not isinstance(given, list) or not given:
        raise ApiError("messages has to be a list with a message at least", param="messages")
    return tuple(_message(one, f"messages[{place}]") for place, one in enumerate(given))


def read_tools(given: Any) -> tuple[dict[str, Any], ...]:
    """Return the tools as they are.

    Raises:
        ApiError: it is no list of objects, or one says that it is no function.
    """
    if given is None:
        return ()
    if not isinstance(given, list) or not all(isinstance(tool, dict) for tool in given):
        raise ApiError("tools has to be a list of objects", param="tools")
    for place, tool in enumerate(given):
        if (kind := tool.get("type", "function")) != "function":
            field = f"tools[{place}].type"
            raise ApiError(
                f"{field} is {kind!r:.80}; expected 'function': calls of other tools are not read",
                param=field,
            )
    return tuple(given)


def with_calls_as_text(message: Message) -> Message:
    """Return a message that was read as some templates expect it where it calls tools.

    Arguments are JSON as text, and a content that is empty is none.
    """
    if "tool_calls" not in message:
        return message
    written = partial(json.dumps, ensure_ascii=False)
    return _with_arguments(message, written) | {"content": content_text(message) or None}


def content_text(message: Message) -> str:
    """Return a message's content as one text; its parts become lines, as they do in vLLM."""
    content = message["content"]
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def with_parts(message: Message) -> Message:
    """Return a message whose content is a list of parts; none where it is empty."""
    content = message["content"]
    if not isinstance(content, str):
        return message
    return message | {"content": [{"type": "text", "text": content}] if content else []}


def with_objects_as_arguments(message: Message) -> Message:
    """Return a message as templates expect it that go through the arguments' names.

    Arguments that are a list, a number or the like are none.
    """
    return _with_arguments(message, lambda given: given if isinstance(given, dict) else {})


def with_nine_letter_ids(message: Message) -> Message:
    """Return a message whose ids of tool calls are nine letters and digits; equal ones stay equal.

    Mistral's templates refuse all others, such as OpenAI's own, which chats bring along.
    """
    changed = dict(message)
    if "tool_calls" in message:
        calls = message["tool_calls"]
        changed["tool_calls"] = [{**call, "id": _nine_letters(call.get("id"))} for call in calls]
    if message["role"] == "tool":
        changed["tool_call_id"] = _nine_letters(message.get("tool_call_id"))
    return changed


def _nine_letters(given: Any) -> str:
    text = str(given)
    if _NINE.fullmatch(text):
        return text
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:9]


def _with_arguments(message: Message, change: Callable[[Any], Any]) -> Message:
    if "tool_calls" not in message:
        return message
    functions = [call["function"] for call in message["tool_calls"]]
    changed = [{**each, "arguments": change(each["arguments"])} for each in functions]
    calls = zip(message["tool_calls"], changed, strict=True)
    return {**message, "tool_calls": [{**call, "function": function} for call, function in calls]}


def _message(given: Any, where: str) -> Message:
    if not isinstance(given, dict) or not isinstance(given.get("role"), str):
        raise ApiError(f"{where} has to be an object with a role", param=where)
    message = {name: value for name, value in given.items() if value is not None}
    if given["role"] in _OF_CONTENT and "content" not in message:
        raise ApiError(
            f"{where} has no content; expected a text, which may be empty, or a list of parts",
            param=f"{where}.content",
        )
    message["content"] = _content(given.get("content"), f"{where}.content")
    calls = message.pop("tool_calls", None)
    if calls:
        named = calls if isinstance(calls, list) else [calls]
        message["tool_calls"] = [_tool_call(call, where) for call in named]
    return message


def _content(given: Any, where: str) -> str | list[dict[str, str]]:
    if given is None or isinstance(given, str):
        return given or ""
    parts = given if isinstance(given, list) else [given]
    return [{"type": "text", "text": _part(part, where)} for part in parts]


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    text = part.get(kind) if kind in _TEXT_PARTS else None
    if not isinstance(text, str):
        raise ApiError(f"{where} has a part of type {kind!r}; these models read text", param=where)
    return text


def _tool_call(given: Any, where: str) -> Any:
    """Return a tool call with its arguments as a value, as templates print them as JSON."""
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(function, dict):
        raise ApiError(
            f"{where}.tool_calls has to be a list of objects with a function, got {given!r:.80}",
            param=where,
        )
    return {**given, "function": {**function, "arguments": _arguments(function.get("arguments"))}}


def _arguments(given: Any) -> Any:
    """Return a call's arguments; {} where there are none, or none that can be read.

    Some clients write the JSON text of a JSON text.
    """
    while isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            return {}
    return {} if given is None else given
