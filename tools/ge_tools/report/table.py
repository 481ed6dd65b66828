"""Tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["table"]


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, names: int = 0, left: int = 0
) -> list[str]:
    """Return columns under a header, right-aligned but for the first `names` and last `left`."""
    first_left = len(header) - left
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if at < names or at >= first_left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (header, *rows)
    ]
