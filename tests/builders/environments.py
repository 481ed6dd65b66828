"""Python environments of their own, made once from the package index and kept in `.cache`."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["NotHere", "find_python", "installed"]

CACHE = Path(__file__).resolve().parents[2] / ".cache"
INSTALL_TIMEOUT_S, ASK_TIMEOUT_S = 900, 30
# Interpreters that are not on PATH, with colons between them.
VARIABLE = "GE_OTHER_PYTHONS"
VERSION = (
    "import sys, ensurepip, venv; print(*sys.version_info[:2], sep='.'); print(sys.executable)"
)


class NotHere(Exception):
    """What a test needs cannot be had on this machine; says why."""


def installed(
    asked: tuple[str, ...],
    kept: str,
    python: str = sys.executable,
    version: tuple[int, int] = sys.version_info[:2],
) -> Path:
    """Return the Python of an environment with these packages, made where it is not there yet.

    Args:
        asked: the packages, as pip is asked for them.
        kept: the folder in `.cache` that has such environments.
        python: the interpreter that it is made with.
        version: its major and minor version.

    Raises:
        NotHere: pip has failed.
    """
    name = hashlib.sha256(repr((asked, version)).encode()).hexdigest()[:16]
    folder = CACHE / kept / name
    made = folder / "bin" / "python"
    if (folder / "whole").is_file():
        return made
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    command = [str(made), "-m", "pip", "install", "--quiet", *asked]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise NotHere(f"pip took more than {INSTALL_TIMEOUT_S} s") from error
    if done.returncode:
        raise NotHere(done.stderr.strip()[-500:])
    (folder / "whole").touch()
    return made


def find_python(version: tuple[int, int]) -> str:
    """Return an interpreter of this version that can make environments.

    Looked at are those of `GE_OTHER_PYTHONS`, `python3.12` on PATH, and what `uv` knows. One of
    pyenv's on PATH finds the version by itself, whichever is chosen for this folder.

    Raises:
        NotHere: there is none.
    """
    shown = ".".join(map(str, version))
    named = [path for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path]
    for command in [*named, f"python{shown}", *_uv(shown)]:
        said = _said([command, "-c", VERSION], PYENV_VERSION=shown)
        if said[:1] == [shown]:
            return said[1]
    raise NotHere(f"no Python {shown} with venv: none in {VARIABLE}, on PATH, or known to uv")


def _uv(shown: str) -> list[str]:
    return _said(["uv", "python", "find", "--no-python-downloads", shown])


def _said(command: list[str], **variables: str) -> list[str]:
    """Return the lines that a command prints; none where it fails or is not there."""
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=ASK_TIMEOUT_S,
            env={**os.environ, **variables},
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []
