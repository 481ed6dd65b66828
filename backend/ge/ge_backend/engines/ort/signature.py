"""The signature of an ONNX model that another engine than ONNX Runtime is going to run."""

from __future__ import annotations

from pathlib import Path

from ge_backend.device.imports import importing
from ge_backend.errors import DeviceUnavailable
from ge_backend.tensors import Signature

__all__ = ["read_onnx_signature"]


def read_onnx_signature(path: Path) -> Signature:
    """Return inputs and outputs with the names of their axes, as ONNX Runtime infers them.

    Its own inference makes a model that is compiled for an NPU have the same axes as on the CPU.

    Raises:
        DeviceUnavailable: ONNX Runtime is not installed.
        ModelError: it cannot load the file.
    """
    try:
        with importing():
            from ge_backend.engines.ort import session
    except ImportError as error:
        raise DeviceUnavailable(
            f"{path.name}: ONNX for an NPU needs onnxruntime too, which reads inputs and outputs "
            f"({error}); pip install 'triton-ge-backend[onnx]'"
        ) from error
    return session.read_signature(str(path))
