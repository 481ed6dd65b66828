"""A device that computes next to nothing and counts everything, for tests of all that is above.

Its model file, `model.null`, is a signature (`files/signature_file.py`) and how the graph behaves:

    {"inputs":  [{"name": "x", "dtype": "FP32", "dims": ["batch", "length"]}],
     "outputs": [{"name": "y", "dtype": "FP32", "dims": ["batch"], "compute": "sum", "of": "x"}],
     "static_shapes": true,
     "fixed_shapes": [{"x": [8, 64]}, {"x": [8, 128]}],
     "cost_ms": {"8x64": 3.0, "*": 0.5},
     "weights_bytes": 4096, "workspace_bytes": {"8x64": 2048, "*": 256},
     "faults": [{"on": "run", "do": "die", "value": 666}]}

compute     `zeros` (the default), `echo` (a copy of `of`), or `sum` (of `of`, over the axes that
            the output has not), or `accumulate` (`sum`, added to the input `from`)
cost_ms     how long a run sleeps, by the shape of the first input; `*` is any other shape
faults      see `Fault`

weights_bytes    what it takes of the device's memory while it is loaded
workspace_bytes  scratch of a run, see `Scratch`; one byte per input element if not given
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ge_backend.device.base import NO_POOL, GraphSource, MemoryInfo, Workspace
from ge_backend.device.files.signature_file import read_signature
from ge_backend.device.null.faults import Fault, Faults, check_there
from ge_backend.device.null.scratch import DeviceMemory, Scratch
from ge_backend.errors import GraphFailed, ModelError
from ge_backend.tensors import (
    Array,
    Shape,
    Signature,
    TensorSpec,
    bf16_to_float32,
    float32_to_bf16,
)

__all__ = ["Counts", "Fault", "NullDevice", "NullGraph"]

LANES = 2
Key = tuple[tuple[str, Shape], ...]


@dataclass(slots=True)
class Counts:
    """What happened on a device, in all its graphs.

    Attributes:
        bytes_in, bytes_out: of inputs read and outputs given, BYTES elements not counted.
        running, most_running: runs in flight, now and at most.
        scratch, most_scratch: bytes of scratch that runs in flight need, now and at most.
        overwritten: runs whose scratch somebody else wrote into.
        exclusive_runs: runs that were told they had the device for themselves.
    """

    loads: int = 0
    closes: int = 0
    compiles: int = 0
    prepares: int = 0
    runs: int = 0
    exclusive_runs: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    running: int = 0
    most_running: int = 0
    scratch: int = 0
    most_scratch: int = 0
    overwritten: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, **changes: int) -> None:
        """Add to some counts at once."""
        with self.lock:
            for name, change in changes.items():
                setattr(self, name, getattr(self, name) + change)
            self.most_running = max(self.most_running, self.running)
            self.most_scratch = max(self.most_scratch, self.scratch)


class NullDevice:
    """A device with as many lanes and as much memory as asked for, and faults on request.

    Attributes:
        counts: what happened so far.
        faults: what will go wrong; the faults of a model file are its graph's own.
        store: its memory, where weights, scratch and the pool are.
    """

    def __init__(self, *, index: int = 0, lanes: int = LANES, memory_bytes: int = 2**30) -> None:
        self.name = f"null:{index}" if index else "null"
        self.lanes = lanes
        self.counts = Counts()
        self.faults = Faults()
        self.store = DeviceMemory(memory_bytes)

    @classmethod
    def open(cls, index: int, *, lanes: int = 0) -> NullDevice:
        """Return a new device; every index exists, unless `GE_NULL_GONE` says otherwise.

        Raises:
            DeviceUnavailable: it says so.
        """
        check_there(index, os.environ)
        return cls(index=index, lanes=lanes or LANES)

    def inject(self, fault: Fault) -> None:
        """Let something go wrong from now on, in every graph of the device."""
        self.faults.add(fault)

    def reserve(self, nbytes: int) -> int:
        """Set the pool aside, full of poison; see `Device.reserve`."""
        if nbytes:
            self.store.reserve(nbytes)
        return nbytes

    def load(self, source: GraphSource, workspace: Workspace = NO_POOL) -> NullGraph:
        """Load a `.null` file; see `Device.load`."""
        path = Path(source.path)
        if path.suffix != ".null":
            raise ModelError(f"{path}: the null device runs .null files")
        try:
            given = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise ModelError(f"{path}: not readable as JSON: {error}") from error
        graph = NullGraph(given, self, workspace, str(path))
        self.counts.add(loads=1)
        return graph

    def memory(self) -> MemoryInfo:
        """Return what weights and the pool have left."""
        return MemoryInfo(free_bytes=self.store.free_bytes, total_bytes=self.store.total_bytes)

    def close(self) -> None:
        """Do nothing."""


class NullGraph:
    """A graph made of a signature; see the module's text for what it does."""

    def __init__(
        self, document: Mapping[str, Any], device: NullDevice, workspace: Workspace, path: str
    ) -> None:
        self.signature = read_signature(document, path)
        self.static_shapes = bool(document.get("static_shapes", False))
        self.fixed_shapes = tuple(
            {name: tuple(shape) for name, shape in shapes.items()}
            for shapes in document.get("fixed_shapes", ())
        )
        self._path = path
        self._device = device
        self._prepared: set[Key] = set()
        self._costs_ms: Mapping[str, float] = document.get("cost_ms", {})
        self._computes = _computes(document, self.signature, path)
        self._faults = Faults()
        for fault in document.get("faults", ()):
            self._faults.add(Fault.read(fault, path))
        self.strike("load", {})
        self._weights_bytes = int(document.get("weights_bytes", 0))
        device.store.take(self._weights_bytes, f"the weights of {path}")
        try:
            self._scratch = Scratch(
                document.get("workspace_bytes"),
                compiled=self.static_shapes,
                memory=device.store,
                workspace=workspace,
                path=path,
            )
        except BaseException:
            device.store.give_back(self._weights_bytes)
            raise

    def compile(self, shapes: Sequence[Mapping[str, Shape]]) -> None:
        """Count it, and take the scratch of the largest."""
        if self.signature.inputs:
            first = self.signature.inputs[0].name
            self._scratch.compile([one[first] for one in shapes if first in one])
        self._device.counts.add(compiles=1)

    def prepare(self, inputs: Mapping[str, Array]) -> None:
        """Note these shapes, which `static_shapes` then allows; see `Graph.prepare`."""
        self.strike("prepare", inputs)
        self._prepared.add(_key(inputs))
        self._device.counts.add(prepares=1)

    def workspace_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return what the model file says, or else one byte for each input element."""
        if self._scratch.known:
            return self._scratch.need(shapes.get(self.signature.inputs[0].name, ()))
        return sum(math.prod(shape) for shape in shapes.values())

    def run(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], *, exclusive: bool
    ) -> dict[str, Array]:
        """Run once; see `Graph.run`."""
        counts = self._device.counts
        needed = self.workspace_bytes({name: array.shape for name, array in inputs.items()})
        counts.add(running=1, scratch=needed)
        try:
            self._check(inputs)
            results = self._computed(inputs)
        finally:
            counts.add(running=-1, scratch=-needed)
        results = {name: _settle(value, outputs.get(name)) for name, value in results.items()}
        counts.add(
            runs=1,
            exclusive_runs=int(exclusive),
            bytes_in=sum(array.nbytes for array in inputs.values()),
            bytes_out=sum(array.nbytes for array in results.values()),
        )
        return results

    def close(self) -> None:
        """Count it, and give the memory back."""
        self._scratch.close()
        self._device.store.give_back(self._weights_bytes)
        self._device.counts.add(closes=1)

    def strike(self, event: str, inputs: Mapping[str, Array]) -> None:
        """Let the faults of graph and device happen that are due now."""
        for faults in (self._faults, self._device.faults):
            faults.strike(event, inputs, self._path)

    def _computed(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs; wrong ones if somebody else wrote into this run's scratch."""
        mark = self._scratch.mark()
        intact = True
        try:
            self.strike("run", inputs)
            time.sleep(self._cost_ms(inputs) / 1e3)
            results = {name: compute(inputs) for name, compute in self._computes.items()}
        finally:
            if mark is not None:
                intact = mark.end()
        if intact:
            return results
        self._device.counts.add(overwritten=1)
        return {name: _spoiled(value) for name, value in results.items()}

    def _check(self, inputs: Mapping[str, Array]) -> None:
        known = [spec.name for spec in self.signature.inputs]
        if set(known) != set(inputs):
            raise GraphFailed(
                f"{self._path} takes the inputs {', '.join(known)}; got {', '.join(inputs)}"
            )
        sizes: dict[str, int] = {}
        for spec in self.signature.inputs:
            _check_input(spec, inputs[spec.name], sizes)
        if self.static_shapes and _key(inputs) not in self._prepared:
            shapes = ", ".join(f"{name} {shape}" for name, shape in _key(inputs))
            raise GraphFailed(f"{self._path}: {shapes} was not prepared, and shapes are static")

    def _cost_ms(self, inputs: Mapping[str, Array]) -> float:
        shape = inputs[self.signature.inputs[0].name].shape if inputs else ()
        key = "x".join(map(str, shape))
        return float(self._costs_ms.get(key, self._costs_ms.get("*", 0.0)))


