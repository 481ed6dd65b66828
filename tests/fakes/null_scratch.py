"""The null device's memory: how much is left, and scratch in which a neighbour's writing shows.

A run fills its range of the pool with a mark of its own, and at its end looks whether it is still
there; then it leaves poison. If two runs ever use the same bytes at once, at least one of them
finds that out, and its graph gives wrong results, as a real device would.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ge_backend.device.base import Range, Workspace
from ge_backend.errors import ModelError, OutOfMemory
from ge_backend.tensors import Array, Shape

__all__ = ["DeviceMemory", "Mark", "Scratch"]

POISON = 0xA5
MARKS = tuple(mark for mark in range(1, 256) if mark != POISON)


class DeviceMemory:
    """The memory of one null device.

    Args:
        total_bytes: all of it; weights and the pool are taken from it.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.pool: Array | None = None
        self._used_bytes = 0
        self._lock = threading.Lock()
        self._marks = itertools.cycle(MARKS)

    @property
    def free_bytes(self) -> int:
        """What nobody has taken."""
        return self.total_bytes - self._used_bytes

    def take(self, nbytes: int, what: str) -> None:
        """Take some for weights or whatever else stays.

        Raises:
            OutOfMemory: there is less; says both numbers.
        """
        with self._lock:
            if nbytes > self.free_bytes:
                raise OutOfMemory(f"{what} takes {nbytes} bytes, {self.free_bytes} are free")
            self._used_bytes += nbytes

    def give_back(self, nbytes: int) -> None:
        """Give back what was taken."""
        with self._lock:
            self._used_bytes -= nbytes

    def reserve(self, nbytes: int) -> None:
        """Set a pool aside, full of poison."""
        self.take(nbytes, "the workspace pool")
        self.pool = np.full(nbytes, POISON, np.uint8)

    def mark(self, place: Range | None) -> Mark | None:
        """Mark a range of the pool for one run; None where there is nothing to mark."""
        if self.pool is None or place is None:
            return None
        with self._lock:
            value = next(self._marks)
        mark = Mark(self.pool[place.offset : place.end], value)
        mark.memory.fill(value)
        return mark


@dataclass(frozen=True, slots=True)
class Mark:
    """A run's own bytes in the pool, and what they should hold."""

    memory: Array
    value: int

    def end(self) -> bool:
        """Leave poison; return whether nobody else had written there."""
        intact = bool((self.memory == self.value).all())
        self.memory.fill(POISON)
        return intact


class Scratch:
    """What one graph needs beside its weights, and where it lies.

    Args:
        declared: `workspace_bytes` of the model file: a number, which is taken when the graph is
            loaded, as an offline model's; or one per shape of the first input and `*` for any
            other, as engines have that manage their own scratch. None: not known.
        compiled: a need per shape is taken when the shapes are compiled, and lies at a fixed range.
        memory: of the device; scratch is taken from it where there is no pool.
        workspace: the graph's place in the pool.
        path: of the model file, for errors.

    Raises:
        ModelError: `declared` is nothing of that kind.
        OutOfMemory: it does not fit.
    """

    def __init__(
        self,
        declared: object,
        *,
        compiled: bool,
        memory: DeviceMemory,
        workspace: Workspace,
        path: str,
    ) -> None:
        self._needs = _needs(declared, path)
        self._compiled = compiled
        self._memory = memory
        self._workspace = workspace
        self._path = path
        self._own_bytes = 0
        self._place: Range | None = None
        if isinstance(declared, int):
            self._settle(declared)

    @property
    def known(self) -> bool:
        """Whether the model file says what is needed."""
        return bool(self._needs)

    def need(self, shape: Shape) -> int:
        """Return the bytes that a run with this shape of its first input needs."""
        key = "x".join(map(str, shape))
        return self._needs.get(key, self._needs.get("*", 0))

    def compile(self, shapes: list[Shape]) -> None:
        """Take what the largest of these shapes of the first input needs."""
        if self._compiled and "" not in self._needs:
            self._settle(max(map(self.need, shapes), default=0))

    def mark(self) -> Mark | None:
        """Begin a run; see `DeviceMemory.mark`."""
        return self._memory.mark(self._place)

    def close(self) -> None:
        """Give back what was not the pool's."""
        self._memory.give_back(self._own_bytes)

    def _settle(self, nbytes: int) -> None:
        if self._memory.pool is not None:
            self._place = self._workspace.place(nbytes)
            return
        self._memory.take(nbytes - self._own_bytes, f"the workspace of {self._path}")
        self._own_bytes = nbytes


def _needs(declared: object, path: str) -> Mapping[str, int]:
    """Return the bytes by shape; a number is for any, and under the key "" as well."""
    if declared is None:
        return {}
    needs = {"": declared, "*": declared} if isinstance(declared, int) else declared
    if not isinstance(needs, dict) or not all(isinstance(n, int) for n in needs.values()):
        raise ModelError(
            f"{path}: workspace_bytes is {declared!r}; expected bytes, or bytes by shape"
        )
    return needs
