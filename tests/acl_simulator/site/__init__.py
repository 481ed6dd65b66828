"""Getting the simulator into another process as its module `acl`.

`acl.py` beside this file is that module. The executor gets only the package's own folder as
PYTHONPATH, so the least that lets it import `acl` is another interpreter: `SimulatedPython` writes
a short script that adds this folder and becomes the real interpreter, and tests name it in
GE_PYTHON.
"""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acl_simulator.environment import FAULTS, INBOX, REPORT, to_environment

__all__ = ["FOLDER", "SimulatedPython"]

FOLDER = Path(__file__).resolve().parent
SCRIPT = """#!/bin/sh
{exports}
export PYTHONPATH={folder}${{PYTHONPATH:+:$PYTHONPATH}}
exec {python} "$@"
"""


class SimulatedPython:
    """An interpreter whose `import acl` is the simulator.

    Args:
        folder: where its files go.
        python: the interpreter that it becomes.
        faults: arguments of `Simulator.fail`; with `"hang": True` those of `hang`.
        **options: arguments of `Simulator`.

    Attributes:
        path: the interpreter, for GE_PYTHON.
    """

    def __init__(
        self,
        folder: Path,
        *,
        python: str = sys.executable,
        faults: Sequence[Mapping[str, Any]] = (),
        **options: object,
    ) -> None:
        self.path = folder / "python-with-acl"
        self._report = folder / "acl-report.json"
        self._inbox = folder / "acl-faults.json"
        settings = {
            **to_environment(**options),
            FAULTS: json.dumps(list(faults)),
            INBOX: str(self._inbox),
            REPORT: str(self._report),
        }
        exports = "\n".join(f"export {name}={shlex.quote(text)}" for name, text in settings.items())
        self.path.write_text(
            SCRIPT.format(
                exports=exports, folder=shlex.quote(str(FOLDER)), python=shlex.quote(python)
            )
        )
        self.path.chmod(0o755)

    def report(self) -> dict[str, Any]:
        """Return what the last process that used `acl` reported.

        Returns:
            `pid`, `misuses` (texts), `calls` (counts by name), `uploads`, `downloads`,
            `uploaded_bytes`, `downloaded_bytes`, `runs` (counts by model) and `finalised`; {} if no process has
            imported `acl`.
        """
        return json.loads(self._report.read_text()) if self._report.exists() else {}

    def fail(self, name: str, code: int = 0, **fault: object) -> None:
        """Let the next matching call of the running process fail (`Simulator.fail`).

        One process takes the fault, so an executor started after it is well again. Wait for
        `is_pending` to be False before asking for the next one.
        """
        draft = self._inbox.with_suffix(".draft")
        draft.write_text(json.dumps([{"name": name, "code": code, **fault}]))
        draft.replace(self._inbox)

    @property
    def is_pending(self) -> bool:
        """Whether no process has taken the last fault yet."""
        return self._inbox.exists()
