"""What a model file that is a zip archive unpacks to, known before it is unpacked.

Engines read such files (`.pt2`, `.pt`) entry by entry into memory. torch stores weights as they
are, so a file that says it unpacks to many times its size is not what torch wrote.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from ge_backend.errors import ModelError, OutOfMemory
from ge_backend.model.config.sizes import format_bytes

__all__ = ["check_archive", "is_pickled"]

# Code in an archive is compressed, and shrinks by less; small files may do so by more.
MAX_TIMES = 10
ALWAYS_BYTES = 64 << 20
# How a pickle begins that is no archive, as torch.save wrote it before 1.6: its protocol, 2.
PICKLE = b"\x80\x02"


def check_archive(path: Path, free_bytes: int) -> None:
    """See that an archive can be unpacked in memory; what is no archive is the engine's to refuse.

    Raises:
        ModelError: it unpacks to many times its size.
        OutOfMemory: the machine has no more than `free_bytes` left.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return
    size = path.stat().st_size
    if unpacked > max(ALWAYS_BYTES, MAX_TIMES * size):
        raise ModelError(
            f"{path} has {format_bytes(size)} and unpacks to {format_bytes(unpacked)}, more than "
            f"{MAX_TIMES} times as much: torch did not write it"
        )
    if unpacked > free_bytes:
        raise OutOfMemory(
            f"{path} unpacks to {format_bytes(unpacked)}, and the machine has "
            f"{format_bytes(free_bytes)}"
        )


def is_pickled(path: Path) -> bool:
    """Whether torch.save has written a file: weights, or what a trainer keeps, but no program.

    Source: torch 2.13, torch/serialization.py, `_is_torchscript_zip`.
    """
    try:
        if not zipfile.is_zipfile(path):
            with path.open("rb") as file:
                return file.read(len(PICKLE)) == PICKLE
        with zipfile.ZipFile(path) as archive:
            names = {name.partition("/")[2] for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return False
    return "data.pkl" in names and "constants.pkl" not in names
