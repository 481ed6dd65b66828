"""An open loop: requests come when they come, whether or not the ones before are answered.

A closed loop slows down with the server that it loads, so it never shows what a queue does under
more load than the server can take. Latencies count from the moment at which a request was due.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc  # type: ignore[import-untyped]

from benchmarks.protocol import GRPC_METHOD, grpc_request
from benchmarks.rivals.forward import Ids

__all__ = ["Offered", "offer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """What became of the requests of one window.

    Attributes:
        latencies_ms: of those that were answered.
        refused: how many were UNAVAILABLE, as a full queue answers.
        wall_s: from the first until the last answer.
        answers: position in the rows, and a serialised ModelInferResponse, of those answered.
    """

    latencies_ms: Sequence[float]
    refused: int
    wall_s: float
    answers: Sequence[tuple[int, bytes]]


def offer(
    address: str, model: str, rows: Sequence[Ids], rate: float, seconds: float, seed: int
) -> Offered:
    """Send `rate` requests a second with random gaps (a Poisson process), and await all answers.

    Args:
        address: `host:port` of the server's gRPC.
        model: its name.
        rows: INT64 [length] each, sent in turn.
        rate: requests per second.
        seconds: how long requests come.
        seed: of the gaps; systems that are compared get the same.

    Raises:
        grpc.aio.AioRpcError: a request failed otherwise than by being refused.
    """
    gaps = random.Random(seed)
    dues: list[float] = []
    due = gaps.expovariate(rate)
    while due < seconds:
        dues.append(due)
        due += gaps.expovariate(rate)
    positions = [number % len(rows) for number in range(len(dues))]
    requests = [grpc_request(model, rows[position]) for position in positions]
    wall_s, sent = asyncio.run(_send_all(address, requests, dues))
    answered = [(at, *answer) for at, answer in zip(positions, sent, strict=True) if answer]
    return Offered(
        latencies_ms=[latency for _, latency, _ in answered],
        refused=len(sent) - len(answered),
        wall_s=wall_s,
        answers=[(position, answer) for position, _, answer in answered],
    )


async def _send_all(
    address: str, requests: Sequence[bytes], dues: Sequence[float]
) -> tuple[float, list[tuple[float, bytes] | None]]:
    """Return the seconds until the last answer, and what `_send` returns for each request."""
    async with grpc.aio.insecure_channel(address) as channel:
        await channel.channel_ready()
        call = channel.unary_unary(GRPC_METHOD)
        begun = time.perf_counter()
        answers = await asyncio.gather(
            *(
                _send(call, request, begun + due)
                for request, due in zip(requests, dues, strict=True)
            )
        )
        return time.perf_counter() - begun, answers


async def _send(call: Any, request: bytes, due: float) -> tuple[float, bytes] | None:
    """Return the milliseconds that an answer took, and it; None if the request was refused."""
    await asyncio.sleep(due - time.perf_counter())
    try:
        answer = await call(request)
    except grpc.aio.AioRpcError as error:
        if error.code() != grpc.StatusCode.UNAVAILABLE:
            raise
        return None
    return 1e3 * (time.perf_counter() - due), answer
