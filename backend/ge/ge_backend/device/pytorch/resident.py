"""What of a torch program's run stays on the accelerator, and how it gets there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from ge_backend.tensors import Array

__all__ = ["NOTHING", "Nothing", "Resident", "ResidentGraph"]

Tensors = Mapping[str, torch.Tensor]


class Resident(Protocol):
    """Inputs of one run that are on the device already, and outputs that are kept there.

    All methods are called by the thread that computes, `rows` and `keep` for a run that is not
    captured, the others for one that is.

    Attributes:
        stand_ins: arrays of the inputs' shapes and types, whose values mean nothing.
        hidden: outputs that do not go to the host as well.
    """

    @property
    def stand_ins(self) -> Mapping[str, Array]:
        """Arrays of the inputs' shapes and types, whose values mean nothing."""

    @property
    def hidden(self) -> frozenset[str]:
        """Outputs that do not go to the host as well."""

    def rows(self) -> Tensors:
        """Return the inputs."""

    def keep(self, results: Tensors) -> None:
        """Keep what is wanted of all outputs."""

    def gather(self, given: Tensors) -> None:
        """Queue copies of the inputs into these places among those of all inputs."""

    def scatter(self, wanted: Tensors) -> None:
        """Queue copies of what is wanted of all outputs."""


class Nothing:
    """A run all of whose inputs come from the host, and whose outputs go there."""

    stand_ins: Mapping[str, Array] = {}
    hidden: frozenset[str] = frozenset()

    def rows(self) -> Tensors:
        """Return no inputs."""
        return {}

    def keep(self, results: Tensors) -> None:
        """Keep none."""

    def gather(self, given: Tensors) -> None:
        """Queue none."""

    def scatter(self, wanted: Tensors) -> None:
        """Queue none."""


NOTHING = Nothing()


class ResidentGraph(Protocol):
    """A graph some of whose tensors may stay on the device."""

    def run_resident(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], resident: Resident
    ) -> dict[str, Array]:
        """Run once; as `Graph.run`, with the other inputs, without the hidden outputs."""
