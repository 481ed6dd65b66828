"""How much scratch memory runs of an ONNX model take, from the statistics of ONNX Runtime.

Nothing in the Python API tells what an arena has in use, but a profile does: in new releases (1.31)
each kernel's entry has it, and the most that ever was (`mem_bytes_in_use`, `mem_in_use_peak`;
source: microsoft/onnxruntime pull request 29058). A profile can be read only once per session, and
in the shared arena it would count other sessions, too. So a session of its own is opened for it,
with an arena of its own, and closed; that takes about as long as loading the model.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime

from ge_backend.engines.ort.session import open_profiled

__all__ = ["peak_bytes"]

log = logging.getLogger(__name__)

PREFIX = "ge-profile-"

Event = Mapping[str, Any]
Run = Callable[[onnxruntime.InferenceSession], object]


def peak_bytes(path: str, runs: Sequence[Run]) -> list[int]:
    """Return the scratch bytes of each run at its peak, outputs included; 0 where not known.

    Args:
        path: the model file.
        runs: each runs a session once, and its errors are passed on. The smallest comes first: an
            arena remembers only its highest peak.

    Raises:
        ModelError: the file cannot be loaded again.
    """
    try:
        with _folder() as folder:
            session = open_profiled(path, folder / "run")
            for run in runs:
                run(session)
            profiles = _by_run(_events(Path(session.end_profiling())))
    except OSError as error:
        log.warning("%s: scratch memory is not measured: %s", path, error)
        profiles = []
    return _peaks(profiles) if len(profiles) == len(runs) else [0] * len(runs)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Give a folder for a profile.

    A process that is ended meanwhile, as with a server that stops right after its start, leaves it:
    in the server's own folder, which goes with it, or, where it has none, until the next profile.

    Raises:
        OSError: it cannot be made.
    """
    parent = Path(os.environ.get("GE_RUNTIME_DIR", ""))
    if not parent.is_absolute() or not parent.is_dir():
        parent = Path(tempfile.gettempdir())
    for left in parent.glob(f"{PREFIX}*"):
        _remove_left(left)
    new = Path(tempfile.mkdtemp(dir=parent))
    folder = new.with_name(f"{PREFIX}{new.name}")
    lock = os.open(new, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield new.rename(folder)  # no process finds it unlocked
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_left(folder: Path) -> None:
    """Remove a folder that no process has locked."""
    with contextlib.suppress(OSError):  # it is another user's, or is being measured in
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


def _events(profile: Path) -> list[Event]:
    """Return what stands in a profile.

    Raises:
        OSError: it was not written to its end.
    """
    try:
        events: list[Event] = json.loads(profile.read_text(encoding="utf-8"))
    except ValueError as error:
        raise OSError(f"its profile in {profile.parent.parent} has no end ({error})") from error
    return events


def _by_run(events: Sequence[Event]) -> list[list[Event]]:
    """Return what is said of the kernels of each run, in order; each run ends with its entry."""
    profiles: list[list[Event]] = [[]]
    for event in events:
        if event.get("name") == "model_run":
            profiles.append([])
        elif "mem_in_use_peak" in event.get("args", ()):
            profiles[-1].append(event["args"])
    return profiles[:-1]


def _peaks(profiles: Sequence[Sequence[Event]]) -> list[int]:
    """Return the peak of each run, less what was in use before it, and never below the one before.

    The arena's own peak counts from the start of the session. Where loading took more than a run,
    what was in use after each kernel has to do; that lacks what a kernel gave back before its end.
    """
    peaks: list[int] = []
    highest = 0
    for kernels in profiles:
        if not kernels:
            return [0] * len(profiles)
        first = kernels[0]
        before = int(first["mem_bytes_in_use"]) - int(first["mem_in_use_delta"])
        former, highest = (
            highest or int(first["mem_in_use_peak"]),
            int(kernels[-1]["mem_in_use_peak"]),
        )
        grown = highest > former
        peak = highest if grown else max(int(kernel["mem_bytes_in_use"]) for kernel in kernels)
        peaks.append(max(peak - before, *peaks[-1:], 0))
    return peaks
