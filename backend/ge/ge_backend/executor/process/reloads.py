"""How often a model was loaded anew because a stub had died, noted in the folder of the sockets.

The process that loads it anew watches the server from outside and cannot publish metrics; the
model's own stubs publish the count.
"""

from __future__ import annotations

import logging
from pathlib import Path

__all__ = ["note_reload", "times_reloaded"]

log = logging.getLogger(__name__)

FOLDER = "reloaded"


def note_reload(runtime_dir: Path, model: str) -> int:
    """Count once more; return how often it was.

    The count is the size of a file in which nothing is written: a full disk has room for that.
    """
    times = 1 + times_reloaded(runtime_dir, model)
    path = _path(runtime_dir, model)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.truncate(times)
    except OSError as error:
        log.warning("ge_model_heals of model %r stays as it was: %s", model, error)
    return times


def times_reloaded(runtime_dir: Path, model: str) -> int:
    """Return how often this server loaded the model anew; 0 where no process watches the server."""
    try:
        return _path(runtime_dir, model).stat().st_size
    except OSError:
        return 0


def _path(runtime_dir: Path, model: str) -> Path:
    return runtime_dir / FOLDER / Path(model).name
