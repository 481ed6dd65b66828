"""Clients that send requests all the time and check every answer."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from dataclasses import dataclass

import numpy as np
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

__all__ = ["LOST_S", "MODEL", "Answer", "Load", "ask", "ask_for", "break_off", "hang_up"]

MODEL = "sums"
# A request that is not answered within this time counts as lost.
LOST_S = 60.0
PAUSE_S = 0.05
# Rows are filled with one of so many values, one after another.
VALUES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of one request; times are CLOCK_MONOTONIC seconds.

    Attributes:
        outcome: `right`, `wrong`, `error` or `lost`.
        text: of the error.
    """

    sent_s: float
    done_s: float
    outcome: str
    text: str = ""

    @property
    def took_s(self) -> float:
        """How long it took."""
        return self.done_s - self.sent_s


def ask(
    client: grpcclient.InferenceServerClient, number: int, *, timeout_us: int | None = None
) -> Answer:
    """Send one request whose answer only it can have, and check that."""
    length, value = 1 + number % 7, float(number % VALUES)
    tensor = _row(length, value)
    sent_s = time.monotonic()
    try:
        result = client.infer(MODEL, [tensor], client_timeout=LOST_S, timeout=timeout_us)
    except InferenceServerException as error:
        lost = "Deadline Exceeded" in str(error.message())
        outcome, text = ("lost" if lost else "error"), f"{error.status()}: {error.message()}"
    else:
        outcome, text = ("right" if _read(result) == [length * value] else "wrong"), ""
    return Answer(sent_s=sent_s, done_s=time.monotonic(), outcome=outcome, text=text)


def _read(result: grpcclient.InferResult) -> list[float] | None:
    """Return what an answer holds; None if that is nothing, or cannot be read."""
    try:
        answered = result.as_numpy("y")
    except (TypeError, ValueError):
        return None
    return None if answered is None else answered.ravel().tolist()


def ask_for(url: str, value: float, count: int) -> None:
    """Send so many requests for one value, one after another, whatever becomes of them."""
    with grpcclient.InferenceServerClient(url) as client:
        for _ in range(count):
            with contextlib.suppress(InferenceServerException):
                client.infer(MODEL, [_row(3, value)], client_timeout=LOST_S)


def hang_up(url: str, count: int) -> None:
    """Send so many requests at once and give up on all of them."""
    with grpcclient.InferenceServerClient(url) as client:
        calls = [client.async_infer(MODEL, [_row(3, 1.0)], callback=_nothing) for _ in range(count)]
        for call in calls:
            call.cancel()


def break_off(host: str, port: int, count: int) -> None:
    """Send so many requests over HTTP, each over a connection of its own that ends at once."""
    tensor = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 1, 1]}
    body = json.dumps({"inputs": [tensor]})
    head = f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nHost: {host}\r\n"
    message = f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()
    for _ in range(count):
        with (
            contextlib.suppress(OSError),
            socket.create_connection((host, port), LOST_S) as connection,
        ):
            connection.sendall(message)


def _nothing(result: object, error: object) -> None:
    del result, error


def _row(length: int, value: float) -> grpcclient.InferInput:
    row = np.full((1, length), value, np.float32)
    tensor = grpcclient.InferInput("x", row.shape, "FP32")
    tensor.set_data_from_numpy(row)
    return tensor


class Load:
    """So many clients, each with one request in flight, until it is closed.

    Args:
        url: of the server's gRPC.
        clients: how many.
        timeout_us: the requests' own time limit; None: none.
    """

    def __init__(self, url: str, clients: int, *, timeout_us: int | None = None) -> None:
        self._url = url
        self._timeout_us = timeout_us
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._answers: list[Answer] = []
        self._sent = 0
        self._waiting: dict[int, float] = {}
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def close(self) -> list[Answer]:
        """Let what is in flight end; return every answer in the order of their coming.

        A request whose client ended, or waits, without an answer comes last and is lost.
        """
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * LOST_S)
        now = time.monotonic()
        with self._lock:
            lost = [
                Answer(sent_s=sent_s, done_s=now, outcome="lost", text="no answer")
                for sent_s in self._waiting.values()
            ]
            return [*self._answers, *lost]

    def _work(self) -> None:
        client = grpcclient.InferenceServerClient(self._url)
        try:
            while not self._stop.is_set():
                with self._lock:
                    self._sent += 1
                    number = self._sent
                    self._waiting[number] = time.monotonic()
                answer = ask(client, number, timeout_us=self._timeout_us)
                with self._lock:
                    self._answers.append(answer)
                    del self._waiting[number]
                if answer.outcome != "right":
                    time.sleep(PAUSE_S)  # a server that is down would be asked a thousand times
        finally:
            client.close()
