"""An encoder that only sleeps: what scheduling does, on a machine whose cores others use too."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from benchmarks.encoder.mixes import LONGEST, MIXES, draw
from benchmarks.pool import Pool, save_pools
from benchmarks.served import POOL_ROWS, Traffic

__all__ = ["sleeping_traffic"]

WIDTH = 384
ROWS = 32
# Near what all-MiniLM-L6-v2 takes of one core; the device runs two at once.
RUN_MS, TOKEN_MS = 1.0, 0.12


def sleeping_traffic(mix: str, seed: int, folder: Path) -> Traffic:
    """Write a `model.null` that answers zeros FP32 [batch, 384], and sequences for it."""
    model = folder / "model.null"
    model.write_text(json.dumps(_graph()))
    rows = tuple(draw(MIXES[mix], POOL_ROWS, seed))
    zeros = {0: np.zeros(WIDTH, np.float32)}
    pools = folder / "pools.npz"
    save_pools({mix: Pool(rows=rows, answers=zeros, tolerance=0.0)}, pools)
    return Traffic(pools=pools, encoder={model.name: model})


def _graph() -> dict[str, object]:
    times = {
        f"{rows}x{length}": RUN_MS + TOKEN_MS * rows * length
        for rows in range(1, ROWS + 1)
        for length in range(1, LONGEST + 1)
    }
    ids = {"name": "input_ids", "dtype": "INT64", "dims": ["batch", "sequence"]}
    embedding = {"name": "sentence_embedding", "dtype": "FP32", "dims": ["batch", WIDTH]}
    return {"inputs": [ids], "outputs": [{**embedding, "compute": "zeros"}], "cost_ms": times}
