"""Many requests in flight at once, each of another length: the model `mean_embedding`.

The host collects what waits, the backend sorts it into well-filled batches, and every request gets
its own answer. Nothing is padded here.

python client_examples/async_many.py --requests 200 --in-flight 32
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import time
from typing import Any

import numpy as np
import numpy.typing as npt

import connection


async def infer(
    triton: Any, client: Any, ids: npt.NDArray[np.int64], gate: asyncio.Semaphore
) -> npt.NDArray[np.float32]:
    """Return the answer to one request, FP32 [16]; waits while too many are in flight."""
    tokens = triton.InferInput("input_ids", [1, len(ids)], "INT64")
    tokens.set_data_from_numpy(ids[np.newaxis])
    async with gate:
        result = await client.infer("mean_embedding", [tokens])
    mean: npt.NDArray[np.float32] = result.as_numpy("mean")[0]
    return mean


async def run(options: argparse.Namespace) -> None:
    triton = importlib.import_module(f"tritonclient.{options.protocol}.aio")
    random = np.random.default_rng(7)
    texts = [random.integers(0, 1000, random.integers(1, 100)) for _ in range(options.requests)]
    gate = asyncio.Semaphore(options.in_flight)
    async with triton.InferenceServerClient(options.url) as client:
        start = time.perf_counter()
        answers = await asyncio.gather(*(infer(triton, client, ids, gate) for ids in texts))
        seconds = time.perf_counter() - start
    print(f"{len(answers)} answers, {len(answers) / seconds:.0f} requests per second")
    print("norms of the first five:", *(f"{np.linalg.norm(a):.4f}" for a in answers[:5]))


def main(options: argparse.Namespace) -> None:
    asyncio.run(run(options))


if __name__ == "__main__":
    parser = connection.parser(__doc__)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--in-flight", type=int, default=32)
    connection.run(main, parser)
