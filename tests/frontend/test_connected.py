"""Clients that go away, and streams in one."""

import asyncio

import pytest

from ge_openai.connected import ClientGoneError, in_turns, merged, while_connected


class Caller:
    """Stands for a request whose client goes after a while."""

    def __init__(self, stays_s):
        self.stays_s = stays_s

    async def receive(self):
        await asyncio.sleep(self.stays_s)
        return {"type": "http.disconnect"}


def test_work_is_done_while_its_client_is_there():
    """Its result or its error is the caller's."""

    async def work(number):
        await asyncio.sleep(0)
        return 1 // number

    assert asyncio.run(while_connected(Caller(60), work(1))) == 1
    with pytest.raises(ZeroDivisionError):
        asyncio.run(while_connected(Caller(60), work(0)))


def test_work_ends_when_its_client_goes():
    """It is cancelled, and has ended when that is told."""
    ended = []

    async def work():
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    with pytest.raises(ClientGoneError):
        asyncio.run(while_connected(Caller(0.01), work()))
    assert ended == [True]


def test_work_is_done_in_turns():
    """So much at once, whatever ends first; what comes of it is in order."""
    under_way, most = [], []

    async def work(number):
        under_way.append(number)
        most.append(len(under_way))
        await asyncio.sleep(0.001 * (number % 3))
        under_way.remove(number)
        return -number

    assert asyncio.run(in_turns(work, range(20), 4)) == [-number for number in range(20)]
    assert max(most) == 4
    assert asyncio.run(in_turns(work, [], 4)) == []


def test_an_error_or_a_client_that_goes_ends_all_turns():
    """What is under way is cancelled, and nothing else is begun."""
    begun, ended = [], []

    async def work(number):
        begun.append(number)
        try:
            await asyncio.sleep(0.01 if number == 1 else 60)
            raise ValueError("no")
        finally:
            ended.append(number)

    with pytest.raises(ValueError, match="no"):
        asyncio.run(in_turns(work, range(20), 4))
    assert begun == sorted(ended) == [0, 1, 2, 3]
    with pytest.raises(ClientGoneError):
        asyncio.run(while_connected(Caller(0.01), in_turns(work, (0, 2, 3), 2)))
    assert sorted(ended) == [0, 0, 1, 2, 2, 3]


def stream(items, closed, error=None):
    async def generate():
        try:
            for item in items:
                await asyncio.sleep(0)
                yield item
            if error is not None:
                raise error
        finally:
            closed.append(True)

    return generate()


def test_streams_come_as_one():
    """Each in its order, with its number."""
    closed = []

    async def collect():
        return [item async for item in merged([stream("ab", closed), stream("xyz", closed)])]

    found = asyncio.run(collect())
    assert [item for number, item in found if number == 0] == ["a", "b"]
    assert [item for number, item in found if number == 1] == ["x", "y", "z"]
    assert len(closed) == 2


def test_an_error_of_one_ends_all():
    """None is left open."""
    closed = []

    async def collect():
        return [
            i
            async for i in merged([stream("a" * 99, closed), stream("", closed, ValueError("no"))])
        ]

    with pytest.raises(ValueError, match="no"):
        asyncio.run(collect())
    assert len(closed) == 2


def test_closing_it_closes_all():
    """A client that reads no more leaves nothing running."""
    closed = []

    async def read_one():
        both = merged([stream("a" * 99, closed), stream("b" * 99, closed)])
        await anext(both)
        await both.aclose()
        return len(closed)

    assert asyncio.run(read_one()) == 2


def test_a_single_stream_is_passed_through():
    """Its items, its error and its end are the same as among several."""
    closed = []

    async def read():
        assert [item async for item in merged([stream("ab", closed)])] == [(0, "a"), (0, "b")]
        with pytest.raises(ValueError, match="no"):
            [item async for item in merged([stream("a", closed, ValueError("no"))])]
        one = merged([stream("a" * 99, closed)])
        await anext(one)
        await one.aclose()

    asyncio.run(read())
    assert len(closed) == 3
