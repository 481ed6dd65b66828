"""A value that is made in a thread of its own, and what is there without it."""

import threading

import pytest

from ge_backend.device.machine.background import Background
from ge_backend.errors import ModelError


def background(make):
    return Background(make, name="made", without="it is slower")


def test_no_run_waits_for_it_and_it_is_made_once():
    """Not before it is begun."""
    go, made = threading.Event(), []

    def make():
        go.wait(10)
        made.append(threading.current_thread().name)
        return "better"

    later = background(make)
    later.wait()
    for _ in range(3):
        later.begin()
    assert later.value is None
    go.set()
    later.wait()
    assert later.value == "better"
    assert made == ["made"]


def test_one_that_cannot_be_made_is_said_once(caplog):
    """What there is stays."""

    def make():
        raise ModelError("no memory")

    later = background(make)
    for _ in range(2):
        later.begin()
        later.wait()
    assert later.value is None
    assert [record.message for record in caplog.records] == ["it is slower: no memory"]


def test_without_a_thread_for_it_there_is_none(monkeypatch, caplog):
    """A process may have no more: the run that asks for it goes on, and so does the end."""

    def refused(_):
        raise RuntimeError("can't start new thread")

    later = background(lambda: "better")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        later.begin()
    later.begin()
    later.wait()
    later.close()
    assert later.value is None
    assert [record.message for record in caplog.records] == ["it is slower: can't start new thread"]


def test_closing_waits_for_it_and_lets_go_of_it():
    """It is not begun again."""
    go = threading.Event()
    later = background(lambda: go.wait(10))
    later.begin()
    closing = threading.Thread(target=later.close)
    closing.start()
    assert closing.is_alive()
    go.set()
    closing.join(10)
    later.begin()
    later.wait()
    assert later.value is None
    assert not closing.is_alive()


@pytest.mark.parametrize("make", [None, lambda: pytest.fail("made")])
def test_one_that_is_closed_or_not_to_be_made_is_none(make):
    """To begin it does nothing."""
    later = background(make)
    if make:
        later.close()
    later.begin()
    later.wait()
    assert later.value is None
