"""Sends the page to the server: one text per request, many requests in flight, over gRPC."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import tritonclient.grpc.aio as grpcclient

from demo.encoder import OUTPUT
from ge_backend.tensors import Array

__all__ = ["Load", "Reply", "send"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much to send: every row `rounds` times, `concurrency` requests at a time."""

    rounds: int
    concurrency: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The embedding FP32 [384] of row `index`, and how long the client waited for it."""

    index: int
    embedding: Array
    latency_s: float


def send(url: str, model: str, rows: Sequence[Array], load: Load) -> list[Reply]:
    """Return one reply per row and round, in the order in which they came.

    Every round has another order, the same in every run, so that rows meet different neighbours.

    Raises:
        tritonclient.utils.InferenceServerException: the server refused a request.
    """
    return asyncio.run(_send(url, model, rows, load))


async def _send(url: str, model: str, rows: Sequence[Array], load: Load) -> list[Reply]:
    order = [
        index
        for number in range(load.rounds)
        for index in random.Random(number).sample(range(len(rows)), len(rows))  # noqa: S311
    ]
    waiting = iter(order)
    replies: list[Reply] = []
    client = grpcclient.InferenceServerClient(url)
    try:
        workers = (_work(client, model, rows, waiting, replies) for _ in range(load.concurrency))
        await asyncio.gather(*workers)
    finally:
        await client.close()
    return replies


async def _work(
    client: grpcclient.InferenceServerClient,
    model: str,
    rows: Sequence[Array],
    waiting: Iterator[int],
    replies: list[Reply],
) -> None:
    """Take rows from the shared iterator until none is left."""
    for index in waiting:
        tokens = grpcclient.InferInput("input_ids", [1, len(rows[index])], "INT64")
        tokens.set_data_from_numpy(rows[index][np.newaxis])
        start = time.perf_counter()
        result = await client.infer(model, [tokens])
        latency = time.perf_counter() - start
        embedding = result.as_numpy(OUTPUT)[0]
        replies.append(Reply(index=index, embedding=embedding, latency_s=latency))
