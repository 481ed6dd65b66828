"""A service is opened once per key, shared, and closed some time after its last client left."""

import threading

import pytest

from builders.locks import TellingLock
from builders.null_models import comes_true
from fakes.counting_service import KINDS, CountingService
from fakes.null_device import NullDevice
from ge_backend.errors import ModelError, ProtocolError
from ge_backend.executor.server.executor import Executor


def test_who_names_the_same_key_gets_the_same_service(executor):
    """Of one kind and key there is one, of another key another."""
    first, again = executor.services.open("counting", "a"), executor.services.open("counting", "a")
    other = executor.services.open("counting", "b")
    assert first is again is not other
    for key in "aab":
        executor.services.release("counting", key)


def test_it_is_closed_when_its_last_client_has_left_and_not_before(executor):
    """Two shares keep it open until both are given up."""
    service = executor.services.open("counting", "a")
    executor.services.open("counting", "a")
    executor.services.release("counting", "a")
    executor.services.close_idle(now=True)
    assert not service.closed
    executor.services.release("counting", "a")
    executor.services.close_idle()
    assert service.closed


def test_it_stays_for_the_linger_time():
    """Who comes back in time finds the same one; memory that is short ends the wait."""
    executor = Executor(NullDevice(), linger_s=60.0, kinds=KINDS)
    service = executor.services.open("counting", "a")
    executor.services.release("counting", "a")
    executor.services.close_idle()
    assert executor.services.open("counting", "a") is service
    executor.services.release("counting", "a")
    assert executor.graph_cache.on_shortage() == 1
    assert service.closed
    executor.close()


def test_one_that_nobody_uses_makes_room_for_the_next():
    """What it has of the device would be lacking in the other one's cache for as long as that lives."""
    executor = Executor(NullDevice(), linger_s=60.0, kinds=KINDS)
    idle = executor.services.open("counting", "a")
    executor.services.release("counting", "a")
    used = executor.services.open("counting", "b")
    assert idle.closed
    executor.services.open("counting", "c")
    assert not used.closed
    for key in "bc":
        executor.services.release("counting", key)
    executor.close()


@pytest.fixture
def closing(executor, monkeypatch):
    """Return a service that is being closed; whoever waits for that lets it be."""
    begun, gate, close = threading.Event(), threading.Event(), CountingService.close
    service = executor.services.open("counting", "a")
    monkeypatch.setattr(service, "close", lambda: (begun.set(), gate.wait(60), close(service)))
    monkeypatch.setattr(executor.services._shared, "_closing", TellingLock(gate))
    executor.services.release("counting", "a")
    thread = threading.Thread(target=executor.services.close_idle)
    thread.start()
    assert begun.wait(10)
    yield service
    gate.set()
    thread.join()


def test_one_that_is_being_closed_is_waited_for(executor, closing):
    """Its memory would be lacking in the next one's cache."""
    executor.services.open("counting", "b")
    assert closing.closed
    executor.services.release("counting", "b")


def test_one_that_is_being_closed_makes_room(executor, closing):
    """Who is short of memory tries again once it is closed."""
    assert executor.graph_cache.on_shortage() == 1
    assert closing.closed


def test_who_needs_no_memory_does_not_wait(executor, closing):
    """The loop that takes new connections asks again soon."""
    assert executor.services.close_idle() == 0
    assert not closing.closed


def test_one_that_cannot_be_opened_is_forgotten(executor):
    """Its error is raised each time, and nothing stays."""
    for _ in range(2):
        with pytest.raises(ModelError, match="no such model"):
            executor.services.open("counting", "broken")
    assert len(executor.services) == 0


def test_a_kind_that_nobody_knows_is_refused_by_name(executor):
    """The error lists the known kinds."""
    with pytest.raises(ProtocolError, match="'typing' is unknown; known kinds are counting"):
        executor.services.open("typing", "a")


def test_it_is_opened_once_however_many_come_at_once(executor):
    """Those who come while it is opened wait for it."""
    got = []
    threads = [
        threading.Thread(target=lambda: got.append(executor.services.open("counting", "a")))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(set(map(id, got))) == 1
    assert len(CountingService.opened) == 1
    for _ in got:
        executor.services.release("counting", "a")
    assert comes_true(lambda: len(executor.services) == 1, 0.1)
