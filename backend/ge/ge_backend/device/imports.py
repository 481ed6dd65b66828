"""One thread at a time imports what several models share, in the whole process.

Python locks each module by itself, which is not enough for libraries of this size. transformers
puts another object in its own place when its import ends, and a thread that has waited for that
gets the first one, which has no names (seen with 5.23 on Python 3.11); its names are modules that
are imported when they are asked for. Parts of torch import each other in circles, and there Python
hands out halves rather than wait for ever. So every import within a function of `device/` stands
in `importing`, and so does whatever is found by its name.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

__all__ = ["importing"]

_LOCK = threading.RLock()  # what is imported may import in its turn


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Let the calling thread import, and no other one meanwhile."""
    with _LOCK:
        yield
