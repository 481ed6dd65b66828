"""Server-sent events: what the client of the benchmark of text takes from a server."""

import asyncio
import json

import pytest
from benchmarks.generation.events import events


async def _heard(answer: bytes) -> tuple[dict[str, str], list[dict[str, int]]]:
    """Return what a server is asked that gives this answer, and the events that are heard."""
    asked = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().partition("content-length: ")[2].partition("\r")[0])
        asked.append({"path": head.split()[1], **json.loads(await reader.readexactly(length))})
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        came = [event async for event in events(f"{host}:{port}", "/stream", {"prompt": "a"})]
    return asked[0], came


def test_events_come_as_their_json() -> None:
    """Lines between them, and the word at the end of a stream, are none."""
    body = b'data: {"tokens": 1}\n\nid: 7\ndata: {"tokens": 2}\n\ndata: [DONE]\n\n'
    asked, came = asyncio.run(_heard(b"HTTP/1.1 200 OK\r\n\r\n" + body))
    assert asked == {"path": "/stream", "prompt": "a"}
    assert came == [{"tokens": 1}, {"tokens": 2}]


def test_a_refusal_is_quoted() -> None:
    """Else a run would count no tokens and say no reason."""
    with pytest.raises(RuntimeError, match=r"400 Bad(.|\n)*the prompt is too long"):
        asyncio.run(_heard(b"HTTP/1.1 400 Bad\r\n\r\nthe prompt is too long"))
