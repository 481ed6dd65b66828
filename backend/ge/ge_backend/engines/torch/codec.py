"""How the arrays of a run become tensors of a torch program and back, alike on every device."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from ge_backend.device.arrays import check_names, wrong_input
from ge_backend.engines.torch.program import Program
from ge_backend.errors import ConfigError, GraphFailed
from ge_backend.tensors import DATA_TYPES, Array, DataType, TensorSpec

__all__ = ["TorchCodec"]

PRECISIONS: Mapping[str, torch.dtype | None] = {
    "origin": None,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


class TorchCodec:
    """Checks and converts what goes into a program and what comes out of it.

    Args:
        program: its weights are converted here, once, if the precision is a lower one.
        path: of the model file, for messages.
        precision: `origin`, `bf16` or `fp16`.

    Attributes:
        low: the type of that precision; None for `origin`.

    Raises:
        ConfigError: it is another precision.
    """

    def __init__(self, program: Program, path: str, precision: str) -> None:
        if precision not in PRECISIONS:
            raise ConfigError(
                f"parameter 'precision' is {precision!r}; torch computes {path} in "
                f"{', '.join(PRECISIONS)}"
            )
        self.low = PRECISIONS[precision]
        if self.low is not None:
            program.lower(self.low)
        self._signature = program.signature
        self._copies = program.writes_in_place
        self._declared = program.declared
        self._path = path

    def check(self, inputs: Mapping[str, Array]) -> None:
        """See that names, types and ranks are the program's, where its file states them.

        Raises:
            GraphFailed: they are not.
        """
        known = self._signature.inputs
        if known:
            needed = [spec.name for spec in known if not spec.optional or spec.name in inputs]
            check_names(self._path, needed, inputs)
        for name, array in inputs.items():
            spec = self._signature.input(name)
            if spec and (array.dtype, array.ndim) != (spec.dtype.numpy, len(spec.dims)):
                raise wrong_input(spec, array)

    def tensor(self, name: str, array: Array) -> torch.Tensor:
        """Return an input as a host tensor of its own type.

        It lies in the array's memory, unless the program might write to it.
        """
        if self._copies or not array.flags.writeable:
            array = array.copy()
        tensor = torch.from_numpy(array)
        spec = self._signature.input(name)
        return tensor.view(torch.bfloat16) if spec and spec.dtype.name == "BF16" else tensor

    def lowered(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor in the type that the program computes in."""
        if self.low is not None and tensor.is_floating_point():
            return tensor.to(self.low)
        return tensor

    def autocast(self, device: str, *, cached: bool = True) -> AbstractContextManager[object]:
        """Return the context of the precision on a kind of device; `cached`: converted weights."""
        if self.low is None:
            return nullcontext()
        context: AbstractContextManager[object] = torch.autocast(
            device, dtype=self.low, cache_enabled=cached
        )
        return context

    def array(self, name: str, result: torch.Tensor, place: Array | None) -> Array:
        """Copy a host result to its place, or to a new array where it has none that fits."""
        dtype = self.output_type(name, result)
        shape = tuple(result.shape)
        if place is None or place.shape != shape or place.dtype != dtype.numpy:
            place = np.empty(shape, dtype=dtype.numpy)
        target = torch.from_numpy(place)
        if dtype.name == "BF16":
            target = target.view(torch.bfloat16)
        target.copy_(result)
        return place

    def output_type(self, name: str, result: torch.Tensor) -> DataType:
        """Return the declared type of an output, or where nothing is declared the one that came.

        Raises:
            ConfigError: config.pbtxt alone says what it is, and the program returns another type.
            GraphFailed: Triton has no such type.
        """
        spec = self._signature.output(name)
        if spec is not None:
            if self._declared:
                self._check_type(spec, result.dtype)
            return spec.dtype
        kind = "float32" if result.dtype == self.low else str(result.dtype).removeprefix("torch.")
        known = {dtype.torch: dtype for dtype in DATA_TYPES.values()}
        if kind not in known:
            raise GraphFailed(f"output {name!r} of {self._path} is {kind}, which Triton has not")
        return known[kind]

    def _check_type(self, spec: TensorSpec, came: torch.dtype) -> None:
        """See that an output has its declared type; in a lower precision any of that kind.

        Source of the message: src/libtorch.cc of pytorch_backend r24.10, `ReadOutputTensors`.
        """
        declared: torch.dtype = getattr(torch, spec.dtype.torch)
        converted = self.low is not None and declared.is_floating_point and came.is_floating_point
        if came != declared and not converted:
            raise ConfigError(
                f"{self._path}: configuration expects datatype {spec.dtype.config_name} for output "
                f"{spec.name!r}, model provides {str(came).removeprefix('torch.')}"
            )
