"""A small retrieval task made of this repository's pages: headings ask for the text below them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ge_backend.tensors import Array

__all__ = ["Found", "Section", "found", "sections"]

HEADING = re.compile(r"^#{1,4} (.+)$", re.MULTILINE)
# Shorter texts say too little to be found by.
MIN_WORDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a page: its heading asks, and its text, without the heading, is to be found."""

    heading: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """How well texts were found.

    Attributes:
        first: the share of headings whose own text came first.
        reciprocal: the mean of one over the place of a heading's own text.
    """

    first: float
    reciprocal: float


def sections(folder: Path) -> list[Section]:
    """Return the sections of all pages in a folder, in the order of their names."""
    made: list[Section] = []
    for page in sorted(folder.rglob("*.md")):
        parts = HEADING.split(page.read_text(encoding="utf-8"))
        for heading, text in zip(parts[1::2], parts[2::2], strict=True):
            if len(text.split()) >= MIN_WORDS:
                made.append(Section(heading=heading.strip(), text=text.strip()))
    return made


def found(queries: Array, texts: Array) -> Found:
    """Return how well each query finds the text at its own place, by the cosine.

    Args:
        queries: FP32 `[N, W]`.
        texts: FP32 `[N, W]`.
    """
    scores = _units(queries) @ _units(texts).T
    places = 1 + (scores > np.diag(scores)[:, np.newaxis]).sum(1)
    return Found(first=float((places == 1).mean()), reciprocal=float((1 / places).mean()))


def _units(vectors: Array) -> Array:
    units: Array = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return units
