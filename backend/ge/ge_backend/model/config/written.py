"""What a config.pbtxt says that the host does not hand on: it gives a 0 for nothing, too."""

from __future__ import annotations

import re

__all__ = ["sets_max_batch_size", "sets_ragged"]

# Texts and comments are passed over; other messages within the configuration have no such fields.
_FIELD = re.compile(
    r"""\#[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\b(max_batch_size|allow_ragged_batch)\b""",
)


def sets_max_batch_size(text: str) -> bool:
    """Whether the text of a config.pbtxt has that field.

    The host's configuration has 0 with it and without it. Seen on Triton 2.51.
    """
    return "max_batch_size" in _fields(text)


def sets_ragged(text: str) -> bool:
    """Whether the text of a config.pbtxt itself marks inputs as ragged; the host completes some."""
    return "allow_ragged_batch" in _fields(text)


def _fields(text: str) -> set[str]:
    return {found.group(1) for found in _FIELD.finditer(text)} - {None}
