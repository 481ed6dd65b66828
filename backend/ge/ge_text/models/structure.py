"""The structure that a text has to have, and who says which tokens keep to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from ge_backend.tensors import Array

__all__ = ["CompileStructure", "Guide", "Structure", "StructureKind"]


class StructureKind(Enum):
    """What a structure is written in, under the parameter's name: vLLM's."""

    JSON = "guided_json"
    REGEX = "guided_regex"
    CHOICE = "guided_choice"
    GRAMMAR = "guided_grammar"


@dataclass(frozen=True, slots=True)
class Structure:
    """A structure as its client wrote it.

    Attributes:
        text: a JSON schema, a regular expression, a JSON list of texts, or a grammar.
    """

    kind: StructureKind
    text: str


class Guide(Protocol):
    """A compiled structure, and how far one text has come in it. Not for several threads.

    Its state is the tokens it was advanced by and nothing else, so it can be made again from them.
    """

    @property
    def warnings(self) -> tuple[str, ...]:
        """What its structure says and is not kept to, in the compiler's words."""

    @property
    def complete(self) -> bool:
        """Whether the text is whole and nothing may follow."""

    def fork(self) -> Guide:
        """Return another one for a text with the same beginning. Any thread, at any time."""

    def advance(self, token: int) -> None:
        """Take a token that was drawn. Where it does not fit, every later `mask` raises."""

    def mask(self, drafts: Sequence[int] = ()) -> Array:
        """Return which tokens may follow: uint8 [bytes], a bit each, lowest first.

        Tokens behind its last bit may not follow. Ends of text may where the text is whole. None
        may behind drafts that drive the structure beyond its limits.

        Args:
            drafts: tokens that are assumed to follow first, as many as `fitting` says at most.

        Raises:
            InvalidRequest: the structure is beyond its limits; says which.
        """

    def fitting(self, drafts: Sequence[int]) -> int:
        """Return how many of these tokens may follow, one after the other."""


# Raises InvalidRequest with the compiler's words; Unsupported where no structure can be kept here.
CompileStructure = Callable[[Structure], Guide]
