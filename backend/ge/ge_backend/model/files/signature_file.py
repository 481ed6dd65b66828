"""A signature as JSON, for model files whose format holds none.

    {"inputs":  [{"name": "x", "dtype": "FP32", "dims": ["batch", "length", 4]}],
     "outputs": [{"name": "y", "dtype": "FP32", "dims": ["batch", 4]}],
     "axis_limits": {"length": 512},
     "axis_least": {"length": 4},
     "lengths": {"frames": "frame_count"}}

A dimension is a size, the name of a free axis, or -1 for a free one without a name. The other keys
are those of `Signature`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ge_backend.errors import ConfigError, ModelError
from ge_backend.tensors import Signature, TensorSpec, data_type

__all__ = ["read_signature"]


def read_signature(document: Mapping[str, Any], origin: str) -> Signature:
    """Return the signature that this JSON object states; further keys are the caller's.

    Raises:
        ModelError: a key is missing or malformed; names `origin`.
    """
    try:
        return Signature(
            inputs=tuple(map(_spec, document["inputs"])),
            outputs=tuple(map(_spec, document["outputs"])),
            axis_limits={str(k): int(v) for k, v in document.get("axis_limits", {}).items()},
            axis_least={str(k): int(v) for k, v in document.get("axis_least", {}).items()},
            lengths={str(k): str(v) for k, v in document.get("lengths", {}).items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError, ConfigError) as error:
        raise ModelError(
            f"{origin}: not a signature ({type(error).__name__}: {error}); expected "
            '{"inputs": [{"name", "dtype", "dims"}], "outputs": [...]}'
        ) from error


def _spec(entry: Mapping[str, Any]) -> TensorSpec:
    dims = entry["dims"]
    return TensorSpec(
        name=str(entry["name"]),
        dtype=data_type(entry["dtype"]),
        dims=tuple(-1 if isinstance(dim, str) else int(dim) for dim in dims),
        axes=tuple(dim if isinstance(dim, str) else "" for dim in dims),
        optional=bool(entry.get("optional", False)),
        fill=float(entry.get("fill", 0.0)),
    )
