"""Structures compiled by llguidance, for one tokenizer.

Compiling may take a second for a schema of 64 KiB; like masks it runs without Python's lock, so
that what generates meanwhile goes on. Source: llguidance 1.9.1, `_lib.pyi`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from ge_backend.device.failures import reason
from ge_backend.device.imports import importing
from ge_backend.errors import InvalidRequest, Unsupported
from ge_backend.model.files.tokenizer_file import read_tokenizer
from ge_backend.tensors import Array
from ge_text.models.json_schema import left_out, prepared_text, with_prepared_rules
from ge_text.models.structure import CompileStructure, Guide, Structure, StructureKind
from ge_text.models.timed_compiler import TimedCompiler, on_a_deep_stack

__all__ = ["GrammarGuide", "open_guides"]

log = logging.getLogger(__name__)

EXTRA = "pip install 'triton-ge-backend[structure]'"
KEPT = 32  # compiled structures that are kept for the next request with the same one
# Each state takes 1 to 2 kB, and all texts of a structure share them: 40 MB at most, of the
# library's 500.
MAX_STATES = 20_000
# The library by itself allows one token alone where the text is certain: the one that the tokenizer
# makes of it. That may be a special one, which is no text; without this it allows all that fit.
NO_FORCING = '%llguidance {"no_forcing": true}\n'
FORMATS = {
    StructureKind.REGEX: "regex",
    StructureKind.CHOICE: "choice",
    StructureKind.GRAMMAR: "grammar",
}


def open_guides(tokenizer: Path, vocabulary: int, eos: tuple[int, ...]) -> CompileStructure:
    """Return what compiles structures for a `tokenizer.json`; it keeps some that it made.

    Takes about a second for 50,000 tokens. Where this cannot be done, what is returned says why,
    and only requests that ask for a structure are hurt.

    Args:
        tokenizer: the file.
        vocabulary: the model's; it may have more tokens than the file or fewer.
        eos: tokens that end a text; may be empty.
    """
    try:
        with importing():
            import llguidance
    except ImportError:
        return partial(_refuse, f"needs llguidance; {EXTRA}")
    described = json.loads(read_tokenizer(tokenizer).text)
    described["decoder"] = _with_known_spaces(described.get("decoder"))
    tokens = max(_count(described), vocabulary)
    # The library needs an end: where there is none, one that no model draws.
    ends = [token for token in eos if token < tokens] or [tokens]
    least = max(ends) + 1  # tokens that the file has to have
    _add_tokens(described, least)
    try:
        known = llguidance.LLTokenizer(
            json.dumps(described), n_vocab=max(tokens, least), eos_token=ends
        )
    except ValueError as error:
        return partial(_refuse, f"cannot be had with this tokenizer: {reason(error)}")
    kept = lru_cache(KEPT)(TimedCompiler(partial(_compile, llguidance, known)))

    def compile_structure(structure: Structure) -> Guide:
        guide = kept(structure)
        guide.renew()
        return guide

    return compile_structure


class GrammarGuide:
    """A `Guide`; see there.

    Copies of a matcher share its lexer, and so fail together once that is beyond its limits: then
    each text goes on with a lexer of its own, and fails if it is beyond the limits by itself.

    Args:
        make: returns llguidance's matcher, which never raises: it enters a state of error and stays
            there.
        make_unforced: likewise, where a text is certain that reads like a special token.
        kind: of its structure, for errors.
        matcher: one that has taken these tokens.
        warnings: as `Guide` has them.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        make_unforced: Callable[[], Any],
        kind: StructureKind,
        matcher: Any,
        tokens: Sequence[int] = (),
        warnings: tuple[str, ...] = (),
    ) -> None:
        self.warnings = warnings
        self._make = make
        self._make_unforced = make_unforced
        self._kind = kind
        self._matcher = matcher
        self._tokens = list(tokens)

    @property
    def complete(self) -> bool:
        """Whether the text is whole and nothing may follow."""
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def fork(self) -> GrammarGuide:
        """Return another one for a text with the same beginning."""
        making = self._make, self._make_unforced
        matcher = self._matcher.deep_copy()
        return GrammarGuide(*making, self._kind, matcher, self._tokens, self.warnings)

    def renew(self) -> None:
        """See that texts can begin with it, which took no token. Any thread, at any time."""
        first = self._matcher.deep_copy()
        first.compute_bitmask()
        if first.is_error():
            self._matcher = self._make()

    def advance(self, token: int) -> None:
        """Take a token that was drawn."""
        self._tokens.append(token)
        if not self._matcher.consume_token(token):
            self._begin_anew()

    def mask(self, drafts: Sequence[int] = ()) -> Array:
        """Return which tokens may follow; see `Guide`."""
        bits = self._bits(drafts)
        if self._matcher.is_error():
            self._begin_anew()
            bits = self._bits(drafts)
        if self._matcher.is_error() and drafts:
            return np.zeros(1, np.uint8)
        if self._matcher.is_error():
            error = self._matcher.get_error()
            raise InvalidRequest(f"{self._kind.value} cannot be kept to: {_in_one_line(error)}")
        return np.frombuffer(bits, np.uint8)

    def fitting(self, drafts: Sequence[int]) -> int:
        """Return how many of these tokens may follow."""
        return int(self._matcher.validate_tokens(list(drafts)))

    def _bits(self, drafts: Sequence[int]) -> bytes:
        """Return a bit per token behind drafts, unless the matcher fails over them."""
        taken = 0
        for token in drafts:
            if self._matcher.is_stopped():  # an end behind the end is not counted by `rollback`
                break
            taken += self._matcher.consume_token(token)
        bits: bytes = self._matcher.compute_bitmask()
        if self._is_dead_end(bits):
            self._make = self._make_unforced
            self._begin_anew()
            return self._bits(drafts)
        if taken:
            self._matcher.rollback(taken)
        return bits

    def _is_dead_end(self, bits: bytes) -> bool:
        """Return whether but one token is allowed, and that one does not fit."""
        if self._make is self._make_unforced or self._matcher.is_stopped():
            return False
        allowed = int.from_bytes(bits, "little")
        alone = allowed.bit_count() == 1
        return alone and not self._matcher.validate_tokens([allowed.bit_length() - 1])

    def _begin_anew(self) -> None:
        self._matcher = self._make()
        for token in self._tokens:
            self._matcher.consume_token(token)


