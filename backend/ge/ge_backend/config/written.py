"""What a config.pbtxt says that the host does not hand on: it gives a 0 for nothing, too."""

from __future__ import annotations

import re

__all__ = ["says_max_batch_size"]

# Texts and comments are passed over; no message within the configuration has a field of that name.
_FIELD = re.compile(
    r"""\#[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\b(max_batch_size)\b""",
)


def says_max_batch_size(text: str) -> bool:
    """Whether the text of a config.pbtxt has that field.

    The host's configuration has 0 with it and without it. Seen on Triton 2.51.
    """
    return any(found.group(1) for found in _FIELD.finditer(text))
