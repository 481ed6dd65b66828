"""Copies of a model's files that stay as they are whatever becomes of the files.

A file that is replaced is either another file under its name, or, as `cp` does it, the same file
with other bytes in it. Only a copy outlives both; where the file system shares blocks between files
(XFS, Btrfs) it costs nothing. A hard link outlives the first.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from collections.abc import Sequence
from pathlib import Path

from ge_backend.errors import ModelError

__all__ = ["copy_files"]

# Source: ioctl_ficlone(2), linux/fs.h: _IOW(0x94, 9, int).
FICLONE = 0x40049409


def copy_files(files: Sequence[Path], base: Path, into: Path, most_bytes: int) -> None:
    """Copy files below `base` to the same places below `into`, modification times included.

    Blocks are shared where that can be; else files are copied if all of them together have at most
    `most_bytes`, and linked if they have more.

    Raises:
        ModelError: one lies elsewhere.
        OSError: they cannot be read or written, or linked from where they are.
    """
    small = sum(file.stat().st_size for file in files) <= most_bytes
    for file in files:
        if ".." in file.parts or not file.is_relative_to(base):
            raise ModelError(f"{file} is not in the folder {base}")
        place = into / file.relative_to(base)
        place.parent.mkdir(parents=True, exist_ok=True)
        if not _shared(file, place):
            if small:
                shutil.copyfile(file, place)
            else:
                place.unlink(missing_ok=True)
                place.hardlink_to(file.resolve())
                continue
        shutil.copystat(file, place)


def _shared(file: Path, place: Path) -> bool:
    """Make a copy that shares its blocks; False where the file system has none."""
    with file.open("rb") as source, place.open("wb") as target, contextlib.suppress(OSError):
        fcntl.ioctl(target, FICLONE, source.fileno())
        return True
    return False
