"""Tensors of a run that never leave an NPU: their rows are copied from and to other memory there.

`Transfer` makes the copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from ge_backend.device.base import Graph
from ge_backend.device.resident.state_seam import SlotPlan, Slots
from ge_backend.device.resident.tensors import Keeper
from ge_backend.errors import GraphFailed
from ge_backend.tensors import Array, Shape

__all__ = ["NOTHING", "Resident", "ResidentGraph", "Rows", "Spans", "resident_graph"]


class Spans(Protocol):
    """Parts of a tensor that lie elsewhere on the device."""

    def spans(self) -> Iterator[tuple[int, int, int]]:
        """Yield (offset in the tensor, address, bytes); all but the last are multiples of 64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Where the rows of a tensor are kept, the first one first.

    Attributes:
        nbytes: of each.
        places: addresses; a multiple of 64, as are the bytes if there is more than one row.
    """

    nbytes: int
    places: tuple[int, ...]

    def spans(self) -> Iterator[tuple[int, int, int]]:
        """Yield (offset in the tensor, address, bytes) of rows that are kept side by side."""
        begin = 0
        for row in range(1, len(self.places) + 1):
            beside = self.places[begin] + (row - begin) * self.nbytes
            if row == len(self.places) or self.places[row] != beside:
                yield begin * self.nbytes, self.places[begin], (row - begin) * self.nbytes
                begin = row


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """The tensors of one run that stay on the device.

    Attributes:
        shapes: of the inputs among them.
        fills: inputs that are filled with a byte before anything is copied there.
        sources: inputs, and where their rows come from.
        targets: outputs, and where their first rows go.
        promised: outputs whose shape was told beforehand.
        hidden: outputs that are not downloaded as well.
    """

    shapes: Mapping[str, Shape] = field(default_factory=dict)
    fills: Mapping[str, int] = field(default_factory=dict)
    sources: Mapping[str, Spans] = field(default_factory=dict)
    targets: Mapping[str, Rows] = field(default_factory=dict)
    promised: Mapping[str, Shape] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()

    def downloaded(self, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        """Return the shapes of those outputs that are not hidden."""
        return {name: shape for name, shape in shapes.items() if name not in self.hidden}

    def renamed(self, names: Mapping[str, str]) -> Resident:
        """Return the same for a model whose outputs have these names instead."""
        return replace(
            self,
            targets={names[name]: rows for name, rows in self.targets.items()},
            promised={names[name]: shape for name, shape in self.promised.items()},
            hidden=frozenset(names[name] for name in self.hidden),
        )


NOTHING = Resident()


@runtime_checkable
class ResidentGraph(Protocol):
    """A graph some of whose tensors may stay on the device, and states between its runs."""

    def run_resident(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], resident: Resident
    ) -> dict[str, Array]:
        """Run once; as `Graph.run`, with the other inputs, without the hidden outputs."""

    def open_slots(self, plan: SlotPlan, through: ResidentGraph | None = None) -> Slots:
        """Set memory for states aside; see `StatefulGraph.open_slots`.

        Args:
            plan: what to keep.
            through: whose runs use it; another graph that passes them on to this one.
        """

    def keeper(self, through: ResidentGraph | None = None) -> Keeper | None:
        """Return what runs it with tensors that stay; see `KeepingGraph.keeper`, and above."""


def resident_graph(graph: Graph, path: Path | str) -> ResidentGraph:
    """Return the graph.

    Raises:
        GraphFailed: none of its tensors may stay on the device.
    """
    if not isinstance(graph, ResidentGraph):
        raise GraphFailed(f"{path} has shapes that vary freely; no tensor of it stays on the NPU")
    return graph