def _key(inputs: Mapping[str, Array]) -> Key:
    return tuple(sorted((name, array.shape) for name, array in inputs.items()))


def _check_input(spec: TensorSpec, array: Array, sizes: dict[str, int]) -> None:
    """Refuse what an engine would refuse; `sizes` collects the sizes of the axes."""
    fits = len(array.shape) == len(spec.dims) and array.dtype == spec.dtype.numpy
    for dim, axis, size in zip(spec.dims, spec.axes, array.shape, strict=False):
        known = sizes.setdefault(axis, size) if axis else size
        fits = fits and size == (known if dim < 0 else dim)
    if not fits:
        raise GraphFailed(
            f"input {spec.name!r} is {spec.describe()}; got {array.dtype} {array.shape}"
        )


def _spoiled(value: Array) -> Array:
    """Return other numbers."""
    return np.asarray(value + 1, value.dtype) if value.dtype.kind in "iuf" else value


def _settle(result: Array, place: Array | None) -> Array:
    if place is None or place.shape != result.shape or place.dtype != result.dtype:
        return result
    np.copyto(place, result)
    return place


KINDS = ("zeros", "echo", "sum", "accumulate")

Compute = Callable[[Mapping[str, Array]], Array]


def _computes(document: Mapping[str, Any], signature: Signature, path: str) -> dict[str, Compute]:
    computes: dict[str, Compute] = {}
    for spec, entry in zip(signature.outputs, document["outputs"], strict=True):
        kind = entry.get("compute", "zeros")
        source = signature.input(entry.get("of", ""))
        if kind not in KINDS or (kind != "zeros" and source is None):
            raise ModelError(
                f"{path}: output {spec.name!r} computes {kind!r} of {entry.get('of')!r}; "
                "expected zeros, or echo, sum or accumulate of an input"
            )
        if kind == "zeros" or source is None:
            computes[spec.name] = _zeros(spec, signature)
        elif kind == "echo":
            computes[spec.name] = _echo(source)
        elif kind == "sum":
            computes[spec.name] = _sum(source, spec)
        else:
            computes[spec.name] = _accumulate(source, spec, str(entry.get("from")))
    return computes


