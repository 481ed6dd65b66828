"""A closed loop over gRPC, on asyncio: the cheapest of grpcio's ways (callbacks cost 15 % more)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import grpc  # type: ignore[import-untyped]

from benchmarks.protocol import GRPC_METHOD, grpc_embedding, grpc_request
from benchmarks.rivals.forward import Ids, Rows
from benchmarks.tally import Tally

__all__ = ["GrpcLoop"]


class GrpcLoop:
    """As `HttpLoop`, over one gRPC channel."""

    def __init__(self, address: str, rows: Mapping[str, Sequence[Ids]]) -> None:
        self._rows = rows
        self._requests: dict[tuple[str, str], list[bytes]] = {}
        self._loop = asyncio.new_event_loop()
        self._call: Any = self._loop.run_until_complete(_connect(address))
        self._workers: list[asyncio.Task[None]] = []
        self._tally: Tally | None = None
        self._sending = False

    def start(self, model: str, mix: str, concurrency: int, positions: Iterator[int]) -> None:
        """Prepare `concurrency` workers; they send when the loop runs."""
        if (model, mix) not in self._requests:
            rows = self._rows[mix]
            self._requests[model, mix] = [grpc_request(model, row) for row in rows]
        requests = self._requests[model, mix]
        self._sending = True
        self._workers = [
            self._loop.create_task(self._work(requests, positions)) for _ in range(concurrency)
        ]

    def run(self, tally: Tally, seconds: float) -> None:
        """Collect answers and send a request for each, for so long."""
        self._tally = tally
        self._loop.run_until_complete(asyncio.sleep(seconds))

    def drain(self, tally: Tally) -> None:
        """Collect what is still in flight."""
        self._tally = tally
        self._sending = False
        self._loop.run_until_complete(asyncio.gather(*self._workers))

    @staticmethod
    def embedding(answer: bytes) -> Rows:
        """Return what an answer holds."""
        return grpc_embedding(answer)

    async def _work(self, requests: list[bytes], positions: Iterator[int]) -> None:
        while self._sending:
            position = next(positions)
            started = time.perf_counter()
            try:
                answer, failed = await self._call(requests[position]), False
            except grpc.aio.AioRpcError as error:
                answer, failed = str(error).encode(), True
            if self._tally is not None:
                self._tally.add(position, started, answer, failed=failed)


async def _connect(address: str) -> Any:
    channel = grpc.aio.insecure_channel(address)
    await channel.channel_ready()
    return channel.unary_unary(GRPC_METHOD)
