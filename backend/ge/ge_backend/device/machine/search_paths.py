"""Which of the server's search paths an executor keeps: those of its device's own libraries.

The server's LD_LIBRARY_PATH holds private libraries that break other programs, and its PYTHONPATH
is for another Python. But CANN is only found through both: its `set_env.sh` puts it there. And in
NVIDIA's containers the driver and CUDA's compatibility libraries may be found by the former only.
Source: CANN's `set_env.sh`, and its installation guide for the places; the Dockerfiles of NVIDIA's
CUDA images, which set LD_LIBRARY_PATH to /usr/local/nvidia/lib:/usr/local/nvidia/lib64.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import PurePath

__all__ = ["SEARCH_PATHS", "kept_paths"]

SEARCH_PATHS = ("LD_LIBRARY_PATH", "PYTHONPATH")
# What `set_env.sh` says about where CANN is; a folder of this name is the installer's default.
HOMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_NNAE_PATH", "ASCEND_NNRT_PATH")
FOLDER = "Ascend"
# Folders of the driver, of CUDA (`cuda`, `cuda-12.4`), and of the driver under WSL.
CUDA_FOLDERS = re.compile(r"nvidia|cuda(-[\d.]+)?|wsl")


def kept_paths(device: str, environment: Mapping[str, str], variable: str) -> list[str]:
    """Return the entries of a search path that a device's executor needs, in order.

    Args:
        device: `cpu`, `cuda:0`, `npu:0`.
        environment: the server's.
        variable: one of `SEARCH_PATHS`.
    """
    entries = [entry for entry in environment.get(variable, "").split(os.pathsep) if entry]
    kind = device.partition(":")[0]
    if kind == "npu":
        homes = [PurePath(environment[name]) for name in HOMES if environment.get(name)]
        return [entry for entry in entries if _is_cann(PurePath(entry), homes)]
    if kind == "cuda" and variable == "LD_LIBRARY_PATH":
        return [entry for entry in entries if _is_cuda(PurePath(entry))]
    return []


def _is_cann(path: PurePath, homes: list[PurePath]) -> bool:
    return FOLDER in path.parts or any(path.is_relative_to(home) for home in homes)


def _is_cuda(path: PurePath) -> bool:
    return any(CUDA_FOLDERS.fullmatch(part) for part in path.parts)
