"""The messages of a chat, checked and in the form that chat templates expect."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ge_backend.openai.api_error import ApiError

__all__ = ["Message", "read_messages", "read_tools", "with_calls_as_text"]

Message = dict[str, Any]

_TEXT_PARTS = ("text", "refusal")


def read_messages(given: Any) -> tuple[Message, ...]:
    """Return a chat's messages: contents as one text, arguments of tool calls as objects.

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
        ApiError: it is no list of objects.
    """
    if given is None:
        return ()
    if not isinstance(given, list) or not all(isinstance(tool, dict) for tool in given):
        raise ApiError("tools has to be a list of objects", param="tools")
    return tuple(given)


def with_calls_as_text(message: Message) -> Message:
    """Return a message that was read as some templates expect it where it calls tools.

    Arguments are JSON as text, and a content that is empty is none.
    """
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {
        **message,
        "content": message["content"] or None,
        "tool_calls": [{**call, "function": _as_text(call["function"])} for call in calls],
    }


def _as_text(function: dict[str, Any]) -> dict[str, Any]:
    return {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}


def _message(given: Any, where: str) -> Message:
    if not isinstance(given, dict) or not isinstance(given.get("role"), str):
        raise ApiError(f"{where} has to be an object with a role", param=where)
    message = {name: value for name, value in given.items() if value is not None}
    message["content"] = _content(given.get("content"), f"{where}.content")
    calls = message.pop("tool_calls", None)
    if calls:
        named = calls if isinstance(calls, list) else [calls]
        message["tool_calls"] = [_tool_call(call, where) for call in named]
    return message


def _content(given: Any, where: str) -> str:
    """Return a content as text; its parts become lines, as they do in vLLM."""
    if given is None or isinstance(given, str):
        return given or ""
    parts = given if isinstance(given, list) else [given]
    return "\n".join(_part(part, where) for part in parts)


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    text = part.get(kind) if kind in _TEXT_PARTS else None
    if not isinstance(text, str):
        raise ApiError(f"{where} has a part of type {kind!r}; these models read text", param=where)
    return text


def _tool_call(given: Any, where: str) -> Any:
    """Return a tool call whose arguments are an object, as templates print them as JSON."""
    try:
        function = given["function"]
        arguments = function["arguments"]
        parsed = json.loads(arguments) if isinstance(arguments, str) and arguments else arguments
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ApiError(
            f"{where}.tool_calls needs objects with a function whose arguments are JSON: {error!r}",
            param=where,
        ) from error
    return {**given, "function": {**function, "arguments": parsed or {}}}
