"""The sequences of one run and what is right for some of them, handed over as one file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.rivals.forward import Forward, Ids, Rows

__all__ = ["CHECK_EVERY", "Pool", "load_pools", "save_pools", "truth"]

# Every so many-th sequence of the pool has its answer checked.
CHECK_EVERY = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Sequences in the order in which they are sent, and the truth for every 16th.

    Attributes:
        rows: INT64 [length] each.
        answers: FP32 [384] by position in `rows`: each run alone, unpadded, without a server.
        tolerance: how far an element may be from its answer.
    """

    rows: tuple[Ids, ...]
    answers: Mapping[int, Rows]
    tolerance: float


def truth(rows: list[Ids], forward: Forward) -> dict[int, Rows]:
    """Return the answers for the rows that are checked."""
    return {
        position: forward(rows[position][None], np.ones((1, len(rows[position])), np.int64))[0]
        for position in range(0, len(rows), CHECK_EVERY)
    }


def save_pools(pools: Mapping[str, Pool], path: Path) -> None:
    """Write pools, by mix, into one `.npz` file."""
    arrays = {}
    for name, pool in pools.items():
        arrays[f"{name}.ids"] = np.concatenate(pool.rows)
        arrays[f"{name}.lengths"] = np.array([len(row) for row in pool.rows])
        arrays[f"{name}.checked"] = np.array(list(pool.answers))
        arrays[f"{name}.answers"] = np.stack(list(pool.answers.values()))
        arrays[f"{name}.tolerance"] = np.array(pool.tolerance)
    np.savez(path, **arrays)


def load_pools(path: Path) -> dict[str, Pool]:
    """Return the pools of a file that `save_pools` wrote."""
    with np.load(path) as file:
        names = [key.removesuffix(".ids") for key in file.files if key.endswith(".ids")]
        return {
            name: Pool(
                rows=tuple(np.split(file[f"{name}.ids"], np.cumsum(file[f"{name}.lengths"])[:-1])),
                answers=dict(
                    zip(file[f"{name}.checked"].tolist(), file[f"{name}.answers"], strict=True)
                ),
                tolerance=float(file[f"{name}.tolerance"]),
            )
            for name in names
        }
