"""A backend directory for one server: its own backends, the right stub, and ours."""

from __future__ import annotations

import ctypes
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

import ge_backend
from ge_backend.errors import ServerError
from ge_backend.model.config.model_folder import BACKEND
from ge_tools.tritonserver.installation import (
    ServerInstallation,
    running_python,
    stub_library,
)

__all__ = ["assemble_backends", "backend_files"]

PYTHON_FILES = ("libtriton_python.so", "triton_python_backend_utils.py")


def backend_files() -> dict[str, Path]:
    """Return what the backend's folder holds, by name: the file that Triton loads, our packages.

    A checkout or a copied folder has `model.py` beside the package. A wheel can install only the
    packages, so that has a copy under another name (a `model.py` on sys.path would be taken for
    other backends' own). `ge_text` is left out where it is not installed: encoders need it not.
    """
    package = Path(ge_backend.__file__).resolve().parent
    beside = package.parent / "model.py"
    inside = Path(__file__).resolve().parent / "model.py.txt"
    files = {"model.py": beside if beside.is_file() else inside, "ge_backend": package}
    text = package.parent / "ge_text"
    return {**files, "ge_text": text} if text.is_dir() else files


def assemble_backends(installation: ServerInstallation, into: Path) -> Path:
    """Fill the folder `into` with every backend of the server and ours; return it.

    The Python backend's own files are copied, the rest are links: for a Python-based backend the
    server refuses a linked `libtriton_python.so` ("escapes backend directory"); linked folders it
    takes. Source: triton-inference-server/core r24.10 src/backend_model.cc.

    Raises:
        ServerError: the server has no stub for this interpreter's Python version, or the stub could
            not be started for want of Python's library: the host would wait for it for ever.
    """
    if installation.stub is None:
        have = ", ".join(installation.stub_versions) or "none"
        raise ServerError(
            f"{installation.binary} has no Python stub for Python {running_python()}; it has: "
            f"{have}. Run ge-backend with one of these"
        )
    library = stub_library(installation.stub)
    if library and not _is_there(library, installation.libraries):
        raise ServerError(
            f"the server's Python stub needs {library}, which {sys.executable} lacks; "
            f"apt-get install libpython{running_python()}, or run ge-backend with a Python that "
            "was built with --enable-shared"
        )
    for folder in installation.backends.iterdir():
        if folder.name not in {"python", BACKEND}:
            _link({folder.name: folder}, into)
    own = installation.backends / "python"
    python = into / "python"
    python.mkdir(parents=True)
    for source in (*(own / name for name in PYTHON_FILES), installation.stub):
        shutil.copy2(source, python / source.name)
    _link(backend_files(), into / BACKEND)
    return into


def _is_there(library: str, folders: Iterable[Path]) -> bool:
    """Whether the stub would find a library: in the folders that it is given, or by the loader."""
    if any((folder / library).is_file() for folder in folders):
        return True
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _link(files: dict[str, Path], into: Path) -> None:
    into.mkdir(parents=True, exist_ok=True)
    for name, target in files.items():
        (into / name).symlink_to(target)
