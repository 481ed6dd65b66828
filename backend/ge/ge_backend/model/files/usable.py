"""Files that are not what their names say: known before an engine says something about bytes."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path

from ge_backend.errors import ModelError
from ge_backend.model.files.archive import is_pickled
from ge_backend.model.files.pointer import refuse_pointer
from ge_backend.model.files.safetensors_header import read_header

__all__ = ["check_usable"]

PROGRAMS = (".pt", ".pt2")
# Where a package has its compiled code. Source: torch 2.13, torch/export/pt2_archive/constants.py.
COMPILED = "data/aotinductor/"


def check_usable(files: Iterable[Path]) -> None:
    """See that files hold what their names say, as far as is told without an engine.

    Raises:
        ModelError: one is a pointer to a file, cut short, or of another kind; says what to do.
    """
    for path in files:
        refuse_pointer(path)
        if path.suffix == ".safetensors":
            read_header(path)
        elif path.suffix in PROGRAMS and path.is_file():
            _check_program(path)


def _check_program(path: Path) -> None:
    if is_pickled(path):
        raise ModelError(
            f"{path} holds what torch.save has pickled, such as a state dict, and no program; save "
            "one with torch.export.save as model.pt2, or with torch.jit.save as model.pt, or serve "
            "the folder of a checkpoint, config.json beside model.safetensors"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.partition("/")[2] for name in archive.namelist()]
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise ModelError(
            f"{path} is no archive as torch writes it ({error}): it is cut short, or something "
            "else; copy it again"
        ) from error
    if any(name.startswith(COMPILED) for name in names):
        raise ModelError(
            f"{path} is a package of AOTInductor, compiled for one machine, and not the program; "
            "save that with torch.export.save, before it is compiled"
        )
