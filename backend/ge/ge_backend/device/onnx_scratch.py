"""How much scratch memory one run of an ONNX model takes, from the statistics of ONNX Runtime.

Nothing in the Python API tells what an arena has in use, but a profile does: in new releases (1.31)
each kernel's entry has it, and the most that ever was (`mem_bytes_in_use`, `mem_in_use_peak`;
source: microsoft/onnxruntime pull request 29058). A profile can be read only once per session, and
in the shared arena it would count other sessions, too. So a session of its own is opened for it,
with an arena of its own, run once and closed; that takes about as long as loading the model.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime

from ge_backend.device.onnx_session import open_profiled

__all__ = ["peak_bytes"]

Event = Mapping[str, Any]


def peak_bytes(path: str, run: Callable[[onnxruntime.InferenceSession], object]) -> int:
    """Return the scratch bytes of a run at its peak, outputs included; 0 if not known.

    Args:
        path: the model file.
        run: runs a session once; its errors are passed on.

    Raises:
        ModelError: the file cannot be loaded again.
    """
    with tempfile.TemporaryDirectory(prefix="ge-profile-") as folder:
        session = open_profiled(path, Path(folder) / "run")
        run(session)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    return _peak([event["args"] for event in events if "mem_in_use_peak" in event.get("args", ())])


def _peak(kernels: Sequence[Event]) -> int:
    """Return the peak over the kernels of one run, in order, less what was in use before it.

    The arena's own peak counts from the start of the session. Where loading took more than the run,
    what was in use after each kernel has to do; that lacks what a kernel gave back before its end.
    """
    if not kernels:
        return 0
    first = kernels[0]
    before = int(first["mem_bytes_in_use"]) - int(first["mem_in_use_delta"])
    peak = int(kernels[-1]["mem_in_use_peak"])
    if peak == int(first["mem_in_use_peak"]):
        peak = max(int(kernel["mem_bytes_in_use"]) for kernel in kernels)
    return max(peak - before, 0)
