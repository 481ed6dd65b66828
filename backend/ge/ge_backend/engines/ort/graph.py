"""ONNX Runtime on the CPU: inputs are read and outputs written where the caller has them."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from ge_backend.device.arrays import check_names, into_place, shapes_of
from ge_backend.device.base import Graph, GraphSource
from ge_backend.device.failures import failure
from ge_backend.device.machine.threads import Cores, ThreadChoice, num_elements
from ge_backend.device.scratch import ScratchTable, smaller_inputs
from ge_backend.engines.ort.arena import release_unused, unused_released
from ge_backend.engines.ort.miscomputed import check_computed_as_written
from ge_backend.engines.ort.scratch import peak_bytes
from ge_backend.engines.ort.session import (
    CPU_PROVIDER,
    ENGINE_ERRORS,
    Provider,
    open_session,
    signature_of,
)
from ge_backend.errors import GraphFailed, Unsupported
from ge_backend.tensors import Array, DataType, Shape, TensorSpec

__all__ = ["OnDevice", "OnnxGraph"]

# TensorProto.BFLOAT16: the one bound type that numpy has no dtype for.
ONNX_BFLOAT16 = 16
# Outputs up to here are copied to their places: binding costs more. Around runs of an encoder,
# which leave the processor's caches full of weights, it took 0.2 ms, and this takes a third of it.
COPIED_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDevice:
    """Tensors of one run that lie in the provider's memory.

    Attributes:
        device, index: what and where it is, as ONNX Runtime calls it.
        inputs, outputs: address and shape of each.
        hidden: outputs that are not wanted on the host.
    """

    device: str
    index: int
    inputs: Mapping[str, tuple[int, Shape]]
    outputs: Mapping[str, tuple[int, Shape]]
    hidden: frozenset[str]


NOWHERE = OnDevice(device="cpu", index=0, inputs={}, outputs={}, hidden=frozenset())


class OnnxGraph(Graph):
    """One ONNX model with one or two sessions.

    The narrow session runs on a run's share of the cores, from several threads at once, or on as
    many as `source.threads` says. With that 0 and more cores, a wide session that uses all of them
    is opened when a run is alone. It holds a second copy of the weights, because ONNX
    Runtime packs them per session: 90 MB for a model of 90 MB. Threads of runs on all cores spin
    while they wait for each other within a run, which is most of the gain (measured on an encoder,
    mean over lengths, two cores: 7.0 ms narrow, 4.1 spinning, 5.2 not), and stop with it: else they
    would take the cores from the client and the server for a moment after each run. Where the file
    was changed meanwhile, there is no wide session: both would be served.

    Strings are UTF-8: the Python API of ONNX Runtime takes and gives nothing else. Tensors are in
    host memory, and ONNX Runtime moves them where another provider computes.
    """

    def __init__(
        self, source: GraphSource, cores: Cores, *, provider: Provider = CPU_PROVIDER
    ) -> None:
        if source.precision != "origin":
            raise Unsupported(
                f"precision {source.precision!r} of {source.path}: ONNX Runtime runs what the "
                "file says; set the parameter 'engine' to 'openvino' where that is installed (for "
                "bf16 and int8), use a model.pt2, or take precision origin"
            )
        self._path = source.path
        open_wide = source.unchanged(
            functools.partial(open_session, source.path, cores.count, provider, spin=True)
        )
        threads = source.threads or cores.share
        all_cores = 1 < cores.count <= threads
        narrow = open_session(source.path, threads, provider, spin=all_cores)
        if provider == CPU_PROVIDER:
            check_computed_as_written(Path(source.path))
        self._threads = ThreadChoice(cores, source.threads, narrow, open_wide, unused_released)
        self._scratch = ScratchTable()
        self._reports_scratch = True  # until ONNX Runtime has not, as before 1.31
        self.signature = signature_of(narrow, source.path)
        self._names = dict.fromkeys(spec.name for spec in self.signature.inputs).keys()
        self._output_names = [spec.name for spec in self.signature.outputs]
        specs = (*self.signature.inputs, *self.signature.outputs)
        for spec in specs:
            _check_bound(spec, source.path)
        dtypes = {spec.dtype.name for spec in specs}
        self._has_strings = "BYTES" in dtypes
        # numpy has no BF16, and what binding costs was looked at on the CPU alone.
        self._only_bound = "BF16" in dtypes or provider != CPU_PROVIDER
        # Outputs whose shape the caller once predicted wrongly: bound no more, since a wrong
        # binding is only found at the end of a run, which then has to be repeated.
        self._unpredictable: frozenset[str] = frozenset()

    def prepare(self, inputs: Mapping[str, Array]) -> None:
        """Measure this size's scratch; see `Graph.prepare`.

        It is measured in a session of its own, so only where no larger run bounds it: warm-up
        comes with the largest first. Some smaller sizes are measured along with it.
        """
        if self._reports_scratch and not self._scratch.bound(shapes_of(inputs)):
            self._measure_scratch(inputs)
            release_unused()  # two loads have left as much as the weights behind

    def workspace_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return the peak measured for these input shapes, or for larger ones."""
        return self._scratch.bound(shapes)

    def run(
        self,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
        *,
        exclusive: bool,
        placed: OnDevice = NOWHERE,
    ) -> dict[str, Array]:
        """Run once; see `Graph.run`. Inputs that are placed on the device are not among `inputs`.

        Returns:
            The outputs that are not hidden, and those that could not be written to their places on
            the device. The others are there.
        """
        with self._threads.session(num_elements(inputs), exclusive=exclusive) as session:
            return self._run(session, inputs, outputs, placed)

    def close(self) -> None:
        """Free both sessions, and what only they had in the arena."""
        self._threads.close()

    def _measure_scratch(self, inputs: Mapping[str, Array]) -> None:
        given = [*smaller_inputs(inputs, self.signature), inputs]
        try:
            peaks = self._peaks(given)
        except GraphFailed:  # at one of the smaller sizes; else it fails again
            given = [inputs]
            peaks = self._peaks(given)
        self._reports_scratch = any(peaks)
        for one, peak in zip(given, peaks, strict=True):
            self._scratch.add(shapes_of(one), peak)

    def _peaks(self, runs: Sequence[Mapping[str, Array]]) -> list[int]:
        return peak_bytes(
            self._path, [functools.partial(self._run, inputs=one, outputs={}) for one in runs]
        )

    def _run(
        self,
        session: onnxruntime.InferenceSession,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
        placed: OnDevice = NOWHERE,
    ) -> dict[str, Array]:
        if placed is not NOWHERE or inputs.keys() != self._names:
            check_names(self._path, self._names, [*inputs, *placed.inputs])
        try:
            places = self._places(outputs)
            if self._has_strings or self._is_small(outputs, placed):
                return self._run_copied(session, inputs, places)
            try:
                return self._run_bound(session, inputs, places, placed)
            except ENGINE_ERRORS:
                if not places and not placed.outputs:
                    raise
            # Either a place has another shape than the result, or the run would fail anyway.
            shown = placed.hidden - placed.outputs.keys()
            results = self._run_bound(
                session, inputs, {}, replace(placed, outputs={}, hidden=shown)
            )
        except ENGINE_ERRORS as error:
            raise failure(error, self._path) from error
        wrong = {name for name, place in places.items() if results[name].shape != place.shape}
        self._unpredictable |= wrong
        return results

    def _is_small(self, outputs: Mapping[str, Array], placed: OnDevice) -> bool:
        """Whether a run's outputs are copied rather than bound."""
        if self._only_bound or placed is not NOWHERE:
            return False
        return sum([array.nbytes for array in outputs.values()]) <= COPIED_BYTES

    def _places(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the given arrays that ONNX Runtime may write into."""
        if not outputs:
            return {}
        dtypes = {spec.name: spec.dtype.numpy for spec in self.signature.outputs}
        return {
            name: array
            for name, array in outputs.items()
            if dtypes.get(name) == array.dtype
            and array.flags.c_contiguous
            and array.flags.writeable
            and name not in self._unpredictable
        }

    def _run_bound(
        self,
        session: onnxruntime.InferenceSession,
        inputs: Mapping[str, Array],
        places: Mapping[str, Array],
        placed: OnDevice,
    ) -> dict[str, Array]:
        """Run with every tensor bound by address; `kept` holds what the addresses point into."""
        binding = session.io_binding()
        device, index = placed.device, placed.index
        kept = []
        for spec in self.signature.inputs:
            if spec.name in placed.inputs:
                _bind(binding.bind_input, spec, device, index, *placed.inputs[spec.name])
                continue
            kept.append(_bindable(spec, inputs[spec.name]))
            _bind_array(binding.bind_input, spec, kept[-1])
        for spec in self.signature.outputs:
            if spec.name in placed.outputs:
                _bind(binding.bind_output, spec, device, index, *placed.outputs[spec.name])
            elif spec.name in placed.hidden:
                binding.bind_output(spec.name, device, index)
            elif spec.name in places:
                _bind_array(binding.bind_output, spec, places[spec.name])
            else:
                binding.bind_output(spec.name, "cpu")
        session.run_with_iobinding(binding)
        values = zip(self.signature.outputs, binding.get_outputs(), strict=True)
        return {
            spec.name: _settle(value, places.get(spec.name), spec.dtype)
            for spec, value in values
            if not _stays(spec, value, placed)
        }

    def _run_copied(
        self,
        session: onnxruntime.InferenceSession,
        inputs: Mapping[str, Array],
        places: Mapping[str, Array],
    ) -> dict[str, Array]:
        """Run with arrays as they are; strings cannot be bound by address."""
        feeds = {spec.name: _bindable(spec, inputs[spec.name]) for spec in self.signature.inputs}
        if self._has_strings:
            feeds = {name: _decoded(name, feed) for name, feed in feeds.items()}
        values = session.run(self._output_names, feeds)
        results = dict(zip(self._output_names, values, strict=True))
        if self._has_strings:
            results |= {name: _encoded(v) for name, v in results.items() if v.dtype == object}
        if places:
            results |= {name: into_place(results[name], place) for name, place in places.items()}
        return results


def _check_bound(spec: TensorSpec, path: str) -> None:
    """Refuse a type that this version of ONNX Runtime cannot bind."""
    if spec.dtype.name == "BF16" and not hasattr(
        onnxruntime.OrtValue, "ortvalue_from_numpy_with_onnx_type"
    ):
        raise Unsupported(
            f"{path}: {spec.name!r} is BF16, which takes onnxruntime 1.20 or newer from Python; "
            f"this is {onnxruntime.__version__}"
        )


def _bindable(spec: TensorSpec, array: Array) -> Array:
    """Return the array as one block of the right type; anything else would be read as garbage."""
    if array.dtype != spec.dtype.numpy:
        raise GraphFailed(f"input {spec.name!r} is {spec.describe()}; got {array.dtype}")
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _bind_array(bind: Any, spec: TensorSpec, array: Array) -> None:
    _bind(bind, spec, "cpu", 0, array.ctypes.data, array.shape)


def _bind(bind: Any, spec: TensorSpec, device: str, index: int, address: int, shape: Shape) -> None:
    kind = ONNX_BFLOAT16 if spec.dtype.name == "BF16" else spec.dtype.numpy
    bind(spec.name, device, index, kind, shape, address)


def _stays(spec: TensorSpec, value: Any, placed: OnDevice) -> bool:
    """Whether an output is where it was to be on the device, or is not wanted.

    One that is also an input of the graph is not written to the place it was bound to.
    """
    if spec.name in placed.outputs:
        return bool(value.data_ptr() == placed.outputs[spec.name][0])
    return spec.name in placed.hidden


def _settle(value: Any, place: Array | None, dtype: DataType) -> Array:
    """Return a result in its place, or as a copy where it has none.

    An output that is also an input of the graph is not written to the place it was bound to.
    """
    if place is not None and value.data_ptr() == place.ctypes.data:
        return place
    return into_place(_copied(value, dtype), place)


def _copied(value: Any, dtype: DataType) -> Array:
    if dtype.name != "BF16":
        array: Array = value.numpy()
        return array
    result = np.empty(value.shape(), dtype=dtype.numpy)  # .numpy() knows no BF16
    ctypes.memmove(result.ctypes.data, value.data_ptr(), result.nbytes)
    return result


def _decoded(name: str, array: Array) -> Array:
    """Return `str` elements for `bytes`; ONNX Runtime would store the text `b'...'` instead."""
    if array.dtype != object:
        return array
    decoded = np.empty(array.shape, dtype=object)
    flat = decoded.reshape(-1)
    for index, element in enumerate(array.reshape(-1)):
        try:
            flat[index] = element.decode() if isinstance(element, bytes) else str(element)
        except UnicodeDecodeError as error:
            raise GraphFailed(
                f"input {name!r}, element {index}: {error}; ONNX Runtime takes UTF-8 text only, "
                "so send other bytes as UINT8"
            ) from error
    return decoded


def _encoded(array: Array) -> Array:
    encoded = np.empty(array.shape, dtype=object)
    flat = encoded.reshape(-1)
    for index, element in enumerate(array.reshape(-1)):
        flat[index] = element.encode() if isinstance(element, str) else bytes(element)
    return encoded
