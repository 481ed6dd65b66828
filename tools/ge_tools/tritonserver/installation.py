"""Where a tritonserver is on this machine, and which of its files we use."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ge_backend.errors import ServerError

__all__ = ["ServerInstallation", "find_server", "running_python", "stub_library", "stub_python"]

CONTAINER = Path("/opt/tritonserver")
VARIABLE = "GE_TRITONSERVER"
# See requirements-server.txt.
WITHOUT_NUMPY_1 = (3, 13)
# As a stub has it: `libpython3.12.so.1.0`, or with the hash that a wheel adds,
# `libpython3-419a3a08.13.so.1.0`.
LIBRARY = re.compile(rb"libpython3(?:-[0-9a-f]+)?\.(\d+)\.so[.0-9]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInstallation:
    """One tritonserver and what belongs to it.

    Attributes:
        binary: the server itself.
        libraries: folders that the server's and the stub's shared libraries are in.
        backends: holds `python/` and, in the container, the other backends.
        stub: the Python backend's stub for this interpreter's version; None where it has none.
        stub_versions: the Python versions that have a stub, as `3.11`.
        caches: response cache implementations; None where it has none.
        version: what the installation says about itself; "" if nothing.
    """

    binary: Path
    libraries: tuple[Path, ...]
    backends: Path
    stub: Path | None
    stub_versions: tuple[str, ...]
    caches: Path | None
    version: str


def find_server(explicit: Path | None = None) -> ServerInstallation:
    """Return the first server found: `explicit`, `GE_TRITONSERVER`, the container's, the wheel's.

    Args:
        explicit: the server's binary, or the folder that has `bin/tritonserver`.

    Raises:
        ServerError: there is none, or the one that was named is not one.
    """
    named = explicit or _from_environment()
    if named is not None:
        return _installation(_root_of(named))
    for root in (CONTAINER, *_wheel_roots()):
        if _missing(root) is None:
            return _installation(root)
    raise ServerError(
        f"no tritonserver found: looked at --tritonserver, {VARIABLE}, {CONTAINER} and for the "
        f"nvidia-pytriton wheel; {_how_to_install()}, or name one"
    )


def running_python() -> str:
    """Return this interpreter's version as the stubs' folders are named: `3.11`."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def stub_python(stub: Path) -> str:
    """Return the Python version that a stub is linked with, "" if it does not say."""
    found = LIBRARY.search(stub.read_bytes())
    return f"3.{found[1].decode()}" if found else ""


def stub_library(stub: Path) -> str:
    """Return the name of Python's library that a stub is linked with, "" if it does not say."""
    found = LIBRARY.search(stub.read_bytes())
    return found[0].decode() if found else ""


def _how_to_install() -> str:
    """Return the command; on a Python that has no wheel of numpy 1 the extra leaves it out."""
    if sys.version_info >= WITHOUT_NUMPY_1:
        return "pip install --no-deps nvidia-pytriton==0.7.0 'numpy<2' (pip builds numpy, once)"
    return "pip install 'triton-ge-backend[server]'"


def _from_environment() -> Path | None:
    value = os.environ.get(VARIABLE)
    return Path(value) if value else None


def _root_of(named: Path) -> Path:
    path = named.expanduser().resolve()
    root = path.parent.parent if path.is_file() else path
    missing = _missing(root)
    if missing is not None:
        raise ServerError(
            f"{named} is not a tritonserver: expected its binary or the folder above bin/, "
            f"and {missing} does not exist"
        )
    return root


def _missing(root: Path) -> Path | None:
    """Return the first file that a server cannot do without and that is not there."""
    needed = (root / "bin" / "tritonserver", root / "backends" / "python" / "libtriton_python.so")
    return next((path for path in needed if not path.is_file()), None)


def _wheel_roots() -> Iterator[Path]:
    """Yield the wheel's server folder; the wheel is not imported: that would start threads."""
    spec = importlib.util.find_spec("pytriton")
    for place in (spec.submodule_search_locations or []) if spec else []:
        yield Path(place).resolve() / "tritonserver"


def _installation(root: Path) -> ServerInstallation:
    stubs = _stubs(root)
    caches = root / "caches"
    return ServerInstallation(
        binary=root / "bin" / "tritonserver",
        libraries=_libraries(root),
        backends=root / "backends",
        stub=stubs.get(running_python()),
        stub_versions=tuple(sorted(stubs, key=lambda version: int(version.split(".")[1]))),
        caches=caches if caches.is_dir() else None,
        version=_version(root),
    )


def _stubs(root: Path) -> dict[str, Path]:
    """Return the stubs by Python version; the wheel has one each, the container a single one."""
    name = "triton_python_backend_stub"
    many = {
        folder.name: folder / name
        for folder in (root / "python_backend_stubs").glob("3.*")
        if (folder / name).is_file()
    }
    single = root / "backends" / "python" / name
    if not many and single.is_file():
        return {version: single} if (version := stub_python(single)) else {}
    return many


def _libraries(root: Path) -> tuple[Path, ...]:
    """Return the folders that exist of: the server's own, the wheel's, this interpreter's.

    The interpreter's comes last: a stub needs `libpython3.x.so`, which Pythons from pyenv, uv and
    conda keep where the loader does not look.
    """
    candidates = (
        root / "lib",
        root / "external_libs",
        root.parent.parent / "nvidia_pytriton.libs",
        Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib"),
    )
    return tuple(path for path in candidates if path.is_dir())


def _version(root: Path) -> str:
    container = root / "TRITON_VERSION"
    if container.is_file():
        return container.read_text().strip()
    if root.parent.name == "pytriton":
        try:
            return f"nvidia-pytriton {importlib.metadata.version('nvidia-pytriton')}"
        except importlib.metadata.PackageNotFoundError:
            return ""
    return ""
