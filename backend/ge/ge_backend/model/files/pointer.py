"""Pointers that version control leaves in the place of large files."""

from __future__ import annotations

from pathlib import Path

from ge_backend.errors import ModelError

__all__ = ["refuse_pointer"]

# How such a file begins, and what brings its content. Sources: git-lfs docs/spec.md, "The Pointer";
# git-annex doc/internals/pointer_file.mdwn.
POINTERS = {
    b"version https://git-lfs.github.com/spec/": ("Git LFS", "git lfs pull"),
    b"/annex/objects/": ("git-annex", "git annex get ."),
}
LONGEST = max(map(len, POINTERS))


def refuse_pointer(path: Path) -> None:
    """Raise where a file is a pointer to what was not downloaded; others pass, missing ones too.

    Raises:
        ModelError: with what brings the content.
    """
    try:
        with path.open("rb") as file:
            begin = file.read(LONGEST)
    except OSError:
        return
    for sign, (system, command) in POINTERS.items():
        if begin.startswith(sign):
            raise ModelError(
                f"{path} is a pointer of {system}, and not the file itself: its content was not "
                f"downloaded; run {command} where it was cloned, or download the file"
            )
