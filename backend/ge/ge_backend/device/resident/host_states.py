"""States of live sequences in host memory, where the device cannot keep them.

Fixed sizes lie in one array with a line per slot, so that a batch is gathered and scattered by one
call each. Sizes that change from step to step lie in a buffer per slot whose capacity grows by
doubling, so that a sequence of n steps allocates log n times, and is given back when another
sequence begins there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ge_backend.device.resident.state_layout import StateLayout, initial_value
from ge_backend.errors import GraphFailed
from ge_backend.model.config.sequence_batching import State
from ge_backend.tensors import Array, Shape, agree

__all__ = ["HostStates"]

# A buffer of more than this many times what a sequence begins with is not kept for the next one.
MAX_SPARE = 4


class HostStates:
    """States in host memory, by slot.

    Raises:
        ModelError: an initial value cannot be read or has another size.
    """

    def __init__(self, layout: StateLayout) -> None:
        self._layout = layout
        self._kept: dict[str, _Fixed | _Growing] = {
            state.input: (_Growing if -1 in state.dims else _Fixed)(
                initial_value(state), layout.count
            )
            for state in layout.states
        }
        self._varying = tuple(state.input for state in layout.states if -1 in state.dims)

    def gather(self, slots: Sequence[int], starting: Sequence[int], rows: int) -> dict[str, Array]:
        """Return the inputs of a run that are states; as `StateStore.run`."""
        found = {name: kept.gather(slots, starting, rows) for name, kept in self._kept.items()}
        if not self._layout.batched:
            return {name: value[0] for name, value in found.items()}
        for state in self._layout.states:
            if state.axis:
                by_rows = found[state.input]
                found[state.input] = np.ascontiguousarray(np.moveaxis(by_rows, 0, state.axis))
        return found

    def keep(self, results: Mapping[str, Array], slots: Sequence[int]) -> dict[str, Shape]:
        """Keep the outputs of a run that are states; return one row's shape of those that vary.

        Raises:
            GraphFailed: one is missing, or not as declared; all are as before then.
        """
        following = {
            state.input: self._next(state, results, slots) for state in self._layout.states
        }
        for name, values in following.items():
            self._kept[name].scatter(slots, values)
        return {name: following[name].shape[1:] for name in self._varying} if self._varying else {}

    def _next(self, state: State, results: Mapping[str, Array], slots: Sequence[int]) -> Array:
        values = results.get(state.output)
        if values is None:
            raise GraphFailed(f"the graph has no output {state.output!r}, which is a state's")
        if not self._layout.batched:
            values = values[None]
        elif state.axis and values.ndim == len(state.dims) + 1:
            values = np.moveaxis(values, state.axis, 0)
        shape = values.shape[1:]
        fits = shape == state.dims or agree(state.dims, shape)
        if not fits or len(values) < len(slots) or values.dtype != state.dtype.numpy:
            raise GraphFailed(
                f"state {state.output!r} came as {values.dtype} {list(values.shape)}; declared is "
                f"{state.dtype.name} {list(state.dims)} for each row"
            )
        return values[: len(slots)]


class _Fixed:
    """A state whose size never changes."""

    def __init__(self, initial: Array, count: int) -> None:
        self._initial = initial
        self._values = np.empty((count, *initial.shape), initial.dtype)

    def gather(self, slots: Sequence[int], starting: Sequence[int], rows: int) -> Array:
        """Return the states of these slots, one row each, and of padding behind them; a copy."""
        if starting:
            self._values[list(starting)] = self._initial
        if len(slots) == 1:  # as below, in a tenth of the time
            kept = self._values[slots[0] : slots[0] + 1].copy()
        else:
            kept = self._values.take(slots, axis=0)
        if rows == len(slots):
            return kept
        gathered = np.empty((rows, *self._initial.shape), self._initial.dtype)
        gathered[: len(slots)] = kept
        gathered[len(slots) :] = self._initial
        return gathered

    def scatter(self, slots: Sequence[int], values: Array) -> None:
        """Keep one row for each slot."""
        if len(slots) == 1:
            self._values[slots[0]] = values[0]
        else:
            self._values[list(slots)] = values


class _Growing:
    """A state whose size changes; the rows of one run have equal sizes."""

    def __init__(self, initial: Array, count: int) -> None:
        self._initial = initial
        self._buffers = [np.empty(0, initial.dtype) for _ in range(count)]
        self._shapes = [initial.shape] * count

    def gather(self, slots: Sequence[int], starting: Sequence[int], rows: int) -> Array:
        for slot in starting:
            self._give_back(slot)
            self._keep(slot, self._initial)
        shapes = {self._shapes[slot] for slot in slots}
        if len(shapes) != 1:
            raise GraphFailed(f"states of different sizes came in one run: {sorted(shapes)}")
        (shape,) = shapes
        gathered = np.empty((rows, *shape), self._initial.dtype)
        gathered[len(slots) :] = b"" if self._initial.dtype == object else 0
        for row, slot in enumerate(slots):
            gathered[row] = self._buffers[slot][: math.prod(shape)].reshape(shape)
        return gathered

    def scatter(self, slots: Sequence[int], values: Array) -> None:
        for slot, value in zip(slots, values, strict=True):
            self._keep(slot, value)

    def _give_back(self, slot: int) -> None:
        """Release what a longer sequence has left, which may be any size."""
        if self._buffers[slot].size > MAX_SPARE * max(1, self._initial.size):
            self._buffers[slot] = np.empty(0, self._initial.dtype)

    def _keep(self, slot: int, value: Array) -> None:
        if self._buffers[slot].size < value.size:
            capacity = 1 << (value.size - 1).bit_length()
            self._buffers[slot] = np.empty(capacity, value.dtype)
        self._buffers[slot][: value.size] = value.reshape(-1)
        self._shapes[slot] = value.shape
