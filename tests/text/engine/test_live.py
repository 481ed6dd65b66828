"""Requests come and go by notes for the thread that steps."""

import threading

import pytest

from ge_backend.errors import Cancelled, InvalidRequest, QueueFull
from ge_text.engine.admission import LengthForecast
from ge_text.engine.figures import Tally
from ge_text.engine.live import LiveRequest, LiveRequests
from ge_text.engine.sequence import GenerationRequest
from ge_text.engine.settings import EngineSettings


class Noted:
    """In a scheduler's place: notes who began and who ended since it was asked last, in order."""

    def __init__(self):
        self.forecast, self.num_new_requests = LengthForecast(), 0
        self._changes = []

    def add(self, sequence):
        self._changes.append(("began", sequence.request.id))

    def remove(self, sequence, *, failed=False):
        del failed
        self._changes.append(("ended", sequence.request.id))

    def changes(self):
        changes, self._changes = self._changes, []
        return changes


def requests(max_waiting):
    settings, noted = EngineSettings(max_waiting_requests=max_waiting), Noted()
    return LiveRequests(noted, settings, (), Tally()), noted


def arrived(name, *, again=False, sink=lambda _update: False):
    request = GenerationRequest(id=name, prompt=(1,), again=again)
    return LiveRequest(request, sink, 0.0, 1)


def test_notes_are_taken_once_in_their_order():
    """A cancellation never overtakes its request."""
    (live, noted), updates = requests(9), []
    live.submit(arrived("a", sink=updates.append))
    live.cancel("a")
    live.receive(0.0)
    assert noted.changes() == [("began", "a"), ("ended", "a")]
    assert [type(update.error) for update in updates] == [Cancelled]
    live.receive(0.0)
    assert noted.changes() == []


def test_a_cancellation_of_nobody_leaves_no_note():
    """Clients may cancel what has ended; that does not pile up."""
    live, noted = requests(9)
    live.cancel("a")
    assert live._notes == []
    live.receive(0.0)
    assert noted.changes() == []


def test_a_cancellation_is_of_the_request_that_had_the_id():
    """One that comes under the same id, once that has ended, is not cancelled."""
    live, noted = requests(9)
    live.submit(arrived("a"))
    live.receive(0.0)
    live.cancel("a")
    live.cancel("a")
    live.end_all(InvalidRequest("over"), 0.0)
    assert noted.changes() == [("began", "a"), ("ended", "a")]
    live.submit(arrived("a"))
    live.receive(0.0)
    assert noted.changes() == [("began", "a")]


def test_an_id_is_taken_until_its_request_has_ended():
    """Two live requests cannot be told apart by one id."""
    live, _ = requests(9)
    live.submit(arrived("a"))
    live.receive(0.0)
    with pytest.raises(InvalidRequest, match="'a' is being served"):
        live.submit(arrived("a"))
    live.end_all(InvalidRequest("over"), 0.0)
    live.submit(arrived("a"))
    assert len(live.by_id) == 1


def test_what_has_not_begun_is_not_ended_with_all_others():
    """It begins with the next step, for which nothing has failed."""
    live, noted = requests(9)
    live.submit(arrived("a"))
    live.end_all(InvalidRequest("over"), 0.0)
    live.receive(0.0)
    assert noted.changes() == [("began", "a")]


def test_too_many_waiting_are_refused_at_once():
    """Those in the queue count as well as those not yet received."""
    live, noted = requests(3)
    noted.num_new_requests = 1
    live.submit(arrived("a"))
    live.submit(arrived("b"))
    with pytest.raises(QueueFull, match="3 requests wait"):
        live.submit(arrived("c"))
    live.receive(0.0)
    live.submit(arrived("c"))


def test_who_was_taken_on_before_is_not_refused():
    """An executor dies with texts that run and texts that wait: the next one has to take them all."""
    live, _ = requests(1)
    for name in "abc":
        live.submit(arrived(name, again=True))
    with pytest.raises(QueueFull, match="3 requests wait"):
        live.submit(arrived("new"))
    assert len(live.by_id) == 3


def test_many_threads_lose_nothing():
    """Notes of several threads all arrive, each once."""
    (live, noted), taken = requests(10**6), []

    def leave(thread):
        for number in range(200):
            live.submit(arrived(f"{thread}-{number}"))

    threads = [threading.Thread(target=leave, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        live.receive(0.0)
        taken += noted.changes()
    for thread in threads:
        thread.join()
    live.receive(0.0)
    taken += noted.changes()
    assert len(set(taken)) == len(taken) == 800
