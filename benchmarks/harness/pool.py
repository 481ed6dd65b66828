"""What is sent to a system and what is right for some of it, handed over as one file."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness.requests import Array

__all__ = ["CHECK_EVERY", "Pool", "Script", "load_pools", "save_pools"]

# Every 16th script has its answer checked.
CHECK_EVERY = 16
# Requests that follow one another on one connection: one text, the steps of a sequence, calls that
# make one answer together.
Script = tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Scripts in the order in which they begin.

    Attributes:
        answers: by position in `scripts`: the first tensor of the script's last answer.
        tolerance: how far an element may be from its answer.
        whole: a script is one unit of work, timed from its first request to its last answer;
            otherwise each of its requests is one.
    """

    scripts: tuple[Script, ...]
    answers: Mapping[int, Array] = field(default_factory=dict)
    tolerance: float = 0.0
    whole: bool = False


def save_pools(pools: Mapping[str, Pool], path: Path) -> None:
    """Write pools by name; only this harness's own load generator reads them."""
    path.write_bytes(pickle.dumps(dict(pools)))


def load_pools(path: Path) -> dict[str, Pool]:
    """Return what `save_pools` wrote."""
    pools: dict[str, Pool] = pickle.loads(path.read_bytes())
    return pools
