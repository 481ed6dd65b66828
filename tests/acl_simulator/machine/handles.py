"""Handles: the opaque numbers for streams, events, datasets, descriptions and so on."""

from collections.abc import Hashable
from typing import Any

from acl_simulator.codes import Code
from acl_simulator.refusals import Misuses, Refusal

__all__ = ["Handles"]

BASE, STEP = 0x5500_0000_0000, 0x40


class Handles:
    """Every handle ever given out, and what it stands for. None is given out twice."""

    def __init__(self, misuses: Misuses) -> None:
        self._misuses = misuses
        self._things: dict[int, tuple[str, Any]] = {}
        self._released: dict[int, str] = {}

    def issue(self, kind: str, thing: Hashable) -> int:
        """Return a new handle of a kind for a thing."""
        handle = BASE + STEP * (len(self._things) + len(self._released) + 1)
        self._things[handle] = kind, thing
        return handle

    def get(self, kind: str, handle: int, code: Code = Code.INVALID_PARAM) -> Any:
        """Return what a handle stands for.

        Raises:
            Refusal: it is 0.
            Misuse: it is none, one of another kind, or one that was destroyed.
        """
        if handle == 0:
            raise Refusal(code, f"the {kind} is null")
        if handle in self._released:
            self._misuses.refuse(f"use of {kind} {handle:#x} after it was destroyed")
        held, thing = self._things.get(handle, ("", None))
        if held != kind:
            self._misuses.refuse(f"{handle:#x} is not a {kind} but {held or 'nothing'}")
        return thing

    def release(self, kind: str, handle: int) -> Any:
        """Take a handle back and return what it stood for."""
        if handle in self._released:
            self._misuses.refuse(f"{kind} {handle:#x} is destroyed twice")
        thing = self.get(kind, handle)
        del self._things[handle]
        self._released[handle] = kind
        return thing

    def live(self) -> list[tuple[str, int, Any]]:
        """Return kind, handle and thing of all that were not destroyed."""
        return [(kind, handle, thing) for handle, (kind, thing) in self._things.items()]
