"""Notes for the thread that steps."""

import threading

import pytest

from ge_backend.errors import InvalidRequest, QueueFull
from ge_text.engine.intake import Arrived, Intake
from ge_text.engine.request import GenerationRequest


def arrived(name, *, again=False):
    request = GenerationRequest(id=name, prompt=(1,), again=again)
    return Arrived(request, lambda _update: None, 0.0, 1)


def test_notes_are_taken_once_in_their_order():
    """A cancellation never overtakes its request."""
    intake, first = Intake(9), arrived("a")
    intake.add(first, 0)
    intake.cancel("a")
    assert intake.take() == [first, "a"]
    assert intake.take() == []


def test_a_cancellation_of_nobody_leaves_no_note():
    """Clients may cancel what has ended; that does not pile up."""
    intake = Intake(9)
    intake.cancel("a")
    assert intake.take() == []


def test_an_id_is_taken_until_its_request_has_ended():
    """Two live requests cannot be told apart by one id."""
    intake = Intake(9)
    intake.add(arrived("a"), 0)
    intake.take()
    with pytest.raises(InvalidRequest, match="'a' is being served"):
        intake.add(arrived("a"), 0)
    intake.forget("a")
    intake.add(arrived("a"), 0)
    assert len(intake) == 1


def test_too_many_waiting_are_refused_at_once():
    """Those in the queue count as well as those not yet received."""
    intake = Intake(3)
    intake.add(arrived("a"), 1)
    intake.add(arrived("b"), 1)
    with pytest.raises(QueueFull, match="3 requests wait"):
        intake.add(arrived("c"), 1)
    intake.take()
    intake.add(arrived("c"), 1)


def test_who_was_taken_on_before_is_not_refused():
    """An executor dies with texts that run and texts that wait: the next one has to take them all."""
    intake = Intake(1)
    for name in "abc":
        intake.add(arrived(name, again=True), 0)
    with pytest.raises(QueueFull, match="3 requests wait"):
        intake.add(arrived("new"), 0)
    assert len(intake) == 3


def test_many_threads_lose_nothing():
    """Notes of several threads all arrive, each once."""
    intake, taken = Intake(10**6), []

    def leave(thread):
        for number in range(200):
            intake.add(arrived(f"{thread}-{number}"), 0)

    threads = [threading.Thread(target=leave, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        taken += intake.take()
    for thread in threads:
        thread.join()
    taken += intake.take()
    assert len({note.request.id for note in taken}) == len(taken) == 800
