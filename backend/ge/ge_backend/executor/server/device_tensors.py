"""What stays on the device between the runs of several graphs: one store per owner.

The steps of a fused ensemble have a connection each and share a store, which lasts as long as one
of them is open. A tensor lies there under a key that the stub has chosen, in a buffer; when it
is freed its buffer serves the next one, so that memory is only taken while batches grow.
"""

from __future__ import annotations

import contextlib
import math
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ge_backend.device.base import Graph
from ge_backend.device.resident.buffers import (
    Bound,
    BoundGraph,
    BoundTensor,
    BufferMemory,
    Copy,
    DeviceBuffer,
    bound_graph,
    memory_of,
)
from ge_backend.device.resident.rows import BufferRows, gathered
from ge_backend.device.resident.store import BufferStore
from ge_backend.device.shared import Shared
from ge_backend.errors import ProtocolError, TensorsLost
from ge_backend.executor.protocol.messages import (
    GatherInput,
    RetainOutput,
    RetainTensors,
    Run,
    TensorMemory,
)
from ge_backend.tensors import DATA_TYPES, Array, Shape

__all__ = ["BoundRuns", "DeviceTensorStore", "DeviceTensorStores", "RetainedTensors"]

PURPOSE = "tensors between the steps of an ensemble"
# Freed tensors that were not there are remembered so far back: a run's are few, and so are runs.
MAX_FREED = 1024


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor in a store."""

    buffers: BufferStore
    buffer: DeviceBuffer
    dtype: str
    shape: Shape


class DeviceTensorStore:
    """The tensors that one owner keeps on the device. Safe from several threads."""

    def __init__(self) -> None:
        self._tensors: dict[int, _Tensor] = {}
        self._freed: dict[int, None] = {}  # before they were here, the newest last
        self._buffers: dict[str, BufferStore] = {}  # by memory
        self._lock = threading.Lock()

    @property
    def num_tensors(self) -> int:
        """How many tensors are kept."""
        with self._lock:
            return len(self._tensors)

    @property
    def num_bytes(self) -> int:
        """The device memory that the store has, for tensors that are kept or will be."""
        with self._lock:
            return sum(buffers.num_bytes for buffers in self._buffers.values())

    def buffers(self, memory: BufferMemory) -> BufferStore:
        """Return the owner's buffers in a device's memory."""
        with self._lock:
            return self._buffers.setdefault(memory.name, BufferStore(memory))

    def free(self, keys: Sequence[int]) -> None:
        """Give the buffers of these tensors to others; keys that are not here may yet come.

        A stub that gives a run up frees the tensors that it was to keep while it may still go on.
        """
        with self._lock:
            self._freed |= dict.fromkeys(key for key in keys if key not in self._tensors)
            while len(self._freed) > MAX_FREED:
                del self._freed[next(iter(self._freed))]
            freed = [self._tensors.pop(key) for key in keys if key in self._tensors]
        for tensor in freed:
            tensor.buffers.give_back(tensor.buffer)

    def keep(self, tensors: Mapping[int, _Tensor]) -> None:
        """Keep tensors under these keys, and free those that had them, or were freed already."""
        with self._lock:
            gone = [self._tensors.pop(key) for key in tensors if key in self._tensors]
            for key, tensor in tensors.items():
                if key in self._freed:
                    del self._freed[key]
                    gone.append(tensor)
                else:
                    self._tensors[key] = tensor
        for tensor in gone:
            tensor.buffers.give_back(tensor.buffer)

    def find(self, key: int, name: str) -> _Tensor:
        """Return the tensor that is kept for an input of this name.

        Raises:
            TensorsLost: it is not here.
        """
        with self._lock:
            tensor = self._tensors.get(key)
        if tensor is None:
            raise TensorsLost(
                f"input {name!r} is no longer on the device; the executor was started anew since, "
                "see the server's log for the reason"
            )
        return tensor

    def close(self) -> None:
        """Free all memory, once no run uses it."""
        for buffers in self._buffers.values():
            buffers.close()


@dataclass(slots=True)
class DeviceTensorStores:
    """The stores of an executor, by owner.

    Attributes:
        id: tells this executor from every other.
    """

    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    _shared: Shared[str, DeviceTensorStore] = field(
        default_factory=lambda: Shared(0.0, DeviceTensorStore.close)
    )

    def join(self, owner: str) -> DeviceTensorStore:
        """Return the owner's store, made by the first call for it; pair with `leave`."""
        return self._shared.acquire(owner, DeviceTensorStore)

    def leave(self, owner: str) -> None:
        """Give up one hold of a store; with the last one its memory is freed."""
        self._shared.release(owner)
        self._shared.close_idle(now=True)

    def figures(self) -> tuple[int, int]:
        """Return how many tensors are kept, and how many bytes there are for them."""
        stores = self._shared.values()
        return sum(s.num_tensors for s in stores), sum(s.num_bytes for s in stores)