def _zeros(spec: TensorSpec, signature: Signature) -> Compute:
    def compute(inputs: Mapping[str, Array]) -> Array:
        sizes = {
            axis: size
            for known in signature.inputs
            for axis, size in zip(known.axes, inputs[known.name].shape, strict=True)
        }
        shape = tuple(
            sizes.get(axis, 1) if dim < 0 else dim
            for dim, axis in zip(spec.dims, spec.axes, strict=True)
        )
        zero = b"" if spec.dtype.name == "BYTES" else 0
        return np.full(shape, zero, dtype=spec.dtype.numpy)

    return compute


def _echo(source: TensorSpec) -> Compute:
    return lambda inputs: inputs[source.name].copy()


def _sum(source: TensorSpec, spec: TensorSpec) -> Compute:
    def compute(inputs: Mapping[str, Array]) -> Array:
        values = inputs[source.name]
        if source.dtype.name == "BF16":
            values = bf16_to_float32(values)
        total = np.asarray(values.sum(axis=tuple(range(len(spec.dims), values.ndim))))
        if spec.dtype.name == "BF16":
            return float32_to_bf16(total)
        return total.astype(spec.dtype.numpy)

    return compute


def _accumulate(source: TensorSpec, spec: TensorSpec, former: str) -> Compute:
    total = _sum(source, spec)
    return lambda inputs: inputs[former] + total(inputs)
