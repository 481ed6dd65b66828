"""Which of the server's search paths an executor keeps: those of its device's own libraries.

The server's LD_LIBRARY_PATH holds private libraries that break other programs, and its PYTHONPATH
is for another Python. But CANN is only found through both: its `set_env.sh` puts it there.
Source: CANN's `set_env.sh`, and its installation guide for the places.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import PurePath

__all__ = ["SEARCH_PATHS", "kept_paths"]

SEARCH_PATHS = ("LD_LIBRARY_PATH", "PYTHONPATH")
# What `set_env.sh` says about where CANN is; a folder of this name is the installer's default.
HOMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_NNAE_PATH", "ASCEND_NNRT_PATH")
FOLDER = "Ascend"


def kept_paths(device: str, environment: Mapping[str, str], variable: str) -> list[str]:
    """Return the entries of a search path that a device's executor needs, in order.

    Args:
        device: `cpu`, `npu:0`.
        environment: the server's.
        variable: one of `SEARCH_PATHS`.
    """
    if not device.startswith("npu"):
        return []
    homes = [PurePath(environment[name]) for name in HOMES if environment.get(name)]
    entries = [entry for entry in environment.get(variable, "").split(os.pathsep) if entry]
    return [entry for entry in entries if _is_cann(PurePath(entry), homes)]


def _is_cann(path: PurePath, homes: list[PurePath]) -> bool:
    return FOLDER in path.parts or any(path.is_relative_to(home) for home in homes)
