"""What a client has not taken yet is joined, and nobody waits for it."""

import json
import threading
from dataclasses import replace

import pytest

from builders.null_models import comes_true
from ge_text.protocol import (
    CODEC,
    Delta,
    Parts,
    RequestFailed,
    TokenUpdates,
    joined,
)
from ge_text.service.answer import MAX_UNSAID, NEWS_BYTES, Outbox

DELTA = Delta(number=1, sample=0, text="a", ids=(5,))


class Client:
    """Takes a post only when it is let."""

    def __init__(self):
        self.parts, self.taken = Parts(), []
        self.entered, self.go = threading.Event(), threading.Event()

    def post(self, body):
        self.entered.set()
        self.go.wait(20)
        self.taken.append(self.parts.take(body))


def test_deltas_are_joined_while_a_client_is_slow():
    """Three tokens of one sample that came meanwhile are one delta; another sample has its own."""
    client = Client()
    outbox = Outbox(client)
    outbox.put(DELTA)
    assert client.entered.wait(20)
    for text in "bcd":
        outbox.put(replace(DELTA, text=text))
    outbox.put(replace(DELTA, sample=1))
    outbox.say(RequestFailed(number=9, error="QueueFull", message="full"))
    client.go.set()
    assert comes_true(lambda: len(client.taken) == 3)
    first, second, third = client.taken
    assert first == TokenUpdates(deltas=(DELTA,))
    assert [(d.sample, d.text, d.ids) for d in second.deltas] == [
        (0, "bcd", (5, 5, 5)),
        (1, "a", (5,)),
    ]
    assert third.number == 9
    outbox.close()


def test_what_is_too_long_for_one_message_goes_in_several():
    """By samples, then by tokens; joined it is the same, and only the last piece says the end."""
    entry = json.dumps({"5": {"logprob": -0.25, "rank": 1, "decoded_token": "\u00e9" * 2000}})
    parts = [
        replace(DELTA, sample=sample, text="\u00e9" * 9, ids=(5,), logprobs=(entry,))
        for sample in range(2)
        for _ in range(1000)
    ]
    parts += [
        replace(joined(parts[:1000]), sample=sample, text="b", finish="stop") for sample in (2, 3)
    ]
    client = Client()
    outbox = Outbox(client)
    outbox.put(*parts)
    outbox.say(RequestFailed(number=9, error="QueueFull", message="full"))
    client.go.set()
    assert comes_true(lambda: client.taken and isinstance(client.taken[-1], RequestFailed))
    outbox.close()
    news = [one for one in client.taken if isinstance(one, TokenUpdates)]
    assert len(news) > 4
    assert max(len(CODEC.encode(one)) for one in news) <= NEWS_BYTES
    for sample in range(4):
        given = joined([one for one in parts if one.sample == sample])
        told = [one for each in news for one in each.deltas if one.sample == sample]
        assert [one.finish for one in told[:-1]] == [""] * (len(told) - 1)
        assert joined(told) == given


@pytest.mark.parametrize("end", ["taken", "closed"])
def test_who_asks_for_more_waits_while_much_is_unsaid(end):
    """Until it was taken or nobody takes it any more; what comes by itself is said all the same."""
    client = Client()
    outbox = Outbox(client)
    outbox.put(DELTA)
    assert client.entered.wait(20)
    for number in range(MAX_UNSAID - 1):
        outbox.say(RequestFailed(number=number, error="QueueFull", message="full"))
    outbox.wait_for_room()
    outbox.say(RequestFailed(number=1, error="QueueFull", message="full"))
    waiting = threading.Thread(target=outbox.wait_for_room, daemon=True)
    waiting.start()
    assert waiting.is_alive()
    outbox.say(RequestFailed(number=2, error="QueueFull", message="full"))
    if end == "closed":
        outbox.close()
    client.go.set()
    waiting.join(20)
    assert not waiting.is_alive()
    outbox.close()


def test_a_closed_outbox_ends_its_thread():
    """What was not posted is lost with the client."""
    client = Client()
    before = set(threading.enumerate())
    outbox = Outbox(client)
    outbox.close()
    outbox.put(DELTA)
    assert comes_true(lambda: set(threading.enumerate()) <= before)
    assert client.taken == []
