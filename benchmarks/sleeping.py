"""An encoder that only sleeps: what scheduling does, on a machine whose cores others use too."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.encoder.mixes import LONGEST

__all__ = ["SLEEPS", "write_sleeping"]

SLEEPS = "model.null"
WIDTH = 384
ROWS = 32
# Near what all-MiniLM-L6-v2 takes of one core; the device runs two at once.
RUN_MS, TOKEN_MS = 1.0, 0.12


def write_sleeping(folder: Path) -> dict[str, Path]:
    """Write a `model.null` that answers zeros FP32 [batch, 384]; return its path by its name."""
    model = folder / SLEEPS
    model.write_text(json.dumps(_graph()))
    return {SLEEPS: model}


def _graph() -> dict[str, object]:
    times = {
        f"{rows}x{length}": RUN_MS + TOKEN_MS * rows * length
        for rows in range(1, ROWS + 1)
        for length in range(1, LONGEST + 1)
    }
    ids = {"name": "input_ids", "dtype": "INT64", "dims": ["batch", "sequence"]}
    embedding = {"name": "sentence_embedding", "dtype": "FP32", "dims": ["batch", WIDTH]}
    return {"inputs": [ids], "outputs": [{**embedding, "compute": "zeros"}], "cost_ms": times}
