"""Triton's own fields of config.pbtxt that are warned of when a model is loaded.

Source: triton-inference-server/common, protobuf/model_config.proto. Of `ModelOptimizationPolicy`
the pinned memory is not named, which the host fills in itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["stalling", "unread"]

# Read by Triton's C++ backends.
OF_OPTIMIZATION = ("execution_accelerators", "graph", "cuda")
OF_MODEL = ("cc_model_filenames",)
# Of `dynamic_batching`: each makes this release of Triton stall (docs/scheduling.md).
POLICIES = ("priority_levels", "default_queue_policy", "priority_queue_policy")


def unread(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the note on fields that only other backends read."""
    optimization = config.get("optimization", {})
    idle = [f"optimization.{field}" for field in OF_OPTIMIZATION if optimization.get(field)]
    idle += [field for field in OF_MODEL if config.get(field)]
    if not idle:
        return ()
    text = (
        f"{', '.join(idle)}: no effect with this backend; docs/from_cpp_backends.md says what has"
    )
    return (text,)


def stalling(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the note on the host's own queue policies."""
    found = [name for name in POLICIES if config.get("dynamic_batching", {}).get(name)]
    if not found:
        return ()
    text = (
        f"dynamic_batching has {', '.join(found)}: with any of them Triton stalls now and then; "
        "the backend's own bounds do not (docs/scheduling.md)"
    )
    return (text,)
