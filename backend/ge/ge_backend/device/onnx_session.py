"""Sessions of ONNX Runtime: opened with the settings that serving needs, and their signatures."""

from __future__ import annotations

from typing import Any

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as engine

from ge_backend.device.failures import reason
from ge_backend.errors import ModelError
from ge_backend.tensors import DATA_TYPES, Signature, TensorSpec

__all__ = ["ENGINE_ERRORS", "open_session", "read_signature", "signature_of"]

# ONNX Runtime raises classes of its own, derived from Exception directly, and RuntimeError.
ENGINE_ERRORS: tuple[type[Exception], ...] = (
    *(v for v in vars(engine).values() if isinstance(v, type) and issubclass(v, Exception)),
    RuntimeError,
    ValueError,
    TypeError,
    MemoryError,
)


def open_session(path: str, threads: int, *, spin: bool) -> onnxruntime.InferenceSession:
    """Return a session on the CPU with so many threads for one run.

    Raises:
        ModelError: ONNX Runtime cannot load the file.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spin)))
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return _opened(path, options)


def read_signature(path: str) -> Signature:
    """Return the signature of a file that is not going to be run here.

    Raises:
        ModelError: ONNX Runtime cannot load the file.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return signature_of(_opened(path, options), path)


def signature_of(session: onnxruntime.InferenceSession, path: str) -> Signature:
    """Return the inputs and outputs; initialisers that could be overridden are not inputs.

    Raises:
        ModelError: one of them is of a type that Triton does not carry.
    """
    return Signature(
        inputs=tuple(_spec(node, path) for node in session.get_inputs()),
        outputs=tuple(_spec(node, path) for node in session.get_outputs()),
        axis_limits={},
    )


def _opened(path: str, options: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what it would log as an error it also raises
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except ENGINE_ERRORS as error:
        raise ModelError(f"{path}: ONNX Runtime cannot load it: {reason(error)}") from error


def _spec(node: Any, path: str) -> TensorSpec:
    by_name = {f"tensor({dtype.onnx})": dtype for dtype in DATA_TYPES.values()}
    if node.type not in by_name:
        raise ModelError(
            f"{path}: {node.name!r} is a {node.type}; Triton carries {', '.join(by_name)}"
        )
    return TensorSpec(
        name=node.name,
        dtype=by_name[node.type],
        dims=tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in node.shape),
        axes=tuple(dim if isinstance(dim, str) else "" for dim in node.shape),
    )
