"""What a config.pbtxt says that the host does not hand on: it gives a 0 for nothing, too."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["says_max_batch_size"]

# Texts and comments are passed over; no message within the configuration has a field of that name.
_FIELD = re.compile(
    r"""\#[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\b(max_batch_size)\b""",
)


def says_max_batch_size(directory: Path) -> bool:
    """Whether the config.pbtxt beside a version folder has that field; not where none is read.

    The host's configuration has 0 with it and without it. Seen on Triton 2.51.
    """
    try:
        text = (directory.parent / "config.pbtxt").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return any(found.group(1) for found in _FIELD.finditer(text))
