"""`ge-backend install DIR`: put the backend into a Triton installation, or take it out again."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from ge_backend.errors import ConfigError
from ge_tools.tritonserver import BACKEND, backend_files

__all__ = ["register"]


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "install",
        help="copy or link the backend into a Triton installation",
        description="Puts the backend into DIR/backends/ge, in place of an older copy of it.",
    )
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="a Triton installation, or its backends folder"
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--link", action="store_true", help="link to these files, do not copy")
    action.add_argument("--uninstall", action="store_true", help="take the backend out")
    parser.set_defaults(func=install)


def install(arguments: argparse.Namespace) -> int:
    """Install or remove the backend and say so; return 0.

    Raises:
        ConfigError: the folder is no Triton installation, its `ge` is not this backend, or is to
            be linked to itself, or nothing can be written there.
    """
    target = _backends_folder(arguments.directory) / BACKEND
    if target.is_symlink() or (target.exists() and not _is_ours(target)):
        raise ConfigError(f"{target} is there and is not this backend; move it away first")
    if arguments.uninstall:
        if not target.exists():
            print(f"{target} is not there")
            return 0
        _take_out(target)
        print(f"removed {target}")
        return 0
    if arguments.link and any(path.is_relative_to(target) for path in backend_files().values()):
        raise ConfigError(
            f"{target} cannot be linked to itself, and this command runs from there; run the "
            "ge-backend of the files that it shall lead to"
        )
    try:
        _put(target, link=arguments.link)
    except OSError as error:
        raise ConfigError(f"cannot write {target}: {_reason(error)}") from error
    print(f"{'linked' if arguments.link else 'copied'} the backend to {target}")
    return 0


def _backends_folder(directory: Path) -> Path:
    """Return the folder of backends: the one that has the Python backend, which runs ours."""
    for folder in (directory / "backends", directory):
        if (folder / "python" / "libtriton_python.so").is_file():
            return folder.resolve()
    raise ConfigError(
        f"{directory} is not a Triton installation: expected backends/python/libtriton_python.so "
        "in it, or python/libtriton_python.so if it is the backends folder"
    )


def _is_ours(target: Path) -> bool:
    if all((target / name).is_symlink() for name in backend_files()):
        return True  # what they led to may be gone
    return (target / "model.py").is_file() and (target / "ge_backend" / "__init__.py").is_file()


def _put(target: Path, *, link: bool) -> None:
    """Fill a new folder beside the target and swap it in: no server sees half a backend."""
    with tempfile.TemporaryDirectory(prefix=".ge-", dir=target.parent) as scratch:
        fresh = Path(scratch) / BACKEND
        fresh.mkdir()
        for name, source in backend_files().items():
            _place(source, fresh / name, link=link)
        for path in (fresh, *fresh.rglob("*")):  # the server is often another user
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() else 0o644)
        _set_aside(target, scratch)
        fresh.rename(target)


def _take_out(target: Path) -> None:
    try:
        with tempfile.TemporaryDirectory(prefix=".ge-", dir=target.parent) as scratch:
            _set_aside(target, scratch)
    except OSError as error:
        raise ConfigError(f"cannot remove {target}: {_reason(error)}") from error


def _place(source: Path, target: Path, *, link: bool) -> None:
    if link:
        target.symlink_to(source)
    elif source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copyfile(source, target)


def _set_aside(target: Path, scratch: str) -> None:
    """Move a backend into a folder that is about to be removed.

    Removed in its place, and interrupted meanwhile, it would not be known as this one any more.
    """
    if target.exists():
        shutil.move(target, Path(scratch) / "old")  # a layer of an image takes no rename


def _reason(error: OSError) -> str:
    """Return why; copying a folder ends with a list, of which the first is enough."""
    return str(error.args[0][0][2] if isinstance(error, shutil.Error) else error.strerror)
