"""Roots that are not installed: `GE_ABSENT=ge_text,ge_tools pytest tests/backend` runs without them.

An installation that serves encoders leaves `ge_text` out; its tests must not need it either.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

__all__ = ["Absent", "leave_out"]


class Absent(MetaPathFinder):
    """Finds nothing of some packages, as if their folders were not there."""

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = frozenset(roots)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        """Refuse an absent package; leave all others to the next finder."""
        root = name.partition(".")[0]
        if root in self._roots:
            raise ModuleNotFoundError(f"No module named {root!r}", name=root)


def leave_out(names: str) -> None:
    """Make the packages of a list, with commas between them, absent from now on."""
    roots = [name for name in names.split(",") if name]
    if roots:
        sys.meta_path.insert(0, Absent(roots))
