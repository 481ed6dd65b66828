"""What executors ran, as trace events: a file that Perfetto and Chrome's tracing open.

Source: "Trace Event Format" (Chromium): `X` is a complete event of a thread with `ts` and `dur` in
microseconds, `b` and `e` begin and end an asynchronous one, `M` names processes and threads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ge_backend.executor.protocol.messages import PastRun
from ge_tools.watch.executors import DeviceRuns

__all__ = ["trace"]


def trace(devices: Sequence[DeviceRuns]) -> str:
    """Return a JSON text: a process per executor, a thread per lane, and what waited beside them.

    Times are those of CLOCK_MONOTONIC.
    """
    events = [event for device in devices for event in _of_device(device)]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _of_device(device: DeviceRuns) -> Iterator[dict[str, Any]]:
    lanes = {lane: at for at, lane in enumerate(sorted({run.lane for run in device.runs}), start=1)}
    name = {"name": f"executor {device.device}"}
    yield {"ph": "M", "name": "process_name", "pid": device.pid, "args": name}
    for lane, thread in lanes.items():
        place = {"pid": device.pid, "tid": thread}
        yield {"ph": "M", "name": "thread_name", **place, "args": {"name": lane}}
    for run in device.runs:
        place = {"pid": device.pid, "tid": lanes[run.lane]}
        yield _ran(run) | place
        if run.started_ns > run.came_ns:
            waited = {"cat": "queue", "id": run.number, "name": run.model, **place}
            yield {"ph": "b", "ts": run.came_ns / 1e3, **waited}
            yield {"ph": "e", "ts": run.started_ns / 1e3, **waited}


def _ran(run: PastRun) -> dict[str, Any]:
    bucket = "x".join(map(str, run.bucket)) or "preparation"
    return {
        "ph": "X",
        "cat": "run",
        "name": f"{run.model} {bucket}",
        "ts": run.started_ns / 1e3,
        "dur": (run.ended_ns - run.started_ns) / 1e3,
        "args": {
            "bucket": bucket,
            "real rows": run.real_rows,
            "waited for workspace, ms": run.held_up_ns / 1e6,
            "error": run.error,
        },
    }
