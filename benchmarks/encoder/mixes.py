"""The traffic: how long sequences are, and what is in them. Seeded, so that every run is equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.rivals.forward import Ids

__all__ = ["MIXES", "Mix", "draw"]

MEDIAN = 24
SIGMA = 0.8
LONGEST = 256
# all-MiniLM-L6-v2: [CLS] and [SEP], and ids that are ordinary words.
FIRST_ID, LAST_ID = 101, 102
WORD_IDS = (1000, 20000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """One kind of traffic; `lengths` draws so many sequence lengths, in tokens."""

    name: str
    help: str
    lengths: Callable[[np.random.Generator, int], Ids]


def _lognormal(generator: np.random.Generator, count: int) -> Ids:
    drawn = np.rint(generator.lognormal(np.log(MEDIAN), SIGMA, count))
    lengths: Ids = np.clip(drawn, 3, LONGEST).astype(np.int64)
    return lengths


def _uniform(generator: np.random.Generator, count: int) -> Ids:
    return generator.integers(8, 128, count, np.int64, endpoint=True)


MIXES: Mapping[str, Mix] = {
    mix.name: mix
    for mix in (
        Mix(
            name="lognormal",
            help=f"log-normal, median {MEDIAN}, sigma {SIGMA}, clipped to 3..{LONGEST}",
            lengths=_lognormal,
        ),
        Mix(name="uniform", help="uniform, 8..128", lengths=_uniform),
    )
}


def draw(mix: Mix, count: int, seed: int) -> list[Ids]:
    """Return `count` sequences, INT64 [length], in the order in which they are sent."""
    generator = np.random.default_rng(seed)
    rows = [generator.integers(*WORD_IDS, length) for length in mix.lengths(generator, count)]
    for row in rows:
        row[0], row[-1] = FIRST_ID, LAST_ID
    return rows
