"""Model files as OpenVINO reads them: their signature, and what of it can be computed exactly."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from openvino import frontend

from ge_backend.engines.ov.dropped import check_nothing_dropped
from ge_backend.engines.ov.nodes import operators_of
from ge_backend.engines.ov.signal_stack import signal_stack_kept
from ge_backend.engines.ov.workarounds import (
    SOFTMAX_OF_AN_AXIS,
    apply_workarounds,
    flatten_softmax,
)
from ge_backend.errors import ModelError, Unsupported
from ge_backend.model.files.onnx_file import onnx_axes, onnx_inputs, onnx_opset
from ge_backend.tensors import DATA_TYPES, Array, Signature, TensorSpec

__all__ = [
    "ELEMENTS",
    "ENGINE_ERRORS",
    "cause",
    "compile_for_cpu",
    "has_bf16",
    "infer",
    "passed_inputs",
    "read_model",
    "shared",
    "signature_of",
]

# Triton's name of a type -> OpenVINO's.
ELEMENTS: Mapping[str, Any] = {
    "BOOL": openvino.Type.boolean,
    "UINT8": openvino.Type.u8,
    "UINT16": openvino.Type.u16,
    "UINT32": openvino.Type.u32,
    "INT8": openvino.Type.i8,
    "INT16": openvino.Type.i16,
    "INT32": openvino.Type.i32,
    "INT64": openvino.Type.i64,
    "FP16": openvino.Type.f16,
    "FP32": openvino.Type.f32,
    "BF16": openvino.Type.bf16,
}
# What it would take and compute in 32 bits and say nothing, or has hardly an operation for.
INEXACT = {"f64": "FP64", "u64": "UINT64", "string": "BYTES"}
# Of numbers of 8 bits these saturate, and quotients are rounded where others cut off.
SATURATING = ("Add", "Subtract", "Multiply", "Divide", "Power")
BYTE_SIZED = {"i8": "INT8", "u8": "UINT8"}

Axes = Mapping[str, tuple[str, ...]]

# Lines of an error that say in which source files it came up.
WHERE = ("Exception from ", "Caught exception: Exception from ")
# Those that say something; further ones repeat it.
MAX_LINES = 6

# A frontend's failures are not subclasses of the four.
ENGINE_ERRORS: tuple[type[Exception], ...] = (
    *(RuntimeError, ValueError, TypeError, MemoryError),
    *(frontend.GeneralFailure, frontend.InitializationFailure, frontend.NotImplementedFailure),
    *(frontend.OpConversionFailure, frontend.OpValidationFailure),
)


def read_model(path: Path) -> Any:
    """Return the model of an `.onnx` or `.xml` file; weights are mapped, not read.

    Raises:
        ModelError: the file is corrupt, or has an operation that OpenVINO does not know.
        Unsupported: OpenVINO would not compute all that the file says.
    """
    try:
        model = openvino.Core().read_model(path)
        if path.suffix == ".onnx":
            check_nothing_dropped(path)
            if 0 < onnx_opset(path) < SOFTMAX_OF_AN_AXIS:
                flatten_softmax(model)
        apply_workarounds(model)
    except ENGINE_ERRORS as error:
        raise ModelError(f"{path}: OpenVINO cannot load it: {cause(error)}") from error
    return model


def has_bf16() -> bool:
    """Whether this processor has arithmetic for BF16.

    Where AVX512 comes without it, as in an Ice Lake, OpenVINO computes it all the same if it is
    told to, and takes 30 to 40 times as long as in FP32 (an encoder, 2026.4).
    """
    return "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def compile_for_cpu(
    model: Any, *, precision: str, threads: int, streams: int = 1, **options: str
) -> Any:
    """Return a model compiled for `threads` threads in all, and `streams` runs at once.

    The model stays as it is. Precision, of the arithmetic, and further options are OpenVINO's.

    Raises:
        RuntimeError: or another one of `ENGINE_ERRORS`: it cannot be compiled.
    """
    with signal_stack_kept():
        return openvino.Core().compile_model(
            model,
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": precision,
                "INFERENCE_NUM_THREADS": threads,
                "NUM_STREAMS": streams,
                "ENABLE_CPU_PINNING": False,
                **options,
            },
        )


def infer(request: Any) -> None:
    """Run a request to its end.

    OpenVINO's own `infer` swallows every error where there is one stream of one thread, and leaves
    the outputs as they were, those that are too small for the result among them (seen on 2026.4).

    Raises:
        RuntimeError: or another one of `ENGINE_ERRORS`: it has failed.
    """
    request.start_async()
    request.wait()


def shared(array: Array, kind: Any) -> Any:
    """Return an array's own memory as a tensor of OpenVINO's; it has to be kept meanwhile.

    Args:
        array: contiguous, and writable.
        kind: its type as OpenVINO has it; numpy has no BF16 by itself.
    """
    if kind == openvino.Type.bf16:
        return openvino.Tensor(array, list(array.shape), kind)
    return openvino.Tensor(array, shared_memory=True)


def signature_of(model: Any, path: Path, asked: Collection[str] = ()) -> Signature:
    """Return inputs and outputs. An `.xml` does not name its dimensions; `axes.<tensor>` does.

    Those that it bounds get a name of their own, under which the bounds are.

    Inputs of an `.onnx` have its names: where an operator that does nothing reads one, OpenVINO
    names it after the result. A tensor without a name is `input_0`, `output_0` and so on.

    Args:
        model: as `read_model` returns it.
        path: of its file.
        asked: names that go before others where an `.xml` has several for one tensor.

    Raises:
        ModelError: a tensor is of a type that Triton does not carry, or of any rank.
        Unsupported: it, or one on the way, is of a type that OpenVINO does not compute in.
    """
    _check_exact(model, path)
    onnx = path.suffix == ".onnx"
    axes = onnx_axes(path) if onnx else {}
    known = axes if onnx else asked
    inputs = onnx_inputs(path) if onnx else _names(model.inputs, "input", known)
    outputs = _names(model.outputs, "output", known)
    specs = tuple(
        _spec(name, port, axes, path) for name, port in zip(inputs, model.inputs, strict=True)
    )
    named = [
        (axis, dim)
        for spec, port in zip(specs, model.inputs, strict=True)
        for axis, dim in zip(spec.axes, port.partial_shape, strict=True)
        if axis
    ]
    return Signature(
        inputs=specs,
        outputs=tuple(
            _spec(name, port, axes, path) for name, port in zip(outputs, model.outputs, strict=True)
        ),
        axis_limits={axis: dim.get_max_length() for axis, dim in named if dim.get_max_length() > 0},
        axis_least={axis: dim.get_min_length() for axis, dim in named if dim.get_min_length() > 1},
    )


def passed_inputs(model: Any) -> dict[int, int]:
    """Return which outputs are inputs as they came, by their places: {output: input}.

    Such a pair is one tensor, so an output that is set takes the place of the input.
    """
    sources = [port.get_node().input_value(0).get_node() for port in model.outputs]
    return {
        index: model.get_parameter_index(source)
        for index, source in enumerate(sources)
        if source.get_type_name() == "Parameter"
    }


def cause(error: BaseException) -> str:
    """Return what an error says; its first lines only say in which source files."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = [line for line in lines if not line.startswith(WHERE)]
    return " ".join(message[:MAX_LINES] or lines[:1]) or type(error).__name__


