"""What an answer has to be: its format, calls of tools, or either, as the engine's structures."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ge_openai.api_error import ApiError
from ge_openai.call_forms import CallForm, call_rules
from ge_openai.schemas import Schema, tool_schemas

__all__ = [
    "FREE",
    "GUIDED",
    "Held",
    "call_or_format",
    "forced_name",
    "format_alone",
    "named_call",
    "read_allowed",
]

# The engine's own parameters; one of them at most.
GUIDED = (
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    "structured_outputs",
)
# In the words of the engine's compiler: what failed, the line of a grammar, why, and an excerpt.
_REFUSED = re.compile(
    r"guided_(?:json|grammar) (?P<failed>cannot be compiled: )?"
    r"(?:at (?P<line>\d+)\(\d+\): (?:failed to compile JSON schema: )?)?"
    r"(?P<why>.*?)(?: +\d+ \| .*)?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What holds an answer.

    Attributes:
        sampling: parameters of the engine.
        param: the field of the request that says what the answer has to be.
        lines: fields of schemas, by the line of a grammar that has them.
    """

    sampling: Mapping[str, Any] = field(default_factory=dict)
    param: str = ""
    lines: Mapping[int, str] = field(default_factory=dict)

    def renamed(self, error: ApiError) -> ApiError:
        """Return an engine's error with the request's field in place of the engine's parameter."""
        refused = _REFUSED.fullmatch(str(error)) if self.param else None
        if not refused:
            return error
        name = self.lines.get(int(refused["line"] or 0), self.param)
        message = f"{name} {refused['failed'] or ''}{refused['why']}"
        return ApiError(message, status=error.status, param=name, code=error.code)


# An answer that may be anything.
FREE = Held()


def read_allowed(
    choice: Any, tools: tuple[dict[str, Any], ...]
) -> tuple[Any, tuple[dict[str, Any], ...]]:
    """Return the choice within OpenAI's `allowed_tools` and those tools; of others, both as given.

    Raises:
        ApiError: it is not of OpenAI's form, or names a tool that is not among them.
    """
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return choice, tools
    allowed = choice.get("allowed_tools", choice)
    mode, listed = (
        (allowed.get("mode"), allowed.get("tools")) if isinstance(allowed, dict) else ("", None)
    )
    objects = isinstance(listed, list) and all(isinstance(each, dict) for each in listed)
    if mode not in ("auto", "required") or not objects or not listed:
        raise ApiError(
            "tool_choice.allowed_tools has to have a mode, 'auto' or 'required', and a list of "
            f"tools, got {allowed!r:.80}",
            param="tool_choice",
        )
    known, names = _names(tools), set(_names(listed))
    for unknown in sorted(names - set(known)):
        raise ApiError(
            f"tool_choice allows {unknown}; the request's tools are: {', '.join(known) or 'none'}",
            param="tool_choice",
        )
    return mode, tuple(tool for tool in tools if names.intersection(_names([tool])))


def forced_name(choice: Any, tools: Sequence[dict[str, Any]]) -> str | None:
    """Return the tool that has to be called: "" is any of them; None: none has to.

    Raises:
        ApiError: the choice is none that OpenAI has, or names a tool that is not among them.
    """
    if choice in (None, "auto", "none"):
        return None
    name: Any = ""
    if choice != "required":
        function = choice.get("function") if isinstance(choice, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not name:
            raise ApiError(
                "tool_choice has to be 'auto', 'none', 'required' or {'type': 'function', "
                f"'function': {{'name': …}}}}, got {choice!r:.80}",
                param="tool_choice",
            )
    names = _names(tools)
    if name not in {"", *names} or not names:
        known = ", ".join(names) or "none"
        raise ApiError(
            f"tool_choice asks for {name or 'a tool'}; the request's tools are: {known}",
            param="tool_choice",
        )
    return str(name)


def format_alone(answer: Schema) -> Held:
    """Return what holds an answer to its format."""
    return Held(sampling={"guided_json": answer.written}, param=answer.field)


def named_call(name: str, tools: Sequence[dict[str, Any]]) -> Held:
    """Return what makes an answer the arguments of a tool.

    Raises:
        ApiError: its schema allows no object.
    """
    return format_alone(tool_schemas(tools)[name])


def call_or_format(
    form: CallForm,
    tools: Sequence[dict[str, Any]],
    answer: Schema | None,
    tokens: Mapping[str, int],
    *,
    several: bool,
) -> Held:
    """Return what makes an answer calls of tools, or what its format says.

    Args:
        form: how the model writes calls.
        tools: as the client sent them.
        answer: the format; None: it has to be calls.
        tokens: as in `call_rules`.
        several: an answer may have more than one call.

    Raises:
        ApiError: a tool's schema allows no object.
    """
    schemas = tool_schemas(tools)
    if answer and not schemas:  # of no tool is known how it is called
        return format_alone(answer)
    arguments, rules = form.argument_rules(list(schemas.values()))
    lines = [
        "start: calls" + (" | answer" if answer else ""),
        *call_rules(form, list(schemas), tokens, several=several),
        *arguments,
    ]
    rules |= {"answer": answer} if answer else {}
    fields = dict(enumerate((schema.field for schema in rules.values()), len(lines) + 1))
    lines += [f"{rule}: %json {_in_a_line(schema)}" for rule, schema in rules.items()]
    return Held(
        sampling={"guided_grammar": "\n".join(lines)},
        param="response_format" if answer else "tools",
        lines=fields,
    )


def _in_a_line(schema: Schema) -> str:
    return json.dumps(schema.written, ensure_ascii=False, separators=(",", ":"))


def _names(tools: Sequence[dict[str, Any]]) -> list[str]:
    functions: list[Any] = [tool.get("function") for tool in tools]
    if not all(isinstance(each, dict) and isinstance(each.get("name"), str) for each in functions):
        raise ApiError(
            "tools has to be a list of {'type': 'function', 'function': {'name': …}}",
            param="tools",
        )
    return [each["name"] for each in functions]
