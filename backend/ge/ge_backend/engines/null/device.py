"""A device that computes next to nothing, to try and measure all that is above a device.

Its model file, `model.null`, is a signature (`files/signature_file.py`) and how the graph behaves:

    {"inputs":  [{"name": "x", "dtype": "FP32", "dims": ["batch", "length"]}],
     "outputs": [{"name": "y", "dtype": "FP32", "dims": ["batch"], "compute": "sum", "of": "x"}],
     "static_shapes": true,
     "fixed_shapes": [{"x": [8, 64]}, {"x": [8, 128]}],
     "cost_ms": {"8x64": 3.0, "*": 0.5}}

compute     `zeros` (the default), `echo` (a copy of `of`), `sum` (of `of`, over the axes that
            the output has not), or `accumulate` (`sum`, added to the input `from`)
cost_ms     how long a run sleeps, by the shape of the first input; `*` is any other shape
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ge_backend.device.arrays import (
    ShapesKey,
    check_names,
    into_place,
    shapes_key,
    shapes_of,
    wrong_input,
)
from ge_backend.device.base import NO_POOL, Graph, GraphSource, MemoryInfo, Workspace
from ge_backend.errors import GraphFailed, ModelError
from ge_backend.model.files.signature_file import read_signature
from ge_backend.tensors import (
    ANY_SHAPE,
    PREPARED,
    Array,
    Shape,
    ShapePolicy,
    Signature,
    TensorSpec,
    bf16_to_float32,
    float32_to_bf16,
)

__all__ = ["NullDevice", "NullGraph", "read_model"]

LANES = 2
MEMORY_BYTES = 2**30


class NullDevice:
    """A device of 1 GiB that nothing takes any of."""

    chip = ""

    def __init__(self, *, index: int = 0, lanes: int = 0) -> None:
        self.name = f"null:{index}" if index else "null"
        self.lanes = lanes or LANES

    @classmethod
    def open(cls, index: int, *, lanes: int = 0) -> NullDevice:
        """Return a new device; every index exists."""
        return cls(index=index, lanes=lanes)

    def reserve(self, nbytes: int) -> int:
        """Set nothing aside, of which there is always enough; see `Device.reserve`."""
        return nbytes

    def load(self, source: GraphSource, workspace: Workspace = NO_POOL) -> NullGraph:  # noqa: ARG002 - it takes none
        """Load a `.null` file; see `Device.load`."""
        return NullGraph(read_model(source.path), source.path)

    def memory(self) -> MemoryInfo:
        """Return that all is free."""
        return MemoryInfo(free_bytes=MEMORY_BYTES, total_bytes=MEMORY_BYTES)

    def close(self) -> None:
        """Do nothing."""


def read_model(path: str) -> dict[str, Any]:
    """Return what a `.null` file says.

    Raises:
        ModelError: it is another kind of file, or cannot be read.
    """
    if Path(path).suffix != ".null":
        raise ModelError(f"{path}: the null device runs .null files")
    try:
        document: dict[str, Any] = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: not readable as JSON: {error}") from error
    return document


class NullGraph(Graph):
    """A graph made of a signature; see the module's text for what it does."""

    def __init__(self, document: Mapping[str, Any], path: str) -> None:
        self.signature = read_signature(document, path)
        fixed = tuple(
            {name: tuple(shape) for name, shape in shapes.items()}
            for shapes in document.get("fixed_shapes", ())
        )
        self._only_prepared = bool(document.get("static_shapes", False))
        runs = PREPARED.runs if self._only_prepared else ANY_SHAPE.runs
        self.shape_policy = ShapePolicy(runs=runs, fixed=fixed)
        self._path = path
        self._names = dict.fromkeys(spec.name for spec in self.signature.inputs).keys()
        self._prepared: set[ShapesKey] = set()
        self._costs_ms: Mapping[str, float] = document.get("cost_ms", {})
        self._outputs = _outputs(document, self.signature, path)

    def prepare(self, inputs: Mapping[str, Array]) -> None:
        """Note these shapes, which `static_shapes` then allows; see `Graph.prepare`."""
        self._prepared.add(shapes_key(shapes_of(inputs)))

    def workspace_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return one byte for each input element."""
        return sum(math.prod(shape) for shape in shapes.values())

    def run(
        self,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
        *,
        exclusive: bool,  # noqa: ARG002 - runs are alike
    ) -> dict[str, Array]:
        """Run once; see `Graph.run`."""
        self._check(inputs)
        results = self.compute(inputs)
        if not outputs:
            return results
        return {name: into_place(value, outputs.get(name)) for name, value in results.items()}

    def compute(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs after the time that a run takes; inputs are checked."""
        if cost_ms := self._cost_ms(inputs):  # to sleep for no time takes 0.1 ms
            time.sleep(cost_ms / 1e3)
        return {o.spec.name: _computed(o, self.signature, inputs) for o in self._outputs}

    def close(self) -> None:
        """Do nothing."""

    def _check(self, inputs: Mapping[str, Array]) -> None:
        if inputs.keys() != self._names:
            check_names(self._path, self._names, inputs)
        sizes: dict[str, int] = {}
        for spec in self.signature.inputs:
            _check_input(spec, inputs[spec.name], sizes)
        if self._only_prepared and (key := shapes_key(shapes_of(inputs))) not in self._prepared:
            shapes = ", ".join(f"{name} {shape}" for name, shape in key)
            raise GraphFailed(f"{self._path}: {shapes} was not prepared, and shapes are static")

    def _cost_ms(self, inputs: Mapping[str, Array]) -> float:
        shape = inputs[self.signature.inputs[0].name].shape if inputs else ()
        key = "x".join(map(str, shape))
        return float(self._costs_ms.get(key, self._costs_ms.get("*", 0.0)))


