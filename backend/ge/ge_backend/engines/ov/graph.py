"""OpenVINO on the CPU: one compiled model, with a body for each of the smallest buckets."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino

from ge_backend.device.arrays import (
    ShapesKey,
    check_indices,
    check_names,
    into_place,
    shapes_key,
    shapes_of,
)
from ge_backend.device.base import PLAIN, Graph, GraphSource
from ge_backend.device.failures import failure
from ge_backend.device.machine.host_memory import give_back_freed, host_memory
from ge_backend.device.machine.threads import Cores, ThreadChoice, num_elements
from ge_backend.engines.ov.angles import ComputedAngles, cut_angles
from ge_backend.engines.ov.arithmetic import Arithmetic, arithmetic_of
from ge_backend.engines.ov.by_shape import by_shape, fixed
from ge_backend.engines.ov.inputs import MAX_EXACT, index_ranges, rounded_inputs, skipped_operator
from ge_backend.engines.ov.model import (
    ELEMENTS,
    ENGINE_ERRORS,
    cause,
    compile_for_cpu,
    passed_inputs,
    read_model,
    shared,
    signature_of,
)
from ge_backend.engines.ov.requests import BorrowingRequest, Requests
from ge_backend.engines.ov.signal_stack import signal_stack_kept
from ge_backend.errors import GraphFailed, ModelError, Unsupported
from ge_backend.model.files.model_file import model_bytes
from ge_backend.tensors import BUCKETED, Array, Shape, TensorSpec, agree

__all__ = ["OpenVinoGraph"]

log = logging.getLogger(__name__)

PRECISIONS = ("origin", "bf16", "int8", PLAIN)
# The weights, of which there are two copies while bodies are compiled, may take this part of the
# memory that is available.
MEMORY_SHARE = 1 / 8
# No more than these: a larger bucket gains a few percent, and each takes half a second at load.
MAX_BODIES = 14
INT32 = np.iinfo(np.int32)
# What says that a model with bodies is none.
UNUSABLE: tuple[type[Exception], ...] = (ModelError, *ENGINE_ERRORS)


class OpenVinoGraph(Graph):
    """One model, compiled for any shape, until its buckets are known: then with bodies for them.

    A model for any shape makes ready anew whenever the shape changes: measured on an encoder, 1.5
    to 3 ms a run, whatever its size. So the smallest buckets have bodies of their own, in one
    compiled model with a body for all other shapes, which has the weights once; see `by_shape`. A
    compiled model for each would have a copy of them (54 MB for a file of 90 MB); loaded from
    OpenVINO's cache it takes 140 MB. A body takes 8 MB and another 5 for each further run at once,
    however small its shape is.

    Inputs are read and outputs written where the caller has them. How much scratch memory a run
    takes OpenVINO does not tell.

    INT64 and UINT32 are computed as INT32, and by some operators in FP32; inputs that do not fit
    are refused.
    """

    shape_policy = BUCKETED

    def __init__(self, source: GraphSource, cores: Cores) -> None:
        if source.precision not in PRECISIONS:
            raise Unsupported(
                f"precision {source.precision!r} of {source.path}: OpenVINO computes in "
                f"{' or '.join(name for name in PRECISIONS if name != PLAIN)} on a CPU"
            )
        self._path = Path(source.path)
        # Weights outside the file are read from where they lie, whenever it is compiled.
        compile_wide = source.unchanged(lambda: self._opened(self._model, cores.count, 1))
        self._model: Any = read_model(self._path)
        asked = source.declared.signature
        names = [spec.name for spec in (*asked.inputs, *asked.outputs)]
        self.signature = signature_of(self._model, self._path, names)
        self._arithmetic = arithmetic_of(source.precision, source.path).applied(
            self._model, source.path
        )
        self.precision = self._arithmetic.instead_of(source.precision)
        self._passed = passed_inputs(self._model)
        self._ranges = index_ranges(self._model)
        self._rounded = rounded_inputs(self._model)
        states = [variable.info.variable_id for variable in self._model.get_variables()]
        if states:
            log.warning(
                "%s keeps states inside (%s), and each run begins with fresh ones; to carry them "
                "from request to request make them inputs and outputs, and name these in "
                "sequence_batching.state",
                source.path,
                ", ".join(states),
            )
        self._per_run = source.threads or cores.share
        self._streams = max(1, cores.count // self._per_run)
        self._angles = self._cut() if self._arithmetic.kind == "bf16" else None
        self._chosen: frozenset[ShapesKey] = frozenset()
        self._narrow = _Narrow(self._opened(self._model, self._per_run, self._streams))
        self._threads = ThreadChoice[Requests[BorrowingRequest] | None](
            cores, source.threads, None, compile_wide, signal_stack_kept
        )

    def compile(self, shapes: Sequence[Mapping[str, Shape]]) -> None:
        """Choose the buckets that get a body of their own: the smallest, which gain the most.

        They are compiled when the first one that is missing is prepared.
        """
        ordered = sorted(shapes, key=lambda one: sum(map(math.prod, one.values())))
        self._chosen = frozenset(map(shapes_key, ordered[: self._affordable()]))

    def prepare(self, inputs: Mapping[str, Array]) -> None:
        """Compile for a bucket that was chosen; see `Graph.prepare`."""
        self._check(inputs)
        key = shapes_key(shapes_of(inputs))
        if key in self._chosen and not self._chosen <= self._narrow.tried:
            # Replaced as a whole: lanes read it meanwhile.
            with signal_stack_kept():
                self._narrow = self._with_bodies(self._chosen, inputs)
            give_back_freed()  # compiling goes by way of copies

    def run(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], *, exclusive: bool
    ) -> dict[str, Array]:
        """Run once; see `Graph.run`."""
        self._check(inputs)
        with self._threads.session(num_elements(inputs), exclusive=exclusive) as wide:
            requests, first = (wide, ()) if wide is not None else self._narrow.of(inputs)
            try:
                try:
                    return self._run(requests, first, inputs, outputs)
                except ENGINE_ERRORS:
                    if not outputs:
                        raise
                # Either a place is too small for the result, or the run would fail anyway.
                return self._run(requests, first, inputs, {})
            except ENGINE_ERRORS as error:
                raise failure(RuntimeError(cause(error)), str(self._path)) from error

    def close(self) -> None:
        """Free all compiled models."""
        with signal_stack_kept():
            self._threads.close()
            del self._narrow, self._model, self._angles

    def _cut(self) -> ComputedAngles | None:
        cut = cut_angles(self._model)
        if cut is None:
            return None
        compiled = self._compile(cut.model, self._per_run, self._streams, Arithmetic())
        return ComputedAngles(compiled, self._streams, cut.inputs)

    def _opened(self, model: Any, threads: int, streams: int) -> Requests[BorrowingRequest]:
        """Return what runs a model: `streams` runs at once, of `threads` each."""
        return Requests(self._compile(model, threads, streams), streams, BorrowingRequest)

    def _compile(
        self, model: Any, threads: int, streams: int, arithmetic: Arithmetic | None = None
    ) -> Any:
        """Compile a model for `threads` threads a run, and `streams` runs at once."""
        how = arithmetic or self._arithmetic
        try:
            return compile_for_cpu(
                model,
                precision=how.kind,
                threads=threads * streams,
                streams=streams,
                **how.options,
            )
        except ENGINE_ERRORS as error:
            raise ModelError(f"{self._path}: OpenVINO cannot compile it: {cause(error)}") from error

    def _affordable(self) -> int:
        """Return how many buckets may have a body: states of the model's own are not in any."""
        weights = model_bytes(self._path)
        fits = weights <= host_memory().free_bytes * MEMORY_SHARE
        return MAX_BODIES if fits and not self._model.get_variables() else 0

    def _with_bodies(self, chosen: frozenset[ShapesKey], inputs: Mapping[str, Array]) -> _Narrow:
        """Compile bodies for buckets, and one for the rest, and those that cannot have their own.

        Where they cannot be compiled, or the last one does not run these inputs, all go on in what
        there is.
        """
        made: dict[ShapesKey, Any] = {}
        for key in sorted(chosen):
            shapes = dict(key)
            zeros = {
                spec.name: np.zeros(shapes[spec.name], spec.dtype.numpy)
                for spec in self.signature.inputs
            }
            try:
                made[key] = fixed(self._model, [array.shape for array in self._given(zeros)])
            except ENGINE_ERRORS as error:
                log.info("%s runs %s as any shape: %s", self._path, key, cause(error))
        if made:
            try:
                model = by_shape([*made.values(), self._model.clone()])
                requests = self._opened(model, self._per_run, self._streams)
                self._run(requests, (np.array(len(made), np.int32),), inputs, {})
                return _Narrow(requests, {key: place for place, key in enumerate(made)}, chosen)
            except UNUSABLE as error:
                log.info("%s: its buckets run as any shape: %s", self._path, cause(error))
        return replace(self._narrow, tried=chosen)

    def _check(self, inputs: Mapping[str, Array]) -> None:
        check_names(str(self._path), [spec.name for spec in self.signature.inputs], inputs)
        for place, spec in enumerate(self.signature.inputs):
            _check_input(spec, inputs[spec.name], rounded=place in self._rounded)
            if place in self._ranges and inputs[spec.name].size:
                # As ONNX Runtime: OpenVINO would give zeros.
                check_indices("an index is out of bounds,", inputs[spec.name], *self._ranges[place])
        if not all(array.size for array in inputs.values()):
            sizes = [inputs[spec.name].shape for spec in self.signature.inputs]
            skipped = skipped_operator(self._model, sizes)
            if skipped:
                raise GraphFailed(
                    f"{self._path.name} failed to run: {skipped!r} takes from an empty tensor"
                )

    def _given(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Return what a compiled model takes: inputs, and angles that are computed of them."""
        own = [_readable(inputs[spec.name]) for spec in self.signature.inputs]
        return own if self._angles is None else [*own, *self._angles.of(own)]

    def _run(
        self,
        requests: Requests[BorrowingRequest],
        first: Sequence[Array],
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
    ) -> dict[str, Array]:
        """Run a compiled model once; `first` is what it takes before the graph's own inputs."""
        given = self._given(inputs)
        kinds = [ELEMENTS[spec.dtype.name] for spec in self.signature.inputs]
        angles = [openvino.Type.f32] * (len(given) - len(kinds))
        tensors = [openvino.Tensor(array, shared_memory=True) for array in first]
        tensors += [shared(*one) for one in zip(given, [*kinds, *angles], strict=True)]
        with requests.taken() as request:
            places = {
                index: _place(spec, request.outputs[index], outputs.get(spec.name))
                for index, spec in enumerate(self.signature.outputs)
                if index not in self._passed
            }
            request.run(tensors, {index: tensor for index, (_, tensor) in places.items()})
        return {
            spec.name: _result(spec, *places[index])
            if index in places
            else into_place(given[self._passed[index]], outputs.get(spec.name), lasting=False)
            for index, spec in enumerate(self.signature.outputs)
        }


@dataclass(frozen=True, slots=True)
class _Narrow:
    """What runs on a run's share of the cores.

    Attributes:
        requests: of the model for any shape or, where there are bodies, of what `by_shape` made.
        bodies: which of its bodies a bucket has; behind them is the one for all other shapes.
        tried: the buckets that it was compiled for, as far as that went.
    """

    requests: Requests[BorrowingRequest]
    bodies: Mapping[ShapesKey, int] = field(default_factory=dict)
    tried: frozenset[ShapesKey] = frozenset()

    def of(self, inputs: Mapping[str, Array]) -> tuple[Requests[BorrowingRequest], Sequence[Array]]:
        """Return what runs these inputs, and what it takes before them: which body, if any."""
        if not self.bodies:
            return self.requests, ()
        body = self.bodies.get(shapes_key(shapes_of(inputs)), len(self.bodies))
        return self.requests, (np.array(body, np.int32),)


def _check_input(spec: TensorSpec, array: Array, *, rounded: bool) -> None:
    if array.dtype != spec.dtype.numpy or not agree(spec.dims, array.shape):
        shape = "x".join(map(str, array.shape))
        raise GraphFailed(
            f"input {spec.name!r} is {spec.describe()}; got {array.dtype} of shape [{shape}]"
        )
    if array.size and (rounded or spec.dtype.name in ("INT64", "UINT32")):
        least, most = int(array.min()), int(array.max())
        if least < INT32.min or most > INT32.max or (rounded and max(-least, most) > MAX_EXACT):
            how = f"in FP32 here, up to {MAX_EXACT}" if rounded else "in 32 bits with a sign"
            raise GraphFailed(
                f"input {spec.name!r} has values from {least} to {most}, and OpenVINO computes "
                f"whole numbers {how}; set the parameter 'engine' to 'onnxruntime'"
            )


def _readable(array: Array) -> Array:
    """Return the array as one block that OpenVINO takes: it asks for one that may be written."""
    if array.flags.c_contiguous and array.flags.writeable:
        return array
    return np.array(array, order="C")


def _place(spec: TensorSpec, port: Any, place: Array | None) -> tuple[Array | None, Any]:
    """Return where an output is to be written: the caller's place, else memory of its own."""
    static, kind = port.partial_shape.is_static, ELEMENTS[spec.dtype.name]
    if place is not None:
        fits = place.dtype == spec.dtype.numpy and place.flags.c_contiguous
        if fits and place.flags.writeable and (not static or list(port.shape) == list(place.shape)):
            return place, shared(place, kind)
    shape = list(port.shape) if static else [0] * len(spec.dims)
    return None, openvino.Tensor(kind, openvino.Shape(shape))


def _result(spec: TensorSpec, place: Array | None, tensor: Any) -> Array:
    """Return the place if it holds the result, else the result, which is then the caller's."""
    shape = tuple(tensor.shape)
    if place is not None and place.shape == shape:
        return place
    data: Array = tensor.data.view(spec.dtype.numpy)
    return data if place is None else data.copy()
