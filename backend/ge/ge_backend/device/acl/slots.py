"""States of live sequences in an NPU's memory: a batch's are gathered and scattered there.

A step copies each row from its slot into the model's input and from its output back, on the run's
stream, and nothing of it crosses the bus. Such copies must begin at 64-byte boundaries, so this is
for states whose rows are multiples of 64 bytes, as those are that are worth it; the others, and
those that change their size, go through host memory. Rows in neighbouring slots share a copy.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ge_backend.config.sequence_batching import State
from ge_backend.device.acl.codes import ALIGNMENT
from ge_backend.device.acl.device import AclDevice
from ge_backend.device.acl.memory import Block, Staging
from ge_backend.device.acl.resident import Resident, ResidentGraph, Rows
from ge_backend.device.resident.host_states import HostStates
from ge_backend.device.resident.state_seam import SlotPlan, initial_value, row_bytes
from ge_backend.errors import GraphFailed, StateLost
from ge_backend.tensors import Array, Shape

__all__ = ["AclSlots"]

# Initial values lie side by side up to so many bytes of each state, so that padding is one copy.
PADDING_BYTES = 1 << 20


class AclSlots:
    """The states of one graph's sequences; see `Slots`.

    Args:
        device: the graph's.
        timeout_ms: how long a copy may take before the device counts as failed.
        graph: stays the caller's.
        plan: what to keep.

    Raises:
        ModelError: an initial value cannot be read or has another size.
        OutOfMemory: there is no room for the slots.
    """

    def __init__(
        self, device: AclDevice, timeout_ms: int, graph: ResidentGraph, plan: SlotPlan
    ) -> None:
        self._device = device
        self._graph = graph
        self._plan = plan
        self._changed = threading.Condition()
        self._users = 0
        self._closed = False
        here = tuple(state for state in plan.states if _stays(state, plan))
        elsewhere = tuple(state for state in plan.states if state not in here)
        self._host = HostStates(replace(plan, states=elsewhere))
        self._hidden = plan.hidden - {state.output for state in elsewhere}
        initial = {state.input: _side_by_side(state, plan) for state in here}
        with contextlib.ExitStack() as taken, device.stream(timeout_ms) as stream:
            sizes = {name: value.nbytes for name, value in initial.items()}
            self._initial = Staging(device.runtime, sizes, "initial states of sequences")
            taken.callback(self._initial.close)
            for name, value in initial.items():
                slot = self._initial[name]
                np.copyto(slot.bytes, value)
                device.runtime.upload(slot.device, slot.host, value.nbytes, stream)
            device.runtime.synchronise(stream, timeout_ms)
            self._kept = tuple(_Kept(device, state, plan.count, taken) for state in here)
            self._taken = taken.pop_all()

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
        """Run once; see `Slots.run`."""
        del exclusive  # a run has all cores as it is
        with self._in_use():
            gathered = self._host.gather(slots, fresh, rows)
            resident = self._resident(slots, fresh, rows)
            results = self._graph.run_resident({**inputs, **gathered}, outputs, resident)
            try:
                shapes = self._host.keep(results, slots)
            except GraphFailed as error:
                if not self._kept:
                    raise
                raise StateLost.after(error) from error
        shapes |= {kept.state.input: kept.state.dims for kept in self._kept}
        return self._plan.shown(results), shapes

    def close(self) -> None:
        """Free the slots once no run uses them; see `Slots.close`."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._users)
        self._device.settle()
        self._taken.close()

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        """Keep the slots from being freed."""
        with self._changed:
            if self._closed:
                raise GraphFailed("the states were given back before this run")
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    def _resident(self, slots: Sequence[int], fresh: Sequence[int], rows: int) -> Resident:
        shapes, sources, targets = {}, {}, {}
        padding = rows - len(slots)
        for kept in self._kept:
            state, initial = kept.state, self._initial[kept.state.input]
            first, known = initial.device, initial.bytes.nbytes // kept.nbytes
            shapes[state.input] = (rows, *state.dims) if self._plan.batched else state.dims
            places = tuple(first if slot in fresh else kept.place(slot) for slot in slots)
            places += tuple(first + row % known * kept.nbytes for row in range(padding))
            sources[state.input] = Rows(nbytes=kept.nbytes, places=places)
            targets[state.output] = Rows(nbytes=kept.nbytes, places=tuple(map(kept.place, slots)))
        return Resident(shapes=shapes, sources=sources, targets=targets, hidden=self._hidden)


class _Kept:
    """One state's slots, side by side."""

    def __init__(
        self, device: AclDevice, state: State, count: int, taken: contextlib.ExitStack
    ) -> None:
        self.state = state
        self.nbytes = row_bytes(state)
        self._stride = -(-self.nbytes // ALIGNMENT) * ALIGNMENT
        what = f"state {state.input!r} of {count} sequences"
        self._block = Block(device.runtime, count * self._stride, what)
        taken.callback(self._block.close)

    def place(self, slot: int) -> int:
        """Return the address of a slot."""
        return self._block.address + slot * self._stride


def _side_by_side(state: State, plan: SlotPlan) -> Array:
    """Return the bytes of a state's initial value, as often as padding may want it at once."""
    value = np.ascontiguousarray(initial_value(state)).reshape(-1).view(np.uint8)
    times = max(1, min(plan.count, PADDING_BYTES // value.nbytes)) if plan.batched else 1
    return np.tile(value, times)


def _stays(state: State, plan: SlotPlan) -> bool:
    """Whether a state can be copied row by row on the device."""
    nbytes = row_bytes(state)
    return nbytes > 0 and not (plan.batched and nbytes % ALIGNMENT)
