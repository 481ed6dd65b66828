"""Getting the simulator into another process as its module `acl`.

`acl.py` beside this file is that module. The executor gets only the package's own folder as
PYTHONPATH, so the least that lets it import `acl` is another interpreter: `write_python` writes a
short script that adds this folder and becomes the real interpreter, and tests name it in GE_PYTHON.
"""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["FOLDER", "read_report", "write_python"]

FOLDER = Path(__file__).resolve().parent
SCRIPT = """#!/bin/sh
{exports}
PYTHONPATH={folder}${{PYTHONPATH:+:$PYTHONPATH}}
export PYTHONPATH
exec {python} "$@"
"""


def write_python(
    folder: Path,
    *,
    python: str = sys.executable,
    faults: Sequence[Mapping[str, Any]] = (),
    **options: object,
) -> Path:
    """Write an interpreter whose `import acl` is the simulator, and return its path.

    What happens in it is reported in `acl_report.json` in the same folder (`read_report`).

    Args:
        folder: where to write it.
        python: the interpreter that it becomes.
        faults: arguments of `Simulator.fail`; `{"name": "kernel.*", "hang": True}` for a hang.
        **options: arguments of `Simulator`.
    """
    settings = {
        "ACL_SIMULATOR_OPTIONS": json.dumps(options),
        "ACL_SIMULATOR_FAULTS": json.dumps(list(faults)),
        "ACL_SIMULATOR_REPORT": str(_report(folder)),
    }
    exports = "\n".join(f"export {name}={shlex.quote(text)}" for name, text in settings.items())
    path = folder / "python-with-acl"
    path.write_text(
        SCRIPT.format(
            exports=exports, folder=shlex.quote(str(FOLDER)), python=shlex.quote(python)
        )
    )
    path.chmod(0o755)
    return path


def read_report(folder: Path) -> dict[str, Any]:
    """Return what the last process of this folder's interpreter that used `acl` reported.

    Returns:
        `misuses` (texts), `calls` (counts by name), `uploaded_bytes`, `downloaded_bytes`,
        `executions` and `finalised`; {} if no process has imported `acl`.
    """
    path = _report(folder)
    return json.loads(path.read_text()) if path.exists() else {}


def _report(folder: Path) -> Path:
    return folder / "acl_report.json"
