"""How often a model was loaded anew because a stub had died, noted in the folder of the sockets.

Who loads it anew watches the server and cannot publish metrics; the model's own stubs do it.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["note_heal", "times_healed"]

FOLDER = "healed"


def note_heal(runtime_dir: Path, model: str) -> int:
    """Count once more; return how often it was."""
    times = 1 + times_healed(runtime_dir, model)
    path = _path(runtime_dir, model)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(str(times), encoding="utf-8")
    return times


def times_healed(runtime_dir: Path, model: str) -> int:
    """Return how often it was, by this server; 0 where nobody watches it."""
    try:
        return int(_path(runtime_dir, model).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0


def _path(runtime_dir: Path, model: str) -> Path:
    return runtime_dir / FOLDER / Path(model).name
