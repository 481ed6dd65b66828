"""Clients that send requests all the time and check every answer."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import numpy as np
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

__all__ = ["MODEL", "Answer", "Load", "ask"]

MODEL = "sums"
# A request that is not answered within this time counts as lost.
LOST_S = 60.0
PAUSE_S = 0.05


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
    row = np.full((1, 1 + number % 7), float(number % 10_000), np.float32)
    tensor = grpcclient.InferInput("x", row.shape, "FP32")
    tensor.set_data_from_numpy(row)
    sent_s = time.monotonic()
    try:
        result = client.infer(MODEL, [tensor], client_timeout=LOST_S, timeout=timeout_us)
    except InferenceServerException as error:
        lost = "Deadline Exceeded" in str(error.message())
        outcome, text = ("lost" if lost else "error"), f"{error.status()}: {error.message()}"
    else:
        outcome = (
            "right" if result.as_numpy("y").ravel().tolist() == [float(row.sum())] else "wrong"
        )
        text = ""
    return Answer(sent_s=sent_s, done_s=time.monotonic(), outcome=outcome, text=text)


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
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def close(self) -> list[Answer]:
        """Let what is in flight end; return every answer in the order of their coming."""
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * LOST_S)
        with self._lock:
            return list(self._answers)

    def _work(self) -> None:
        client = grpcclient.InferenceServerClient(self._url)
        try:
            while not self._stop.is_set():
                with self._lock:
                    self._sent += 1
                    number = self._sent
                answer = ask(client, number, timeout_us=self._timeout_us)
                with self._lock:
                    self._answers.append(answer)
                if answer.outcome != "right":
                    time.sleep(PAUSE_S)  # a server that is down would be asked a thousand times
        finally:
            client.close()
