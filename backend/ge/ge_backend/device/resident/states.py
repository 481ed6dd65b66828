"""The states of live sequences between their steps: on the device where it can keep them.

A step copies each row from its slot into the graph's input and from its output back, in the run's
own stream, so that nothing of it crosses the bus.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ge_backend.device.base import Graph
from ge_backend.device.resident.buffers import (
    Bound,
    BoundTensor,
    BufferMemory,
    Copy,
    DeviceBuffer,
    bound_graph,
    memory_of,
)
from ge_backend.device.resident.host_states import HostStates
from ge_backend.device.resident.state_layout import StateLayout, initial_value, row_bytes
from ge_backend.device.resident.store import BufferStore
from ge_backend.errors import GraphFailed, StateLost
from ge_backend.model.config.sequence_batching import State
from ge_backend.tensors import Array, Shape

__all__ = ["StateStore", "open_states"]

# Initial values lie side by side up to this many bytes of each state, so that padding is one copy.
PADDING_BYTES = 1 << 20

_GONE = (
    "the state of this sequence went with the executor that had it; begin the sequence again with "
    "a request that has sequence_start set"
)


def open_states(graph: Graph, layout: StateLayout) -> StateStore:
    """Return the states of a graph's sequences, on its device where that has memory of its own.

    Called once the graph is compiled for its shapes.

    Raises:
        ModelError, OutOfMemory: as `StateStore`.
    """
    return StateStore(graph, layout, memory_of(graph))


class StateStore:
    """The states of the sequences of one graph, each in a slot.

    What changes its size, is made of texts, or cannot be copied row by row on the device lies in
    host memory. Runs of different slots may be made from several threads at once, of one slot not.

    Args:
        graph: stays the caller's.
        layout: which states, and for how many sequences.
        memory: the graph's; None keeps everything in host memory.

    Attributes:
        on_device: the inputs whose states lie there.

    Raises:
        ModelError: an initial value cannot be read or has another size.
        OutOfMemory: the device has no room for the slots.
    """

    def __init__(self, graph: Graph, layout: StateLayout, memory: BufferMemory | None) -> None:
        here = tuple(s for s in layout.states if memory is not None and _stays(s, layout, memory))
        elsewhere = tuple(state for state in layout.states if state not in here)
        self.on_device = tuple(state.input for state in here)
        self._graph = graph
        self._layout = layout
        self._begun: set[int] = set()  # slots that have held a state
        self._host = HostStates(replace(layout, states=elsewhere))
        hidden = layout.hidden - {state.output for state in elsewhere}
        on_device = replace(layout, states=here, hidden=hidden)
        self._device = None if memory is None else _DeviceStates(memory, on_device)

    def run(
        self,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
        slots: Sequence[int],
        starting: Sequence[int],
        *,
        rows: int,
        exclusive: bool,
    ) -> tuple[dict[str, Array], dict[str, Shape]]:
        """Run the graph on these inputs and the slots' states, and keep their next states.

        Inputs, outputs and `exclusive` are as in `Graph.run`. Each real row has one of the slots;
        the `starting` ones begin with the initial value. `rows` counts padding, too.

        Returns:
            The outputs that are not hidden, and the shape of one row of each state as it is now,
            where its size varies.

        Raises:
            GraphFailed, OutOfMemory: as `Graph.run`; the states are as before then.
            StateLost: some states have moved on, and others could not; or a slot has none, whose
                state went with the executor of before.
        """
        if not self._begun.issuperset(set(slots).difference(starting) if starting else slots):
            raise StateLost(_GONE)
        given = {**inputs, **self._host.gather(slots, starting, rows)}
        if self._device is None:
            results = self._graph.run(given, outputs, exclusive=exclusive)
            shapes = self._host.keep(results, slots)
        else:
            with self._device.store.in_use():
                bound = self._device.bound(slots, starting, rows)
                results = bound_graph(self._graph).run_bound(given, outputs, bound)
                try:
                    shapes = self._host.keep(results, slots)
                except GraphFailed as error:
                    if not self.on_device:
                        raise
                    raise StateLost.after(error) from error
        self._begun.update(starting)
        hidden = self._layout.hidden
        return {name: value for name, value in results.items() if name not in hidden}, shapes

    def close(self) -> None:
        """Free the device's slots once the last run is over; a run that comes later fails there."""
        if self._device is not None:
            self._device.store.close()


class _DeviceStates:
    """States in device buffers, by slot.

    Attributes:
        store: has the buffers.
    """

    def __init__(self, memory: BufferMemory, layout: StateLayout) -> None:
        self.store = BufferStore(memory)
        self._layout = layout
        with contextlib.ExitStack() as failing:
            failing.callback(self.store.close)
            self._kept = tuple(_kept(self.store, state, layout) for state in layout.states)
            failing.pop_all()

    def bound(self, slots: Sequence[int], starting: Sequence[int], rows: int) -> Bound:
        """Return what a run takes and leaves here."""
        inputs, outputs = {}, {}
        for kept in self._kept:
            state = kept.state
            shape = state.of_rows(rows, state.dims) if self._layout.batched else state.dims
            taken = [0 if slot in starting else kept.initial + slot for slot in slots]
            taken += [row % kept.initial for row in range(rows - len(slots))]
            inputs[state.input] = BoundTensor(
                dtype=state.dtype, shape=shape, copies=kept.copies(taken, rows)
            )
            outputs[state.output] = BoundTensor(
                dtype=state.dtype,
                shape=shape,
                copies=kept.copies([kept.initial + slot for slot in slots], rows),
            )
        return Bound(inputs=inputs, outputs=outputs, hidden=self._layout.hidden)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """One state in a buffer: its initial value, as often as `initial` says, and then the slots.

    Attributes:
        nbytes: of a row.
        stride: from one row's beginning to the next one's.
    """

    state: State
    buffer: DeviceBuffer
    nbytes: int
    stride: int
    initial: int

    def copies(self, numbers: Sequence[int], rows: int) -> tuple[Copy, ...]:
        """Return what connects a tensor's first rows, of a number, to the rows of these numbers.

        What lies in front of the batch's dimension cuts each row into parts.
        """
        parts = _parts(self.state)
        size = self.nbytes // parts
        return tuple(
            Copy((part * rows + row) * size, self.buffer, number * self.stride + part * size, size)
            for part in range(parts)
            for row, number in enumerate(numbers)
        )


def _kept(store: BufferStore, state: State, layout: StateLayout) -> _Kept:
    """Set memory aside for all slots of a state, its initial value in front."""
    value = np.ascontiguousarray(initial_value(state)).reshape(-1).view(np.uint8)
    stride = -(-value.nbytes // store.memory.alignment) * store.memory.alignment
    times = max(1, min(layout.count, PADDING_BYTES // stride)) if layout.batched else 1
    what = f"state {state.input!r} of {layout.count} sequences"
    buffer = store.take((times + layout.count) * stride, what)
    padded = np.zeros((times, stride), np.uint8)
    padded[:, : value.nbytes] = value
    store.memory.upload(buffer, padded.reshape(-1))
    return _Kept(state=state, buffer=buffer, nbytes=value.nbytes, stride=stride, initial=times)


def _stays(state: State, layout: StateLayout, memory: BufferMemory) -> bool:
    """Whether a state can be copied row by row on the device."""
    nbytes = row_bytes(state)
    return nbytes > 0 and not (layout.batched and nbytes // _parts(state) % memory.alignment)


def _parts(state: State) -> int:
    """Return into how many parts the dimensions in front of the batch's cut each row."""
    return math.prod(state.dims[: state.axis])
