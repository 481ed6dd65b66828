"""What a client has not taken yet is joined, and nobody waits for it."""

import dataclasses
import threading

from builders.null_models import comes_true
from ge_backend.executor.protocol.generation_messages import Delta, News, Parts, Refused
from ge_backend.executor.server.outbox import Outbox

DELTA = Delta(number=1, sample=0, text="a", ids=(5,))


class Client:
    """Takes a post only when it is let."""

    def __init__(self):
        self.parts, self.taken = Parts(), []
        self.entered, self.go = threading.Event(), threading.Event()

    def post(self, body, descriptor=None):
        self.entered.set()
        self.go.wait(5)
        self.taken.append(self.parts.take(body))


def test_deltas_are_joined_while_a_client_is_slow():
    """Three tokens of one sample that came meanwhile are one delta; another sample has its own."""
    client = Client()
    outbox = Outbox(client)
    outbox.put(DELTA)
    assert client.entered.wait(5)
    for text in "bcd":
        outbox.put(dataclasses.replace(DELTA, text=text))
    outbox.put(dataclasses.replace(DELTA, sample=1))
    outbox.say(Refused(number=9, error="QueueFull", message="full"))
    client.go.set()
    assert comes_true(lambda: len(client.taken) == 3)
    first, second, third = client.taken
    assert first == News(deltas=(DELTA,))
    assert [(d.sample, d.text, d.ids) for d in second.deltas] == [
        (0, "bcd", (5, 5, 5)),
        (1, "a", (5,)),
    ]
    assert third.number == 9
    outbox.close()


def test_a_closed_outbox_ends_its_thread():
    """What was not posted is lost with the client."""
    client = Client()
    before = threading.active_count()
    outbox = Outbox(client)
    outbox.close()
    outbox.put(DELTA)
    assert comes_true(lambda: threading.active_count() <= before)
    assert client.taken == []
