"""Sessions of ONNX Runtime: opened with the settings that serving needs, and their signatures."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as engine

from ge_backend.device.failures import reason
from ge_backend.engines.ort.arena import use_shared_arena
from ge_backend.engines.ort.miscomputed import wrong_optimizers
from ge_backend.errors import DeviceUnavailable, ModelError
from ge_backend.model.files.onnx_file import onnx_shapeless
from ge_backend.tensors import DATA_TYPES, Signature, TensorSpec

__all__ = [
    "CPU_PROVIDER",
    "ENGINE_ERRORS",
    "Provider",
    "open_profiled",
    "open_session",
    "read_signature",
    "signature_of",
]

log = logging.getLogger(__name__)

# An execution provider of ONNX Runtime, which computes, and its options.
Provider = tuple[str, dict[str, str]]
CPU_PROVIDER: Provider = ("CPUExecutionProvider", {})

# Source: onnxruntime_session_options_config_keys.h: the level by which a MatMulNBits computes that
# is made of a DequantizeLinear and a MatMul: 1 is FP32, 4, the default, INT8.
EXACT_BESIDE_INT4 = ("session.qdq_matmulnbits_accuracy_level", "1")
# Likewise: without VNNI, products of unsigned by signed bytes are added up in pairs, which saturate
# at 16 bits, unless signed ones are made unsigned. An encoder by `quantize_dynamic` takes a fifth
# longer for it; with VNNI nothing changes.
EXACT_PRODUCTS = ("session.x64quantprecision", "1")

# What makes tensors of the maps that scikit-learn's converters write.
AS_TENSORS = (
    "export it with tensors: skl2onnx and onnxmltools give probabilities as one with zipmap=False"
)

# ONNX Runtime raises classes of its own, derived from Exception directly, and RuntimeError.
ENGINE_ERRORS: tuple[type[Exception], ...] = (
    *(v for v in vars(engine).values() if isinstance(v, type) and issubclass(v, Exception)),
    RuntimeError,
    ValueError,
    TypeError,
    MemoryError,
)


def open_session(
    path: str, threads: int, provider: Provider = CPU_PROVIDER, *, spin: bool
) -> onnxruntime.InferenceSession:
    """Return a session with `threads` CPU threads for one run.

    On the CPU all sessions share one arena.

    Raises:
        ModelError: ONNX Runtime cannot load the file.
        DeviceUnavailable: the provider is not there or does not load. ONNX Runtime would compute
            on the CPU then, many times slower, and say so only in its log.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spin)))
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if provider == CPU_PROVIDER:
        use_shared_arena(options)
    return _opened(path, options, provider)


def open_profiled(path: str, prefix: Path) -> onnxruntime.InferenceSession:
    """Return a one-thread session on the CPU that records its runs, with an arena of its own.

    The file that `end_profiling` writes has a name that begins with `prefix`.

    Raises:
        ModelError: ONNX Runtime cannot load the file.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_mem_pattern = False  # as in the sessions that serve
    options.enable_profiling = True
    options.profile_file_prefix = str(prefix)
    return _opened(path, options, CPU_PROVIDER)


def read_signature(path: str) -> Signature:
    """Return the signature of a file that is not going to be run here.

    Raises:
        ModelError: ONNX Runtime cannot load the file.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return signature_of(_opened(path, options, CPU_PROVIDER), path)


def signature_of(session: onnxruntime.InferenceSession, path: str) -> Signature:
    """Return the inputs and outputs; initialisers that could be overridden are not inputs.

    Outputs that are no tensors, as what scikit-learn's converters write (a map per row), are left
    out where there are others: Triton carries none.

    Raises:
        ModelError: one of them is of a type that Triton does not carry, an input of any rank, or no
            output a tensor.
    """
    inputs = tuple(_spec(node, path) for node in session.get_inputs())
    bare = {spec.name for spec in inputs if not spec.dims}
    for name in onnx_shapeless(Path(path)) if bare else ():  # ONNX Runtime does not tell
        if name in bare:
            raise ModelError(
                f"{path}: input {name!r} has any number of dimensions; export it with fixed ones"
            )
    return Signature(
        inputs=inputs,
        outputs=tuple(_spec(node, path) for node in _tensors(session.get_outputs(), path)),
        axis_limits={},
    )


def _tensors(outputs: Sequence[Any], path: str) -> list[Any]:
    """Return the outputs that are tensors; all, where each of them is or nothing is known of it."""
    others = [node for node in outputs if not node.type.startswith("tensor(")]
    if not others:
        return list(outputs)
    named = ", ".join(f"{node.name!r} ({node.type})" for node in others)
    said = f"{named}: Triton carries tensors alone; {AS_TENSORS}"
    if len(others) == len(outputs):
        raise ModelError(f"{path}: no output is a tensor: {said}")
    log.warning("%s: left out %s", path, said)
    return [node for node in outputs if node not in others]


def _opened(
    path: str, options: onnxruntime.SessionOptions, provider: Provider
) -> onnxruntime.InferenceSession:
    name = provider[0]
    available = onnxruntime.get_available_providers()
    if name not in available:
        raise DeviceUnavailable(
            f"{path} needs {name}; this onnxruntime {onnxruntime.__version__} has only "
            f"{', '.join(available)}: for CUDA, replace it by onnxruntime-gpu"
        )
    options.inter_op_num_threads = 1
    # Activations beside INT4 weights stay what they are: by default they are rounded to 8 bits.
    options.add_session_config_entry(*EXACT_BESIDE_INT4)
    options.add_session_config_entry(*EXACT_PRODUCTS)
    options.log_severity_level = 4  # what it would log as an error it also raises
    try:
        # Its Python would go on on the CPU, at load and at a run, and print why.
        session = onnxruntime.InferenceSession(
            path,
            options,
            providers=[provider],
            enable_fallback=0,
            disabled_optimizers=wrong_optimizers(Path(path)),
        )
    except ENGINE_ERRORS as error:
        if isinstance(error, RuntimeError) and provider != CPU_PROVIDER:  # else a class of its own
            raise DeviceUnavailable(
                f"{path} needs {name}, which does not start: {reason(error)}"
            ) from error
        raise ModelError(f"{path}: ONNX Runtime cannot load it: {reason(error)}") from error
    active = session.get_providers()[0]
    if active != name:
        raise DeviceUnavailable(
            f"{path} needs {name}, and ONNX Runtime fell back to {active}: a library that the "
            "provider needs is missing or of another version; the log above has its own message"
        )
    return session


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
