"""Who keeps the states of live sequences between their steps: the seam that a device may fill.

A graph that can keep them on its device is a `StatefulGraph` as well, and gives its own `Slots`;
for every other graph they lie in host memory (`host_states.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from ge_backend.config.sequence_batching import State
from ge_backend.errors import InvalidRequest, ModelError
from ge_backend.tensors import Array, Shape, decode_bytes

__all__ = ["SlotPlan", "Slots", "StatefulGraph", "initial_value", "row_bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlan:
    """What is kept, and for how many.

    Attributes:
        states: what a sequence carries from step to step.
        count: how many sequences live at most.
        batched: tensors begin with a batch dimension; else a run has one sequence.
        hidden: outputs that no client gets: those that are only states, and what is not declared.
    """

    states: tuple[State, ...]
    count: int
    batched: bool
    hidden: frozenset[str] = frozenset()

    def shown(self, results: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs that somebody asked for."""
        return {name: value for name, value in results.items() if name not in self.hidden}


class Slots(Protocol):
    """The states of the sequences of one graph, each in a slot.

    Runs of different slots may be made from several threads at once, runs of one slot not.
    """

    def run(
        self,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
        slots: Sequence[int],
        fresh: Sequence[int],
        *,
        rows: int,
        exclusive: bool,
    ) -> tuple[dict[str, Array], dict[str, Shape]]:
        """Run the graph on these inputs and the slots' states, and keep their next states.

        Args:
            inputs: as in `Graph.run`.
            outputs: as in `Graph.run`.
            slots: the slot of each real row.
            fresh: those of them that begin with the initial value.
            rows: rows of the batch, padding included.
            exclusive: as in `Graph.run`.

        Returns:
            The outputs that are not hidden, and the shape of one row of each state as it is now.

        Raises:
            GraphFailed, OutOfMemory: as `Graph.run`; the states are as before then.
            StateLost: some states have moved on, and others could not.
        """

    def close(self) -> None:
        """Free the states, once the last run is over; a run that comes later fails."""


@runtime_checkable
class StatefulGraph(Protocol):
    """A graph that can keep states on its device."""

    def open_slots(self, plan: SlotPlan) -> Slots:
        """Set the memory for these states aside; the graph stays the caller's.

        Called once the graph is compiled for its shapes.

        Raises:
            ModelError: an initial value cannot be read or has another size.
            OutOfMemory: the device has not that much left.
        """


def initial_value(state: State) -> Array:
    """Return one row of a state as a sequence begins with it.

    Raises:
        ModelError: its file is missing or has another size.
    """
    shape, dtype = state.initial_dims, state.dtype
    if not state.initial_file:
        zero = b"" if dtype.name == "BYTES" else 0
        return np.full(shape, zero, dtype=dtype.numpy)
    try:
        content = Path(state.initial_file).read_bytes()
        if dtype.name == "BYTES":
            return decode_bytes(content, shape)
        return np.frombuffer(content, dtype.numpy).reshape(shape)
    except (OSError, ValueError, InvalidRequest) as error:
        raise ModelError(
            f"the initial value of state {state.input!r}, {state.initial_file}, is not "
            f"{dtype.name} {list(shape)}: {error}"
        ) from error


def row_bytes(state: State) -> int:
    """Return the bytes of a state's row; 0 where they change from step to step, or are texts."""
    if -1 in state.dims or state.dtype.name == "BYTES":
        return 0
    return math.prod(state.dims) * state.dtype.numpy.itemsize
