"""Requests of unequal lengths and batch sizes share a batch: the model `token_scores`.

A request is a rectangle, [batch, length]; different requests are different rectangles. The output
is as long as the input, so each answer comes back at its own request's length, and it is the same
answer that the request gets alone.

python client_examples/ragged_batch.py --protocol http
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

import connection

SHAPES = ((2, 3), (1, 17), (3, 1), (1, 60), (4, 9))


def infer(triton: Any, url: str, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Return the scores of INT64 [batch, length] as FP32 [batch, length, 4]."""
    tokens = triton.InferInput("input_ids", ids.shape, "INT64")
    tokens.set_data_from_numpy(ids)
    with triton.InferenceServerClient(url) as client:
        scores: npt.NDArray[np.float32] = client.infer("token_scores", [tokens]).as_numpy("scores")
    return scores


def main(options: argparse.Namespace) -> None:
    triton = options.triton
    random = np.random.default_rng(7)
    requests = [random.integers(0, 1000, shape) for shape in SHAPES]
    with ThreadPoolExecutor(len(requests)) as threads:
        together = list(threads.map(lambda ids: infer(triton, options.url, ids), requests))
    for ids, scores in zip(requests, together, strict=True):
        alone = infer(triton, options.url, ids)
        print(
            f"sent {list(ids.shape)}, got {list(scores.shape)}, "
            f"largest difference from alone {np.abs(scores - alone).max():.1e}"
        )


if __name__ == "__main__":
    connection.run(main, connection.parser(__doc__))
