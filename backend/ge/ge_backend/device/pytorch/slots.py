"""States of live sequences in an accelerator's memory: a batch's are gathered and scattered there.

Each state is one tensor with a row per slot, and one more for the value that sequences begin with.
A step tells the device which rows it wants, which is all that crosses the bus of them: one
operator picks them into the captured graph's input, another puts its output back.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from ge_backend.config.sequence_batching import State
from ge_backend.device.pytorch.capture import PLACES
from ge_backend.device.pytorch.packing import Packing
from ge_backend.device.pytorch.resident import ResidentGraph
from ge_backend.device.pytorch.streams import Streams
from ge_backend.device.pytorch.vendor import Vendor
from ge_backend.device.resident.host_states import HostStates
from ge_backend.device.resident.state_seam import SlotPlan, initial_value, row_bytes
from ge_backend.errors import GraphFailed, StateLost
from ge_backend.tensors import Array, Shape

__all__ = ["TorchSlots"]

Tensors = Mapping[str, torch.Tensor]
INDEX = torch.int64


class TorchSlots:
    """The states of one graph's sequences; see `Slots`.

    States that change their size go through host memory.

    Args:
        streams: the device's.
        graph: stays the caller's.
        plan: what to keep.

    Raises:
        ModelError: an initial value cannot be read or has another size.
        RuntimeError: there is no room for the slots.
    """

    def __init__(self, streams: Streams, graph: ResidentGraph, plan: SlotPlan) -> None:
        self._graph = graph
        self._plan = plan
        here = tuple(state for state in plan.states if row_bytes(state))
        elsewhere = tuple(state for state in plan.states if state not in here)
        self._host = HostStates(replace(plan, states=elsewhere))
        self._states = here
        self._hidden = plan.hidden - {state.output for state in elsewhere}
        self._kept: Tensors | None = _kept(streams, here, plan.count)
        self._indices: queue.SimpleQueue[_Index] = queue.SimpleQueue()
        for _ in range(PLACES):
            self._indices.put(_Index(streams.vendor))

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
        del exclusive  # one run computes at a time, and it has the device
        kept = self._kept
        if kept is None:
            raise GraphFailed("the states were given back before this run")
        gathered = self._host.gather(slots, fresh, rows)
        first = self._plan.count
        sources = [first if slot in fresh else slot for slot in slots]
        sources += [first] * (rows - len(slots))
        with self._index() as index:
            step = _Step(
                states=self._states,
                kept=kept,
                index=index,
                sources=sources,
                targets=slots,
                batched=self._plan.batched,
                hidden=self._hidden,
            )
            results = self._graph.run_resident({**inputs, **gathered}, outputs, step)
        try:
            shapes = self._host.keep(results, slots)
        except GraphFailed as error:
            if not self._states:
                raise
            raise StateLost.after(error) from error
        shapes |= {state.input: state.dims for state in self._states}
        return self._plan.shown(results), shapes

    def close(self) -> None:
        """Let the states go; a run in flight still has them."""
        self._kept = None

    @contextlib.contextmanager
    def _index(self) -> Iterator[_Index]:
        index = self._indices.get()
        try:
            yield index
        finally:
            self._indices.put(index)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One run's states; see `Resident`.

    Attributes:
        kept: all rows of each state, by input.
        sources: the rows that the run's rows begin with.
        targets: the rows that its first rows end in.
    """

    states: tuple[State, ...]
    kept: Tensors
    index: _Index
    sources: Sequence[int]
    targets: Sequence[int]
    batched: bool
    hidden: frozenset[str]

    @property
    def stand_ins(self) -> Mapping[str, Array]:
        """See `Resident`."""
        leading = (len(self.sources),) if self.batched else ()
        return {
            state.input: np.broadcast_to(np.zeros((), state.dtype.numpy), (*leading, *state.dims))
            for state in self.states
        }

    def rows(self) -> Tensors:
        """See `Resident`."""
        found = {}
        for name, kept in self.kept.items():
            rows = kept[torch.tensor(self.sources, device=kept.device)]
            found[name] = rows if self.batched else rows[0]
        return found

    def keep(self, results: Tensors) -> None:
        """See `Resident`."""
        for state in self.states:
            kept = self.kept[state.input]
            kept[torch.tensor(self.targets, device=kept.device)] = self._next(state, results)

    def gather(self, given: Tensors) -> None:
        """See `Resident`."""
        self.index.upload(self.sources, self.targets)
        for name, kept in self.kept.items():
            place = given[name] if self.batched else given[name][None]
            self.index.vendor.pick(place, kept, self.index.sources)

    def scatter(self, wanted: Tensors) -> None:
        """See `Resident`."""
        for state in self.states:
            rows = self._next(state, wanted)
            self.index.vendor.put(self.kept[state.input], self.index.targets, rows)

    def _next(self, state: State, results: Tensors) -> torch.Tensor:
        result = results.get(state.output)
        if result is None:
            raise GraphFailed(f"the graph has no output {state.output!r}, which is a state's")
        rows = result if self.batched else result[None]
        return rows[: len(self.targets)]


class _Index:
    """Numbers of rows on the device, for one run at a time.

    Attributes:
        sources, targets: of the last upload, once the stream has come so far.
    """

    def __init__(self, vendor: Vendor) -> None:
        self.vendor = vendor
        self.sources = self.targets = torch.empty(0, dtype=INDEX)
        self._room = 0

    def upload(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Queue the copy in the current stream, which has done the one before."""
        numbers = [*sources, *targets]
        if self._room < len(numbers):  # only in a bucket's first run
            self._room = len(numbers)
            self._sent = self.vendor.pinned(self._room * INDEX.itemsize).view(INDEX)
            self._there = self.vendor.empty(self._room * INDEX.itemsize).view(INDEX)
        self._sent[: len(numbers)] = torch.tensor(numbers, dtype=INDEX)
        self.vendor.copy(self._there[: len(numbers)], self._sent[: len(numbers)])
        self.sources = self._there[: len(sources)]
        self.targets = self._there[len(sources) : len(numbers)]


def _kept(streams: Streams, states: Sequence[State], count: int) -> Tensors:
    """Return the rows of all slots, and behind them one of the initial value, for each state."""
    vendor = streams.vendor
    kinds = {state.input: getattr(torch, state.dtype.torch) for state in states}
    initial = Packing({state.input: (kinds[state.input], state.dims) for state in states})
    sent = vendor.pinned(initial.nbytes)
    for state in states:
        np.copyto(initial.arrays(sent)[state.input], initial_value(state), casting="no")
    rows = Packing({s.input: (kinds[s.input], (count + 1, *s.dims)) for s in states})
    with streams.computing():
        kept = rows.tensors(vendor.empty(rows.nbytes))
        for name, value in initial.tensors(sent).items():
            vendor.copy(kept[name][count], value)
        vendor.synchronize()
    return kept