def _names(ports: Iterable[Any], unnamed: str, known: Collection[str]) -> list[str]:
    """Return the name of each: of several one that is known, else its operator's own.

    That is the name in the file which an `.xml` was converted from.
    """
    return [_name(port, f"{unnamed}_{at}", known) for at, port in enumerate(ports)]


def _name(port: Any, otherwise: str, known: Collection[str]) -> str:
    operator = port.get_node()
    if operator.get_type_name() == "Result":
        operator = operator.input_value(0).get_node()
    own = operator.get_friendly_name()
    ordered = sorted(port.get_names(), key=lambda one: (one not in known, one != own, one))
    return ordered[0] if ordered else otherwise


def _check_exact(model: Any, path: Path) -> None:
    """Refuse what is not computed as it is: types, but for small constants of them, and ranges.

    OpenVINO's own reading of ArgMax and ArgMin has one: how many are sought.
    """
    for operator in operators_of(model):
        if operator.get_type_name() == "FakeQuantize" and _too_wide(operator):
            raise Unsupported(
                f"{path}: {operator.get_friendly_name()!r} quantises numbers as far apart as those "
                "of a mask of -3.4e38, and OpenVINO takes them for one; quantise products alone, "
                "or set the parameter 'engine' to 'onnxruntime'"
            )
        for port in operator.outputs():
            kind = port.element_type.get_type_name()
            if kind in BYTE_SIZED and operator.get_type_name() in SATURATING:
                raise Unsupported(
                    f"{path}: {operator.get_friendly_name()!r} is {BYTE_SIZED[kind]}, of which "
                    "OpenVINO rounds quotients and cuts what goes beyond 8 bits; compute in INT32, "
                    "or set the parameter 'engine' to 'onnxruntime'"
                )
            if kind == "u32" and operator.get_type_name() == "Convert":
                raise Unsupported(
                    f"{path}: {operator.get_friendly_name()!r} is made UINT32, in which OpenVINO "
                    "keeps the sign of a negative number; set the parameter 'engine' to "
                    "'onnxruntime'"
                )
            if kind in INEXACT and not _is_small_count(operator):
                raise Unsupported(
                    f"{path}: {operator.get_friendly_name()!r} is {INEXACT[kind]}, and OpenVINO "
                    "computes in 32 bits on a CPU; set the parameter 'engine' to 'onnxruntime'"
                )