def _in_one_line(error: str) -> str:
    return " ".join(error.split())


def _refuse(why: str, structure: Structure) -> Guide:
    raise Unsupported(f"{structure.kind.value} {why}")


def _compile(library: Any, tokenizer: Any, structure: Structure) -> GrammarGuide:
    limits = library.LLParserLimits(max_lexer_states=MAX_STATES, verbose_errors=False)
    try:
        grammar = _grammar(library, structure)
    except ValueError as error:
        raise _impossible(structure, str(error)) from error

    def make(grammar: str) -> Any:
        matcher = library.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        matcher.compute_bitmask()  # the first takes longest, and those that follow build on it
        if matcher.is_error():
            raise _impossible(structure, matcher.get_error())
        return matcher

    first = make(grammar)
    warnings = (*map(_in_one_line, first.get_grammar_warnings()), *_left_out(structure))
    for said in warnings:
        log.warning("%s is kept to but for this: %s", structure.kind.value, said)
    usual, unforced = (
        partial(on_a_deep_stack, partial(make, each)) for each in (grammar, _unforced(grammar))
    )
    return GrammarGuide(usual, unforced, structure.kind, first, warnings=warnings)


def _grammar(library: Any, structure: Structure) -> str:
    if structure.kind is not StructureKind.JSON:
        text = structure.text
        text = with_prepared_rules(text) if structure.kind is StructureKind.GRAMMAR else text
        return str(library.grammar_from(FORMATS[structure.kind], text))
    schema = prepared_text(structure.text)
    return str(library.LLMatcher.grammar_from_json_schema(schema, defaults={}))


def _unforced(grammar: str) -> str:
    """Return a grammar of which every token is allowed that fits, also where a text is certain."""
    if not grammar.startswith('{"grammars":'):
        return NO_FORCING + grammar
    (one,) = json.loads(grammar)["grammars"]
    written, schema = one["lark_grammar"], one["json_schema"]
    return NO_FORCING + (written or f"start: %json {json.dumps(schema)}")


def _left_out(structure: Structure) -> list[str]:
    read = json.loads(structure.text) if structure.kind is StructureKind.JSON else None
    return left_out(read) if isinstance(read, dict) else []


def _impossible(structure: Structure, error: str) -> InvalidRequest:
    return InvalidRequest(f"{structure.kind.value} cannot be compiled: {_in_one_line(error)}")


def _with_known_spaces(decoder: Any) -> Any:
    """Return a decoder whose parts tell the sign of a space where the library looks: in `Replace`.

    `Metaspace` alone is left: the library refuses it, and says so.
    """
    if not decoder or "decoders" not in decoder:
        return decoder
    return {**decoder, "decoders": [_with_known_space(part) for part in decoder["decoders"]]}


def _with_known_space(part: Any) -> Any:
    if part["type"] != "Metaspace":
        return _with_known_spaces(part)
    return {"type": "Replace", "pattern": {"String": part["replacement"]}, "content": " "}


def _add_tokens(tokenizer: Any, least: int) -> None:
    """Give a tokenizer that has fewer tokens this many; the library numbers them by itself."""
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    tokenizer["added_tokens"] = [
        *(tokenizer.get("added_tokens") or ()),
        *(
            {"id": n, "content": f"<token {n}>", "special": True, **dict.fromkeys(flags, False)}
            for n in range(_count(tokenizer), least)
        ),
    ]


def _count(tokenizer: Any) -> int:
    """Return the number of tokens that a `tokenizer.json` has, holes included."""
    vocabulary = tokenizer.get("model", {}).get("vocab", {})
    ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
    added = (token["id"] for token in tokenizer.get("added_tokens") or ())
    return max((*ids, *added), default=0) + 1
