"""What is shared is made once, counted by its holders, and closed some time after the last one."""

import threading
from types import SimpleNamespace

import pytest

from builders.locks import TellingLock
from ge_backend.device import shared as shared_module
from ge_backend.device.shared import Shared
from ge_backend.errors import ModelError, ProtocolError


@pytest.fixture
def closed():
    return []


@pytest.fixture
def shared(closed):
    return Shared(0.0, closed.append)


def fail():
    raise ModelError("it cannot be made")


def test_many_at_once_make_it_once(shared):
    """Those who come while it is made wait for it and get the same."""
    made, got = [], []
    gate = threading.Event()

    def make():
        gate.wait(20)
        made.append(object())
        return made[-1]

    threads = [
        threading.Thread(target=lambda: got.append(shared.acquire("a", make))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join(20)
    assert got == made * 8
    assert len(made) == 1
    assert shared.holders() == {"a": 8}


def test_another_key_does_not_wait(shared):
    """Only those of the same key wait for what is being made."""
    gate = threading.Event()
    thread = threading.Thread(target=shared.acquire, args=("slow", lambda: gate.wait(20)))
    thread.start()
    assert shared.acquire("fast", object) is not None
    gate.set()
    thread.join(20)
    assert len(shared) == 2


def test_what_is_being_made_counts_and_is_no_value_yet(shared):
    """A report tells of it; nothing else can use it."""
    seen = []

    def make():
        seen.append((len(shared), shared.holders(), shared.values()))
        return 5

    assert shared.acquire("a", make) == 5
    assert seen == [(1, {"a": 1}, [])]
    assert shared.values() == [5]


def test_it_stays_for_the_linger_time_after_its_last_holder(closed, monkeypatch):
    """One that comes in time finds it; later it is made anew."""
    now = 0.0
    monkeypatch.setattr(shared_module, "time", SimpleNamespace(monotonic=lambda: now))
    shared = Shared(0.5, closed.append)
    first = shared.acquire("a", object)
    shared.hold("a")
    shared.release("a")
    now += 0.6
    assert shared.close_idle() == 0
    shared.release("a")
    assert shared.close_idle() == 0
    assert shared.acquire("a", fail) is first
    shared.release("a")
    now += 0.6
    assert shared.close_idle() == 1
    assert (closed, len(shared), shared.closed) == ([first], 0, 1)
    assert shared.acquire("a", object) is not first


def test_closing_now_spares_what_is_held(closed):
    """The linger time does not count then."""
    shared = Shared(60.0, closed.append)
    for key in "abc":
        shared.acquire(key, lambda key=key: key)
    shared.release("a")
    shared.release("c")
    assert shared.close_idle() == 0
    assert shared.close_idle(now=True) == 2
    assert (closed, shared.values()) == (["a", "c"], ["b"])


def test_what_cannot_be_made_is_forgotten(shared, closed):
    """Its error is raised each time; nothing is held, and nothing is closed."""
    for _ in range(2):
        with pytest.raises(ModelError):
            shared.acquire("a", fail)
        assert (len(shared), shared.holders()) == (0, {})
    assert shared.acquire("a", object) is not None
    shared.release("a")
    assert shared.close_idle() == len(closed) == 1


def test_of_two_that_wait_for_what_fails_the_second_tries_itself(shared):
    """And keeps what it has made when the first gives up."""
    tries, outcomes = [], []
    both = threading.Event()

    def make():
        tries.append(1)
        if len(tries) == 1:
            assert both.wait(20)
            fail()
        return "made"

    def acquire():
        try:
            outcomes.append(shared.acquire("a", make))
        except ModelError:
            outcomes.append("failed")

    threads = [threading.Thread(target=acquire) for _ in range(2)]
    for thread in threads:
        thread.start()
    while shared.holders() != {"a": 2}:
        pass
    both.set()
    for thread in threads:
        thread.join(20)
    assert sorted(outcomes) == ["failed", "made"]
    assert (shared.values(), shared.holders()) == (["made"], {"a": 1})


@pytest.mark.parametrize("times", [0, 1])
def test_one_release_too_many_is_an_error(shared, times):
    """Whether it was never held or is held no more."""
    for _ in range(times):
        shared.acquire("a", object)
        shared.release("a")
    with pytest.raises(ProtocolError, match="a was released once too often"):
        shared.release("a")
    assert shared.holders() == dict.fromkeys("a" * times, 0)


def test_changes_count_what_comes_and_goes(shared):
    """Also what could not be made; holding what is there is no change."""
    for _ in range(2):
        shared.acquire("a", object)
        assert shared.changes == 1
    for _ in range(2):
        shared.release("a")
        assert shared.changes == 1
    shared.close_idle()
    assert shared.changes == 2
    with pytest.raises(ModelError):
        shared.acquire("b", fail)
    assert shared.changes == 4


@pytest.fixture
def closing(monkeypatch):
    """Return what is just closing a value, what lets it be, and the thread; who waits lets it be."""
    begun, gate = threading.Event(), threading.Event()
    shared = Shared(0.0, lambda _: begun.set() or gate.wait(20))
    shared.acquire("a", object)
    shared.release("a")
    monkeypatch.setattr(shared, "_closing", TellingLock(gate))
    thread = threading.Thread(target=shared.close_idle)
    thread.start()
    assert begun.wait(10)
    yield shared, gate, thread
    gate.set()
    thread.join()


def test_what_is_being_closed_is_gone_already(closing):
    """Whoever comes for the same key gets another value, and waits for nothing."""
    shared, gate, thread = closing
    assert shared.acquire("a", lambda: "another") == "another"
    assert thread.is_alive()
    assert not gate.is_set()
    shared.release("a")


def test_closing_now_waits_for_who_closes(closing):
    """What another thread closes is closed then; it does not count as one's own."""
    shared, gate, _ = closing
    assert shared.close_idle(now=True) == 0
    assert gate.is_set()
    assert shared.closed == 1


def test_who_does_not_need_it_now_does_not_wait(closing):
    """A loop asks again soon."""
    shared, _, thread = closing
    assert shared.close_idle() == 0
    assert thread.is_alive()
