"""Measured memory as tables in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Measured", "by_role", "markdown"]

MIB = 1 << 20
ROLES = ("host", "stub", "executor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one system took at its peak.

    Attributes:
        what: `models` or `instances`.
        count: how many of those.
        bytes_by_role: of the processes: `host`, `stub`, `executor`.
    """

    system: str
    what: str
    count: int
    bytes_by_role: Mapping[str, int]

    @property
    def nbytes(self) -> int:
        """Of all processes."""
        return sum(self.bytes_by_role.values())


def markdown(found: Sequence[Measured]) -> str:
    """Return a table: a line per number of models or instances, a column per system, in MiB.

    The last line of each kind says what one more costs, between the smallest and the largest.
    """
    systems = list(dict.fromkeys(measured.system for measured in found))
    by_key = {(m.system, m.what, m.count): m.nbytes / MIB for m in found}
    lines = [f"| | {' | '.join(systems)} |", f"| --- |{' --- |' * len(systems)}"]
    for what in dict.fromkeys(measured.what for measured in found):
        counts = sorted({measured.count for measured in found if measured.what == what})
        for count in counts:
            label = _label(count, what)
            cells = [f"{by_key[system, what, count]:.0f}" for system in systems]
            lines.append(f"| {label} | {' | '.join(cells)} |")
        if len(counts) > 1:
            first, last = counts[0], counts[-1]
            cells = [
                f"{(by_key[s, what, last] - by_key[s, what, first]) / (last - first):.0f}"
                for s in systems
            ]
            lines.append(f"| one more {what.removesuffix('s')} | {' | '.join(cells)} |")
    return "\n".join(lines)


def by_role(found: Sequence[Measured], system: str) -> str:
    """Return a table of one system: what each kind of its processes took, in MiB."""
    lines = ["| | host | stubs | executor |", "| --- | ---: | ---: | ---: |"]
    for measured in (m for m in found if m.system == system):
        sizes = [measured.bytes_by_role.get(role, 0) / MIB for role in ROLES]
        cells = " | ".join(f"{size:.0f}" for size in sizes)
        lines.append(f"| {_label(measured.count, measured.what)} | {cells} |")
    return "\n".join(lines)


def _label(count: int, what: str) -> str:
    return f"{count} {what if count > 1 else what.removesuffix('s')}"
