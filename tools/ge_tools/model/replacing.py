"""Writing a file whole, so that no server reads half of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["replacing"]


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Give a draft beside a file that takes its place, with its permissions, at the end.

    After an error the file is as it was, and there is no draft.
    """
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        yield draft
        if file.exists():
            shutil.copymode(file, draft)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
