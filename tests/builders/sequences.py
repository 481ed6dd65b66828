"""A client of many sequences, each on a stream of its own."""

from __future__ import annotations

import queue

import numpy as np
import tritonclient.grpc as grpcclient


def tensor(values, kind: str = "FP32", name: str = "x") -> list[grpcclient.InferInput]:
    """Return the inputs of one step: its values in one row."""
    array = np.array([np.atleast_1d(values)], np.int32 if kind == "INT32" else np.float32)
    item = grpcclient.InferInput(name, list(array.shape), kind)
    item.set_data_from_numpy(array)
    return [item]


class Steps:
    """Steps sent over a stream for each sequence, which keeps their order and their answers'.

    Args:
        url: the server's gRPC address.
        model: what runs them.
        given, wanted: the names of its input and its output.
    """

    def __init__(self, url: str, model: str, given: str = "x", wanted: str = "y") -> None:
        self.url, self.model = url, model
        self.given, self.wanted = given, wanted
        self.clients, self.answers = {}, queue.Queue()

    def __enter__(self):
        return self

    def __exit__(self, failure, *_):
        for client in self.clients.values():  # a cancelled stream leaves a thread behind
            client.stop_stream(cancel_requests=failure is not None)
            client.close()

    def send(self, sequence, values, *, start=False, end=False):
        if sequence not in self.clients:
            self.clients[sequence] = grpcclient.InferenceServerClient(self.url)
            self.clients[sequence].start_stream(
                lambda result, error: self.answers.put((sequence, error, result))
            )
        self.clients[sequence].async_stream_infer(
            self.model,
            tensor(values, name=self.given),
            sequence_id=sequence,
            sequence_start=start,
            sequence_end=end,
        )

    def take(self, count):
        """Return {sequence: answers} of the next so many answers."""
        found = {}
        for _ in range(count):
            sequence, error, answer = self.answers.get(timeout=60)
            assert error is None, error.message()
            found.setdefault(sequence, []).append(answer.as_numpy(self.wanted)[0][0])
        return found

    def take_of(self, wanted):
        """Return the next answer of one sequence; what others get meanwhile is dropped."""
        while True:
            sequence, error, answer = self.answers.get(timeout=60)
            if sequence == wanted:
                assert error is None, error.message()
                return answer.as_numpy(self.wanted)[0][0]

    def vanish(self, sequence):
        """Cancel what a sequence has under way, and leave."""
        client = self.clients.pop(sequence)
        client.stop_stream(cancel_requests=True)
        client.close()
