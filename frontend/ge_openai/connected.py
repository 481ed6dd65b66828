"""Requests whose client may go away: what is done for them then ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import Request

__all__ = ["ClientGoneError", "in_turns", "merged", "while_connected"]

S = TypeVar("S")
T = TypeVar("T")


class ClientGoneError(Exception):
    """The answer is not waited for any more."""


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return what the work returns; it is cancelled when the client goes, whose body has been read.

    Raises:
        ClientGoneError: the client has gone.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def in_turns(work: Callable[[S], Awaitable[T]], given: Sequence[S], most: int) -> list[T]:
    """Return what comes of each, in order; at most this many at once, and an error ends all."""
    found: dict[int, T] = {}
    waiting = iter(enumerate(given))

    async def take_turns() -> None:
        for place, one in waiting:
            found[place] = await work(one)

    tasks = [asyncio.ensure_future(take_turns()) for _ in range(min(most, len(given)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [found[place] for place in range(len(given))]


async def merged(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """Yield what streams bring as it comes, with the stream's number; an error ends all of them."""
    if len(streams) == 1:  # nothing to merge, so no task and no queue between
        async with aclosing(streams[0]) as stream:
            async for only in stream:
                yield 0, only
        return
    arrived: asyncio.Queue[tuple[int, T] | BaseException | None] = asyncio.Queue(len(streams))
    tasks = [
        asyncio.ensure_future(_pass_on(number, stream, arrived))
        for number, stream in enumerate(streams)
    ]
    left = len(tasks)
    try:
        while left:
            item = await arrived.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pass_on(
    number: int,
    stream: AsyncGenerator[T, None],
    arrived: asyncio.Queue[tuple[int, T] | BaseException | None],
) -> None:
    end: BaseException | None = None
    try:
        async with aclosing(stream):
            async for item in stream:
                await arrived.put((number, item))
    except Exception as error:  # noqa: BLE001 - handed to the reader
        end = error
    await arrived.put(end)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
