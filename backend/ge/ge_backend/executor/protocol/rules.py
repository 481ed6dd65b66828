"""What one field of a message may hold, so that the code behind can add, multiply and index."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

__all__ = ["MAX_ELEMENTS", "MAX_NUMBER", "Rule"]

# Two of them still add up in 64 bits.
MAX_NUMBER = 2**62
# Bounds of shapes: numpy 1 knows no more dimensions; 8 bytes for each element still fit in 64 bits.
MAX_DIMENSIONS = 32
MAX_ELEMENTS = 2**48


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What one field may hold, or each element of it where it is a list.

    Attributes:
        least, most: of a number.
        shape: a list of numbers is a tensor's shape, with bounds of its own; -1 is a free
            dimension where `least` says so.
        choices: the texts there are; empty where any will do.
        words: a text is for people to read and may hold any character.
    """

    least: int = 0
    most: int = MAX_NUMBER
    shape: bool = False
    choices: Collection[str] = ()
    words: bool = False

    def check_number(self, value: int) -> None:
        """See that a number is in range.

        Raises:
            ValueError: it is not.
        """
        if not self.least <= value <= self.most:
            raise ValueError(f"expected {self.least} to {self.most}, got {value}")

    def check_real(self, value: float) -> None:
        """See that a number fits into a float; infinite ones do.

        Raises:
            ValueError: it does not; JSON knows whole numbers of any length.
        """
        if isinstance(value, int) and abs(value) > MAX_NUMBER:
            raise ValueError(f"expected a number of at most {MAX_NUMBER}, got {value}")

    def check_numbers(self, values: Sequence[int]) -> None:
        """See that numbers, each in range, are a shape where one is expected.

        Raises:
            ValueError: numpy could not make such a tensor.
        """
        if not self.shape:
            return
        if len(values) > MAX_DIMENSIONS:
            raise ValueError(f"{len(values)} dimensions, at most {MAX_DIMENSIONS} can be")
        if math.prod(max(1, value) for value in values) > MAX_ELEMENTS:
            raise ValueError(f"a tensor of shape {values} has more than {MAX_ELEMENTS} elements")

    def check_text(self, value: str) -> None:
        """See that a text is one of the choices, and can be a name.

        Raises:
            ValueError: it cannot.
        """
        if self.choices and value not in self.choices:
            raise ValueError(f"expected one of {', '.join(self.choices)}, got {value[:40]!r}")
        if not self.words:
            value.encode("utf-8", "surrogateescape")  # a UnicodeEncodeError is a ValueError
            if "\0" in value:
                raise ValueError(f"{value[:40]!r} has a NUL character")
