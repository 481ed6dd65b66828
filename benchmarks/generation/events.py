"""Server-sent events, by which both servers stream text over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

__all__ = ["events"]

MAX_LINE_BYTES = 1 << 20


async def events(address: str, path: str, asked: Mapping[str, Any]) -> AsyncIterator[Any]:
    """Post JSON and yield the JSON of each event, until the server or the caller has enough.

    A connection of its own and no library: what a client takes of the cores is taken from the
    server. gRPC's client for asyncio takes three times as much per token.

    Args:
        address: host and port.
        path: with its leading slash.
        asked: the body.

    Raises:
        RuntimeError: the answer has another status than 200; has what it says.
    """
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=MAX_LINE_BYTES)
    body = json.dumps(asked).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    try:
        writer.write(head.encode() + body)
        status = await reader.readline()
        if status.split()[1:2] != [b"200"]:
            raise RuntimeError((status + await reader.read()).decode(errors="replace"))
        while line := await reader.readline():
            if line.startswith(b"data: {"):
                yield json.loads(line[len(b"data: ") :])
    finally:
        writer.close()