@dataclass(frozen=True, slots=True)
class BoundRuns:
    """A graph's runs on its owner's device tensors.

    Attributes:
        buffers: the owner's buffers that the graph reaches.
    """

    graph: BoundGraph
    buffers: BufferStore
    tensors: DeviceTensorStore

    def run(
        self, message: Run, inputs: Mapping[str, Array], views: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Run the graph on tensors of the store, and keep what the message says.

        Raises:
            TensorsLost: a tensor is not there.
            GraphFailed, OutOfMemory: as `BoundGraph.run_bound`; nothing more is kept then.
        """
        with self.buffers.in_use(), contextlib.ExitStack() as taken:
            retained = [(ref, self._tensor(ref, taken)) for ref in message.retained]
            bound = Bound(
                inputs={ref.name: self._input(ref) for ref in message.gathered},
                outputs={ref.name: _whole(tensor) for ref, tensor in retained},
                hidden=frozenset(ref.name for ref, _ in retained if not ref.also_to_host)
                | frozenset(message.unrequested),
            )
            results = self.graph.run_bound(inputs, views, bound)
            self.tensors.keep({ref.key: tensor for ref, tensor in retained})
            taken.pop_all()
        return results

    def _input(self, ref: GatherInput) -> BoundTensor:
        parts = []
        for rows in ref.rows:
            tensor = self.tensors.find(rows.key, ref.name)
            if (tensor.buffers, tensor.dtype) != (self.buffers, ref.dtype):
                raise ProtocolError(
                    f"input {ref.name!r} is {ref.dtype} in {self.buffers.memory.name!r} memory; "
                    f"the tensor that is kept for it is {tensor.dtype} in "
                    f"{tensor.buffers.memory.name!r} memory"
                )
            part = BufferRows(
                buffer=tensor.buffer,
                shape=tensor.shape,
                first=rows.first,
                count=rows.count,
                length=rows.length,
            )
            parts.append(part)
        return gathered(DATA_TYPES[ref.dtype], ref.shape, ref.fill, parts)

    def _tensor(self, ref: RetainOutput, taken: contextlib.ExitStack) -> _Tensor:
        buffer = self.buffers.take(max(1, _nbytes(ref.dtype, ref.shape)), PURPOSE)
        taken.callback(self.buffers.give_back, buffer)
        return _Tensor(self.buffers, buffer, ref.dtype, ref.shape)


class RetainedTensors:
    """What one connection's graph lets stay on the device.

    Args:
        stores: the executor's.

    Attributes:
        runs: makes the graph's runs; None where their tensors do not stay.
    """

    def __init__(self, stores: DeviceTensorStores) -> None:
        self.runs: BoundRuns | None = None
        self._stores = stores
        self._joined = contextlib.ExitStack()

    def open(self, message: RetainTensors, graph: Graph) -> TensorMemory:
        """Let the graph's runs use its owner's store; say how, or that they cannot.

        Raises:
            OutOfMemory: the device has no room for what the message asks for.
        """
        memory = memory_of(graph)
        if memory is None:
            return TensorMemory(id=message.id, name="", alignment=1)
        tensors = self._stores.join(message.owner)
        self._joined.callback(self._stores.leave, message.owner)
        buffers = tensors.buffers(memory)
        buffers.reserve(message.buffer_bytes, PURPOSE)
        self.runs = BoundRuns(bound_graph(graph), buffers, tensors)
        name = f"{memory.name} of {self._stores.id}"
        return TensorMemory(id=message.id, name=name, alignment=memory.alignment)

    def free(self, keys: Sequence[int]) -> None:
        """Forget tensors."""
        if self.runs is not None:
            self.runs.tensors.free(keys)

    def close(self) -> None:
        """Leave all stores; one that no other connection holds is freed once no run uses it."""
        self._joined.close()


def _whole(tensor: _Tensor) -> BoundTensor:
    """Return the output that is copied whole to the tensor's buffer."""
    nbytes = _nbytes(tensor.dtype, tensor.shape)
    copies = (Copy(0, tensor.buffer, 0, nbytes),) if nbytes else ()
    return BoundTensor(dtype=DATA_TYPES[tensor.dtype], shape=tensor.shape, copies=copies)


def _nbytes(dtype: str, shape: Shape) -> int:
    return math.prod(shape) * DATA_TYPES[dtype].itemsize
