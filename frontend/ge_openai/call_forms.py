"""How families of models write calls of tools, and the grammars that hold them to it.

A grammar is Lark's, as llguidance has it: `<[id]>` is a token, and `%json` a JSON schema, each with
a root of its own. Source: llguidance 1.9.1, docs/syntax.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ge_openai.function_calls import FUNCTION, TEXT_RULE, parameter_rules, typed_calls
from ge_openai.schemas import Schema
from ge_openai.tool_calls import (
    CLOSE,
    OPEN,
    PYTHON,
    BareCalls,
    CallReader,
    ListedCalls,
    TaggedCalls,
    TrailingCalls,
)

__all__ = ["LISTED", "CallForm", "call_rules", "form_of"]

# Llama's templates say in their instructions what a call looks like.
BARE_MARKS = ('{"name": function name, "parameters": dictionary', '"parameters": dictionary of')
GRANITE, MISTRAL = "<|tool_call|>", "[TOOL_CALLS]"
CALL_ID, ARGS = "[CALL_ID]", "[ARGS]"
_ONE = '"{" ws "\\"name\\"" ws ":" ws NAME ws "," ws "\\"%s\\"" ws ":" ws ARGUMENTS ws "}"'
_LIST = '"[" ws one (ws "," ws one)* ws "]"'
_LIST_OF_ONE = '"[" ws one ws "]"'
# Nothing, a space, or a line's end and indentation, as within JSON.
_WS = r"ws: /( |\n {0,16})?/"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """How a family of models writes calls.

    Attributes:
        reader: reads them, of tools whose arguments have these schemas.
        tags: texts that its tokenizers may have as tokens, special ones among them.
        one: a call, as a rule of NAME and ARGUMENTS.
        single, several: an answer that is one, or more, of the rule `one`.
        bare: NAME is no JSON.
        typed: ARGUMENTS are a parameter each, as `parameter_rules` has them, and no JSON.
    """

    reader: Callable[[Mapping[str, Schema]], CallReader]
    tags: tuple[str, ...] = ()
    one: str = _ONE % "arguments"
    single: str = _LIST_OF_ONE
    several: str = _LIST
    bare: bool = False
    typed: bool = False

    def argument_rules(self, schemas: Sequence[Schema]) -> tuple[list[str], dict[str, Schema]]:
        """Return the rules of arguments, `arguments_0` and so on: lines, and schemas by rule."""
        if not self.typed:
            return [], {f"arguments_{number}": each for number, each in enumerate(schemas)}
        lines, rules = [TEXT_RULE], dict[str, Schema]()
        for number, each in enumerate(schemas):
            own, values = parameter_rules(number, each)
            lines += own
            rules |= values
        return lines, rules


def _trailing(tag: str) -> CallForm:
    return CallForm(
        reader=lambda _: TrailingCalls(tag),
        tags=(tag,),
        single=f"{tag} ws {_LIST_OF_ONE}",
        several=f"{tag} ws {_LIST}",
    )


def _mistral_by_name(template: str) -> CallForm:
    identified = f"({CALL_ID} /[a-zA-Z0-9]{{9}}/)? " if CALL_ID in template else ""
    return CallForm(
        reader=lambda _: TrailingCalls(MISTRAL),
        tags=(MISTRAL, CALL_ID, ARGS),
        one=f"{MISTRAL} NAME {identified}{ARGS} ws ARGUMENTS",
        single="one",
        several="one+",
        bare=True,
    )


# That of no family: where calls are asked for and the model's own form is not known.
LISTED = CallForm(reader=lambda _: ListedCalls())
_HERMES = CallForm(
    reader=lambda _: TaggedCalls(),
    tags=(OPEN, CLOSE),
    single=f"{OPEN} ws one ws {CLOSE}",
    several=f"{OPEN} ws one ws {CLOSE} (ws {OPEN} ws one ws {CLOSE})*",
)
_FUNCTIONS = replace(
    _HERMES,
    reader=typed_calls,
    one=f'"{FUNCTION}" NAME ">\\n" ARGUMENTS "</function>"',
    bare=True,
    typed=True,
)
_LLAMA = CallForm(
    reader=lambda _: BareCalls(),
    one=_ONE % "parameters",
    single="one",
    several='one (ws ";" ws one)*',
)
_LLAMA_WITH_PYTHON = CallForm(
    reader=lambda _: BareCalls(),
    tags=(PYTHON,),
    one=_LLAMA.one,
    single=f"{PYTHON}? {_LLAMA.single}",
    several=f"{PYTHON}? {_LLAMA.several}",
)


def form_of(template: str) -> CallForm | None:
    """Return how a chat template's model writes calls; None where that is not known."""
    if MISTRAL in template:
        return _mistral_by_name(template) if ARGS in template else _trailing(MISTRAL)
    if GRANITE in template:
        return _trailing(GRANITE)
    if OPEN in template:
        return _FUNCTIONS if FUNCTION in template else _HERMES
    if any(mark in template for mark in BARE_MARKS):
        return _LLAMA_WITH_PYTHON if PYTHON in template else _LLAMA
    return None


def call_rules(
    form: CallForm, names: Sequence[str], tokens: Mapping[str, int], *, several: bool
) -> list[str]:
    """Return the lines of a grammar whose rule `calls` is an answer that calls tools.

    The rules of arguments, `arguments_0` and so on, are the caller's. `names` are the tools',
    `tokens` those that were added to the tokenizer's vocabulary, by their text; an answer may have
    `several` calls.
    """
    one = _written(form.one, form, tokens)
    return [
        f"calls: {_written(form.several if several else form.single, form, tokens)}",
        f"one: {' | '.join(f'one_{number}' for number in range(len(names)))}",
        *(
            f"one_{number}: "
            + one.replace("ARGUMENTS", f"arguments_{number}").replace("NAME", _name(form, name))
            for number, name in enumerate(names)
        ),
        _WS,
    ]


def _written(rule: str, form: CallForm, tokens: Mapping[str, int]) -> str:
    """Return a rule with its tags as the tokenizer has them: as tokens, or as text."""
    for tag in form.tags:
        rule = rule.replace(tag, f"<[{tokens[tag]}]>" if tag in tokens else _literal(tag))
    return rule


def _name(form: CallForm, name: str) -> str:
    return _literal(name if form.bare else _literal(name))


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