def _is_small_count(operator: Any) -> bool:
    """Whether an operator is a constant of whole numbers that 32 bits hold, too."""
    if (
        operator.get_type_name() != "Constant"
        or operator.get_element_type().get_type_name() != "u64"
    ):
        return False
    return bool((operator.data <= np.iinfo(np.int32).max).all())


def _too_wide(quantised: Any) -> bool:
    """Whether FP32 has no number for a range's width times its steps (seen on 2026.4)."""
    ends = [value.get_node() for value in quantised.input_values()[1:3]]
    if any(end.get_type_name() != "Constant" for end in ends):
        return False
    low, high = (np.asarray(end.get_data(dtype=np.float64)) for end in ends)
    steps = quantised.get_attributes()["levels"] - 1
    return bool(((high - low) * steps > np.finfo(np.float32).max).any())


def _spec(name: str, port: Any, axes: Axes, path: Path) -> TensorSpec:
    kind = port.element_type.get_type_name()
    dtype = next((DATA_TYPES[n] for n, t in ELEMENTS.items() if t.get_type_name() == kind), None)
    if dtype is None:
        carried = ", ".join(ELEMENTS)
        raise ModelError(f"{path}: {name!r} is a tensor of {kind}; Triton carries {carried}")
    shape = port.partial_shape
    if shape.rank.is_dynamic:
        raise ModelError(
            f"{path}: {name!r} has any number of dimensions; export it with fixed ones"
        )
    dims = tuple(-1 if dim.is_dynamic else dim.get_length() for dim in shape)
    names = axes.get(name, ())
    if len(names) != len(dims):
        bounded = [dim.get_min_length() > 1 or dim.get_max_length() > 0 for dim in shape]
        names = tuple(f"{name}.{at}" if known else "" for at, known in enumerate(bounded))
    return TensorSpec(
        name=name,
        dtype=dtype,
        dims=dims,
        axes=tuple(known if dim < 0 else "" for known, dim in zip(names, dims, strict=True)),
    )
