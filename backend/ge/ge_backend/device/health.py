"""What a device says about itself, where it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

__all__ = ["Health", "Monitored"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """A device at some moment; what it does not say is -1.

    Attributes:
        abnormal: 1: its driver says that it cannot be used; 0: it can.
        cube, vector, aicpu: how busy these units are, in percent, by all users.
    """

    abnormal: int = -1
    cube: int = -1
    vector: int = -1
    aicpu: int = -1


@runtime_checkable
class Monitored(Protocol):
    """A `Device` that can be asked how it is, at any time and from any thread."""

    def health(self) -> Health:
        """Return how it is now; never raises."""
