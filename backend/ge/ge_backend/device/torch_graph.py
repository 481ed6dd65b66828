"""torch on the CPU: `torch.export` programs and TorchScript."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from ge_backend.device.base import GraphSource
from ge_backend.device.failures import failure
from ge_backend.device.threads import ThreadChoice, num_elements
from ge_backend.device.torch_program import load_program
from ge_backend.errors import GraphFailed
from ge_backend.tensors import DATA_TYPES, Array, DataType, Shape

__all__ = ["TorchGraph"]

PRECISIONS: Mapping[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}

ENGINE_ERRORS: tuple[type[Exception], ...] = (
    RuntimeError,
    AssertionError,  # a guard of torch.export: a size that the program was not exported for
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    MemoryError,
)


class TorchGraph:
    """One torch program; narrow runs use one thread, wide ones all cores, on the same weights.

    In `bf16` and `fp16` the weights are converted once, and the program runs under autocast, which
    converts where an operation would otherwise meet two types; inputs and outputs keep their
    declared types. Measured on an encoder (one thread, AVX512-BF16, 8 rows of 24 tokens): 49 ms as
    exported, 17 ms in bf16 with a largest difference of 3e-3; autocast alone takes 18 ms and keeps
    the weights at twice the size. fp16 takes 202 ms on a CPU without AVX512-FP16.
    """

    static_shapes = False
    fixed_shapes: tuple[Mapping[str, Shape], ...] = ()

    def __init__(self, source: GraphSource, *, cores: int) -> None:
        with contextlib.suppress(RuntimeError):  # set before, in this process
            torch.set_num_interop_threads(1)
        self._path = source.path
        self._program = load_program(source.path)
        self.signature = self._program.signature
        self._low = PRECISIONS.get(source.precision)
        if self._low is not None:
            self._program.lower(self._low)
        self._narrow_threads = source.threads or 1
        self._wide_threads = source.threads or cores
        self._choice = ThreadChoice()

    def compile(self, shapes: Sequence[Mapping[str, Shape]]) -> None:
        """Do nothing: any shape runs."""

    def prepare(self, inputs: Mapping[str, Array]) -> None:
        """Measure whether this size gains from all cores; see `Graph.prepare`."""
        if self._wide_threads != self._narrow_threads:
            self._choice.measure(
                num_elements(inputs),
                lambda: self._run(inputs, {}, self._narrow_threads),
                lambda: self._run(inputs, {}, self._wide_threads),
            )

    def workspace_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return 0: torch allocates from the C library as it goes."""
        del shapes
        return 0

    def run(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], *, exclusive: bool
    ) -> dict[str, Array]:
        """Run once; see `Graph.run`."""
        wide = exclusive and self._choice.wide(num_elements(inputs))
        return self._run(inputs, outputs, self._wide_threads if wide else self._narrow_threads)

    def close(self) -> None:
        """Free the weights."""
        del self._program

    def _run(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], threads: int
    ) -> dict[str, Array]:
        self._check_names(inputs)
        try:
            with torch.inference_mode(), self._autocast():
                if torch.get_num_threads() != threads:
                    torch.set_num_threads(threads)  # of the calling thread
                tensors = {name: self._tensor(name, array) for name, array in inputs.items()}
                results = self._program.call(tensors)
                return {
                    name: self._array(name, result, outputs.get(name))
                    for name, result in results.items()
                }
        except ENGINE_ERRORS as error:
            raise failure(error, self._path) from error

    def _autocast(self) -> contextlib.AbstractContextManager[object]:
        if self._low is None:
            return contextlib.nullcontext()
        context: contextlib.AbstractContextManager[object] = torch.autocast("cpu", dtype=self._low)
        return context

    def _check_names(self, inputs: Mapping[str, Array]) -> None:
        known = [spec.name for spec in self.signature.inputs]
        if known and set(known) != set(inputs):
            raise GraphFailed(
                f"{self._path} takes the inputs {', '.join(known)}; got {', '.join(inputs)}"
            )

    def _tensor(self, name: str, array: Array) -> torch.Tensor:
        """Return the array as a tensor on the same memory, unless the program might write to it."""
        spec = self.signature.input(name)
        if spec and (array.dtype, array.ndim) != (spec.dtype.numpy, len(spec.dims)):
            raise GraphFailed(
                f"input {name!r} is {spec.describe()}; got {array.dtype} {array.shape}"
            )
        if self._program.writes_in_place or not array.flags.writeable:
            array = array.copy()
        tensor = torch.from_numpy(array)
        if spec is not None and spec.dtype.name == "BF16":
            tensor = tensor.view(torch.bfloat16)
        if self._low is not None and tensor.is_floating_point():
            tensor = tensor.to(self._low)
        return tensor

    def _array(self, name: str, result: torch.Tensor, place: Array | None) -> Array:
        """Copy a result to its place, or to a new array: it may be an input or a weight itself."""
        dtype = self._output_type(name, result)
        shape = tuple(result.shape)
        if place is None or place.shape != shape or place.dtype != dtype.numpy:
            place = np.empty(shape, dtype=dtype.numpy)
        target = torch.from_numpy(place)
        if dtype.name == "BF16":
            target = target.view(torch.bfloat16)
        target.copy_(result)
        return place

    def _output_type(self, name: str, result: torch.Tensor) -> DataType:
        """Return the declared type, or where nothing is declared the one that came."""
        spec = self.signature.output(name)
        if spec is not None:
            return spec.dtype
        kind = "float32" if result.dtype == self._low else str(result.dtype).removeprefix("torch.")
        known = {dtype.torch: dtype for dtype in DATA_TYPES.values()}
        if kind not in known:
            raise GraphFailed(f"output {name!r} of {self._path} is {kind}, which Triton has not")
        return known[kind]
