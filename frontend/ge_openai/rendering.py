"""What a request for a chat says of its prompt beside messages and tools, under vLLM's names.

Source: vLLM's docs, "OpenAI-compatible server", extra parameters of the chat API.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ge_openai.api_error import ApiError
from ge_openai.fields import Fields

__all__ = ["Rendering", "read_rendering"]

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
VERBOSITIES = ("low", "medium", "high")
# Names of a template's that fields of their own say.
_OWN = ("messages", "tools", "chat_template", "tokenize")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """How a chat becomes a prompt.

    Attributes:
        names: values that the template is given; one that it does not know changes nothing.
        documents: what the answer is to be found in, for templates that know documents.
        answers: the prompt ends with what begins an answer.
        goes_on: the prompt ends within the last message, which the answer continues.
    """

    names: Mapping[str, Any] = field(default_factory=dict)
    documents: tuple[dict[str, Any], ...] = ()
    answers: bool = True
    goes_on: bool = False


def read_rendering(fields: Fields) -> Rendering:
    """Return what a body says of its prompt.

    `reasoning_effort` and `verbosity` are names for the template, as with vLLM; `none` of effort
    also turns `enable_thinking` off, which is what Qwen's and others' templates call it.

    Raises:
        ApiError: a value is impossible, or two contradict each other.
    """
    given = fields.take("chat_template_kwargs") or {}
    if not isinstance(given, dict):
        raise ApiError(
            f"chat_template_kwargs has to be an object, got {given!r:.80}",
            param="chat_template_kwargs",
        )
    for name in (name for name in _OWN if name in given):
        raise ApiError(
            f"chat_template_kwargs has {name}, which is not for it; leave it out",
            param="chat_template_kwargs",
        )
    names = dict(given)
    effort = _one_of(fields, "reasoning_effort", EFFORTS)
    verbosity = _one_of(fields, "verbosity", VERBOSITIES)
    if effort == "none":
        names.setdefault("enable_thinking", False)
    if effort:
        names.setdefault("reasoning_effort", effort)
    if verbosity:
        names.setdefault("verbosity", verbosity)
    goes_on = _switch(fields, names, "continue_final_message")
    answers = _switch(fields, names, "add_generation_prompt")
    if goes_on and answers:
        raise ApiError(
            "continue_final_message goes on within the last message, and add_generation_prompt "
            "begins another one; leave one of them out",
            param="continue_final_message",
        )
    return Rendering(
        names=names,
        documents=_documents(fields.take("documents") or names.pop("documents", None) or []),
        answers=not goes_on if answers is None else answers,
        goes_on=bool(goes_on),
    )


def _switch(fields: Fields, names: dict[str, Any], name: str) -> bool | None:
    """Return a switch of the body or, as some clients send it, of the names; None if absent."""
    beside = names.pop(name, None)
    value = fields.take(name)
    value = beside if value is None else value
    if value is not None and not isinstance(value, bool):
        raise ApiError(f"{name} has to be true or false, got {value!r:.80}", param=name)
    return value


def _one_of(fields: Fields, name: str, known: tuple[str, ...]) -> str:
    value = fields.take(name)
    if value is not None and value not in known:
        raise ApiError(f"{name} has to be one of {', '.join(known)}, got {value!r:.80}", param=name)
    return value or ""


def _documents(given: Any) -> tuple[dict[str, Any], ...]:
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise ApiError(
            f"documents has to be a list of objects, got {given!r:.80}", param="documents"
        )
    return tuple(given)
