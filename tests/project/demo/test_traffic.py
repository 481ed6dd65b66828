from __future__ import annotations

import asyncio
from collections import Counter

import numpy as np
import pytest
from demo import traffic
from demo.traffic import Load, send


class Client:
    """Answers with the sum of the tokens; notes the order and how many are in flight."""

    asked: list[int]
    in_flight: int
    most: int
    closed: bool

    def __init__(self, _url: str) -> None:
        Client.asked, Client.in_flight, Client.most, Client.closed = [], 0, 0, False

    async def infer(self, model, inputs):
        tokens = np.frombuffer(inputs[0]._get_content(), np.int64)
        if tokens[0] < 0:
            raise ValueError("refused")
        Client.asked.append(int(tokens[0]))
        Client.in_flight += 1
        Client.most = max(Client.most, Client.in_flight)
        await asyncio.sleep(0.001)
        Client.in_flight -= 1
        return Result(tokens)

    async def close(self):
        Client.closed = True


class Result:
    def __init__(self, tokens):
        self.tokens = tokens

    def as_numpy(self, name):
        assert name == "sentence_embedding"
        return np.array([[self.tokens.sum()]], np.float32)


@pytest.fixture(autouse=True)
def client(monkeypatch):
    monkeypatch.setattr(traffic.grpcclient, "InferenceServerClient", Client)


ROWS = [np.full(length, length) for length in range(1, 9)]


def test_every_row_is_sent_once_per_round_at_its_own_length():
    """Each reply belongs to the row that it names."""
    replies = send("nowhere", "m", ROWS, Load(rounds=3, concurrency=4))

    assert Counter(reply.index for reply in replies) == dict.fromkeys(range(8), 3)
    assert all(reply.embedding == [(reply.index + 1) ** 2] for reply in replies)
    assert all(reply.latency_s >= 0.001 for reply in replies)


def test_so_many_requests_are_in_flight_and_no_more():
    """The concurrency asked for is reached and kept."""
    send("nowhere", "m", ROWS, Load(rounds=2, concurrency=3))

    assert Client.most == 3


def test_rounds_differ_in_order_and_runs_do_not():
    """Rows meet different neighbours, yet two runs can be compared."""
    send("nowhere", "m", ROWS, Load(rounds=2, concurrency=1))
    first = Client.asked
    send("nowhere", "m", ROWS, Load(rounds=2, concurrency=1))

    assert first[:8] != first[8:]
    assert Client.asked == first


def test_a_refused_request_ends_the_run_and_the_connection():
    """An error is not swallowed, and the client is closed."""
    with pytest.raises(ValueError, match="refused"):
        send("nowhere", "m", [np.array([-1])], Load(rounds=1, concurrency=1))

    assert Client.closed
