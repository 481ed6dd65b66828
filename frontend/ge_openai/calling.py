"""How an answer to a chat may call tools: what holds it to that, and what reads the calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ge_openai.call_forms import LISTED, CallForm
from ge_openai.chat_template import ChatTemplate
from ge_openai.schemas import tool_schemas
from ge_openai.structure import FREE, Held, call_or_format, format_alone, named_call
from ge_openai.text_body import ChatBody
from ge_openai.tool_calls import MakeReader, NamedCall

__all__ = ["Calling", "read_calling"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calling:
    """How an answer may call tools.

    Attributes:
        held: what it has to be.
        reader: reads its calls; None: there are none to read.
        sampling: parameters that the reader needs.
    """

    held: Held
    reader: MakeReader | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)


def read_calling(asked: ChatBody, template: ChatTemplate) -> Calling:
    """Return how the answer to a chat may call tools.

    A tool that has to be called goes before the answer's format. Where none has to, the answer is
    calls in the model's own form, or in the format: one structure, of which the model chooses.

    Raises:
        ApiError: a tool's schema allows no object.
    """
    if asked.forced:
        name = asked.forced
        return Calling(held=named_call(name, asked.tools), reader=lambda: NamedCall(name))
    form = template.calls if asked.tools else None
    if asked.forced is not None:
        return _calling(form or LISTED, asked, template)
    answer = format_alone(asked.answer) if asked.answer else FREE
    return Calling(held=answer) if form is None else _calling(form, asked, template)


def _calling(form: CallForm, asked: ChatBody, template: ChatTemplate) -> Calling:
    tags = template.tokens if form.tags else None
    held = FREE
    if asked.answer or asked.forced is not None:
        answer = asked.answer if asked.forced is None else None
        tokens = tags.ids if tags else {}
        held = call_or_format(form, asked.tools, answer, tokens, several=asked.several)
    special = tags is not None and not tags.special.isdisjoint(form.tags)
    return Calling(
        held=held,
        reader=partial(form.reader, tool_schemas(asked.tools)),
        # Else tags that are special tokens would be missing, and with them the calls.
        sampling={"skip_special_tokens": False} if special else {},
    )
