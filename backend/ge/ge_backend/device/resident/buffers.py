"""Device buffers: memory of a device that we own, and runs of graphs that read and write it.

A device with memory of its own fills this seam once; states of sequences and tensors between the
steps of an ensemble are users of it. What is copied from where is decided above the engines, in
bytes; a device sets memory aside, and makes a run's copies in the run's own stream. A graph whose
tensors can lie there is a `BoundGraph`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeGuard

from ge_backend.device.base import Graph
from ge_backend.errors import GraphFailed
from ge_backend.tensors import Array, DataType, Shape

__all__ = [
    "NOTHING_BOUND",
    "Bound",
    "BoundGraph",
    "BoundTensor",
    "BufferMemory",
    "Copy",
    "DeviceBuffer",
    "bound_graph",
    "memory_of",
    "merged",
]


class DeviceBuffer(Protocol):
    """Bytes of a device's memory."""

    @property
    def nbytes(self) -> int:
        """How many there are."""

    def close(self) -> None:
        """Free them: nothing in flight uses them."""


class BufferMemory(Protocol):
    """Where buffers come from. Safe from several threads."""

    @property
    def name(self) -> str:
        """Graphs of one device whose memory has the same name reach each other's buffers."""

    @property
    def alignment(self) -> int:
        """Copies within the device begin at multiples of this many bytes on both sides."""

    def allocate(self, nbytes: int, what: str) -> DeviceBuffer:
        """Return a buffer of `nbytes`, at least 1, and of arbitrary content.

        `what` it is for is said in messages.

        Raises:
            OutOfMemory: the device has not that much left.
        """

    def upload(self, buffer: DeviceBuffer, content: Array) -> None:
        """Copy UINT8 `[n]` to a buffer's beginning; it is there when this returns."""


@dataclass(frozen=True, slots=True)
class Copy:
    """Bytes of a buffer that become bytes of an input, or are made of bytes of an output.

    Attributes:
        offset: where they begin in the tensor.
        place: where they begin in the buffer.
    """

    offset: int
    buffer: DeviceBuffer
    place: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundTensor:
    """An input that is made of buffers, or an output that is copied to some.

    Attributes:
        shape: padding included; a run whose output has another one fails.
        copies: in the order of the tensor, without overlaps.
        fill: the byte that an input consists of before anything is copied; -1: that is arbitrary.
    """

    dtype: DataType
    shape: Shape
    copies: tuple[Copy, ...]
    fill: int = -1

    @property
    def nbytes(self) -> int:
        """The bytes of the whole tensor."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What of one run lies on the device.

    Attributes:
        inputs: those that do not come from the host.
        outputs: those that stay.
        hidden: outputs that do not go to the host.
    """

    inputs: Mapping[str, BoundTensor] = field(default_factory=dict)
    outputs: Mapping[str, BoundTensor] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()

    def check(self, shapes: Mapping[str, Shape]) -> None:
        """See that a graph's outputs, of these shapes, are those that are to stay.

        Raises:
            GraphFailed: one is missing or has another shape.
        """
        for name, item in self.outputs.items():
            if name not in shapes:
                raise GraphFailed(
                    f"the graph has no output {name!r}, which is to stay on the device"
                )
            if shapes[name] != item.shape:
                raise GraphFailed(
                    f"output {name!r}, which stays on the device, was to be {list(item.shape)} and "
                    f"is {list(shapes[name])}; correct the names of its dimensions, or the state's "
                    "dims"
                )

    def renamed(self, names: Mapping[str, str]) -> Bound:
        """Return the same for a model whose outputs have these names instead."""
        return replace(
            self,
            outputs={names.get(name, name): item for name, item in self.outputs.items()},
            hidden=frozenset(names.get(name, name) for name in self.hidden),
        )


NOTHING_BOUND = Bound()


class BoundGraph(Protocol):
    """A graph whose tensors can lie in device buffers."""

    def device_memory(self) -> BufferMemory | None:
        """Return where its buffers come from, once it is compiled; None where its file has none."""

    def run_bound(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], bound: Bound
    ) -> dict[str, Array]:
        """Run once; as `Graph.run`, and return when what stays is there.

        `bound` says which inputs do not come from the host, and what becomes of the outputs.

        Returns:
            The outputs that are not hidden.

        Raises:
            GraphFailed, OutOfMemory: as `Graph.run`. Buffers of outputs are as before, unless a
                copy into one of them has begun.
        """


def memory_of(graph: Graph) -> BufferMemory | None:
    """Return where a graph's buffers come from; None for one that reaches host memory alone."""
    return graph.device_memory() if _is_bound(graph) else None


def bound_graph(graph: Graph) -> BoundGraph:
    """Return the graph as one whose tensors can lie in device buffers.

    Raises:
        GraphFailed: none of them can.
    """
    if not _is_bound(graph):
        raise GraphFailed("no tensor of this graph can stay on its device")
    return graph


def _is_bound(graph: Graph) -> TypeGuard[BoundGraph]:
    """Asked for each run: to ask `isinstance` of a protocol takes 10 to 20 us."""
    return hasattr(graph, "run_bound")


def merged(copies: Iterable[Copy]) -> Iterator[Copy]:
    """Yield the same copies, those as one that go on where the former ends on both sides."""
    pending: Copy | None = None
    for copy in copies:
        if pending is None:
            pending = copy
        elif (
            copy.buffer is pending.buffer
            and copy.offset == pending.offset + pending.nbytes
            and copy.place == pending.place + pending.nbytes
        ):
            pending = replace(pending, nbytes=pending.nbytes + copy.nbytes)
        else:
            yield pending
            pending = copy
    if pending is not None:
        yield pending
