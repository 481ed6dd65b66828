"""State of live sequences in the executor's own memory, for devices that compute there.

Fixed sizes lie in one array with a line per slot, so that a batch is gathered and scattered by one
call each. Sizes that change from step to step lie in a buffer per slot whose capacity grows by
doubling, so that a sequence of n steps allocates log n times.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from ge_backend.device.base import Graph
from ge_backend.errors import GraphFailed, ModelError
from ge_backend.sequence_batching import State
from ge_backend.tensors import Array, Shape, decode_bytes

__all__ = ["HostSlots", "initial_value"]


class HostSlots:
    """The states of up to `count` sequences of one graph.

    Runs of different slots may be made from several threads at once, runs of one slot not.

    Args:
        graph: runs in host memory; stays the caller's.
        states: what a sequence carries from step to step.
        count: how many sequences live at most.
        batched: tensors begin with a batch dimension; else a run has one sequence.
        hidden: outputs that nobody asked for but their states.

    Raises:
        ModelError: an initial value cannot be read or has another size.
    """

    def __init__(
        self,
        graph: Graph,
        states: Sequence[State],
        count: int,
        *,
        batched: bool,
        hidden: Container[str] = (),
    ) -> None:
        self._graph = graph
        self._states = states
        self._batched = batched
        self._hidden = hidden
        self._kept: dict[str, _Kept] = {
            state.input: (_Growing if -1 in state.dims else _Fixed)(initial_value(state), count)
            for state in states
        }

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
        """
        gathered = {
            state.input: self._rows(self._kept[state.input].gather(slots, fresh, rows))
            for state in self._states
        }
        results = self._graph.run({**inputs, **gathered}, outputs, exclusive=exclusive)
        following = {state: self._next(state, results, slots) for state in self._states}
        for state, values in following.items():
            self._kept[state.input].scatter(slots, values)
        shapes = {state.input: values.shape[1:] for state, values in following.items()}
        shown = {name: value for name, value in results.items() if name not in self._hidden}
        return shown, shapes

    def close(self) -> None:
        """Free the states."""
        self._kept.clear()

    def _rows(self, values: Array) -> Array:
        return values if self._batched else values[0]

    def _next(self, state: State, results: Mapping[str, Array], slots: Sequence[int]) -> Array:
        values = results.get(state.output)
        if values is None:
            raise GraphFailed(f"the graph has no output {state.output!r}, which is a state's")
        values = values if self._batched else values[None]
        row = values.shape[1:]
        fits = len(row) == len(state.dims) and all(
            dim in (-1, size) for dim, size in zip(state.dims, row, strict=True)
        )
        if not fits or len(values) < len(slots) or values.dtype != state.dtype.numpy:
            raise GraphFailed(
                f"state {state.output!r} came as {values.dtype} {list(values.shape)}; declared is "
                f"{state.dtype.name} {list(state.dims)} for each row"
            )
        return values[: len(slots)]


class _Kept(Protocol):
    def gather(self, slots: Sequence[int], fresh: Sequence[int], rows: int) -> Array:
        """Return the states of these slots, one row each, and of padding behind them."""

    def scatter(self, slots: Sequence[int], values: Array) -> None:
        """Keep one row for each slot."""


class _Fixed:
    """A state whose size never changes."""

    def __init__(self, initial: Array, count: int) -> None:
        self._initial = initial
        self._values = np.empty((count, *initial.shape), initial.dtype)

    def gather(self, slots: Sequence[int], fresh: Sequence[int], rows: int) -> Array:
        self._values[list(fresh)] = self._initial
        gathered = np.empty((rows, *self._initial.shape), self._initial.dtype)
        gathered[: len(slots)] = self._values[list(slots)]
        gathered[len(slots) :] = self._initial
        return gathered

    def scatter(self, slots: Sequence[int], values: Array) -> None:
        self._values[list(slots)] = values


class _Growing:
    """A state whose size changes; the rows of one run have equal sizes."""

    def __init__(self, initial: Array, count: int) -> None:
        self._initial = initial
        self._buffers = [np.empty(0, initial.dtype) for _ in range(count)]
        self._shapes = [initial.shape] * count

    def gather(self, slots: Sequence[int], fresh: Sequence[int], rows: int) -> Array:
        for slot in fresh:
            self._keep(slot, self._initial)
        shapes = {self._shapes[slot] for slot in slots}
        if len(shapes) != 1:
            raise GraphFailed(f"states of different sizes came in one run: {sorted(shapes)}")
        (shape,) = shapes
        gathered = np.zeros((rows, *shape), self._initial.dtype)
        for row, slot in enumerate(slots):
            gathered[row] = self._buffers[slot][: math.prod(shape)].reshape(shape)
        return gathered

    def scatter(self, slots: Sequence[int], values: Array) -> None:
        for slot, value in zip(slots, values, strict=True):
            self._keep(slot, value)

    def _keep(self, slot: int, value: Array) -> None:
        if self._buffers[slot].size < value.size:
            capacity = 1 << (value.size - 1).bit_length()
            self._buffers[slot] = np.empty(capacity, value.dtype)
        self._buffers[slot][: value.size] = value.reshape(-1)
        self._shapes[slot] = value.shape


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
    except (OSError, ValueError) as error:
        raise ModelError(
            f"the initial value of state {state.input!r}, {state.initial_file}, is not "
            f"{dtype.name} {list(shape)}: {error}"
        ) from error