def _check_input(spec: TensorSpec, array: Array, sizes: dict[str, int]) -> None:
    """Refuse what an engine would refuse; `sizes` collects the sizes of the axes."""
    fits = len(array.shape) == len(spec.dims) and array.dtype == spec.dtype.numpy
    for dim, axis, size in zip(spec.dims, spec.axes, array.shape, strict=False):
        known = sizes.setdefault(axis, size) if axis else size
        fits = fits and size == (known if dim < 0 else dim)
    if not fits:
        raise wrong_input(spec, array)


KINDS = ("zeros", "echo", "sum", "accumulate")


class _Output(NamedTuple):
    """What one output is made of: zeros where it has no source."""

    spec: TensorSpec
    source: TensorSpec | None
    kind: str
    former: str


def _outputs(document: Mapping[str, Any], signature: Signature, path: str) -> list[_Output]:
    outputs = []
    for spec, entry in zip(signature.outputs, document["outputs"], strict=True):
        kind = entry.get("compute", "zeros")
        source = signature.input(entry.get("of", ""))
        if kind not in KINDS or (kind != "zeros" and source is None):
            raise ModelError(
                f"{path}: output {spec.name!r} computes {kind!r} of {entry.get('of')!r}; "
                "expected zeros, or echo, sum or accumulate of an input"
            )
        source = None if kind == "zeros" else source
        outputs.append(_Output(spec, source, kind, str(entry.get("from"))))
    return outputs


def _computed(output: _Output, signature: Signature, inputs: Mapping[str, Array]) -> Array:
    if output.source is None:
        return _zeros(output.spec, signature, inputs)
    values = inputs[output.source.name]
    if output.kind == "echo":
        return values.copy()
    if output.source.dtype.name == "BF16":
        values = bf16_to_float32(values)
    dtype = output.spec.dtype
    total = np.asarray(values.sum(axis=tuple(range(len(output.spec.dims), values.ndim))))
    total = float32_to_bf16(total) if dtype.name == "BF16" else total.astype(dtype.numpy)
    return total if output.kind == "sum" else inputs[output.former] + total


def _zeros(spec: TensorSpec, signature: Signature, inputs: Mapping[str, Array]) -> Array:
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
