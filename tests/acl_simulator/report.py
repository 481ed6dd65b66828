"""What a simulator in another process tells its test: one JSON file, replaced whole."""

import atexit
import json
import os
from pathlib import Path

from acl_simulator.machine.machine import Machine

__all__ = ["Reporter"]

OCCASIONS = ("rt.synchronize_", "mdl.execute", "rt.reset_device", "finalize")


class Reporter:
    """Writes the state of a machine after the calls that matter, and when the process ends."""

    def __init__(self, machine: Machine, path: Path) -> None:
        self._machine = machine
        self._path = path
        self._misuses = 0
        self.write()
        atexit.register(self.write)

    def after(self, call: str) -> None:
        """Write, if the call is an occasion to."""
        misuses = len(self._machine.misuses)
        if misuses != self._misuses or call.startswith(OCCASIONS):
            self._misuses = misuses
            self.write()

    def write(self) -> None:
        """Replace the report."""
        machine = self._machine
        report = {
            "pid": os.getpid(),
            "misuses": [str(misuse) for misuse in machine.misuses],
            "calls": dict(machine.calls),
            "uploads": machine.uploads,
            "downloads": machine.downloads,
            "uploaded_bytes": machine.uploaded_bytes,
            "downloaded_bytes": machine.downloaded_bytes,
            "runs": dict(machine.runs),
            "finalised": machine.finalised,
        }
        draft = self._path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(report))
        draft.replace(self._path)
