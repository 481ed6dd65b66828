"""Peaks of torch are counted exactly, for the thread that runs and for no other."""

import threading

import pytest

torch = pytest.importorskip("torch")

from ge_backend.engines.torch.scratch import peak_bytes  # noqa: E402

MIB = 1 << 20


def block(mebibytes=1):
    return torch.empty(mebibytes * MIB, dtype=torch.uint8)


def test_the_peak_is_the_most_at_once():
    """What is freed before the next is taken counts once."""

    def run():
        for size in (1, 3, 2):
            block(size)
        kept = [block(), block()]
        kept.clear()

    assert peak_bytes(run) == 3 * MIB


def test_what_was_there_before_does_not_count():
    """Not even when the run frees it."""
    held = [block(8)]

    def run():
        held.clear()
        block()

    assert peak_bytes(run) <= MIB


def test_other_threads_do_not_count():
    """They allocate while the measured run holds its own."""
    started, stop = threading.Event(), threading.Event()

    def other():
        while not stop.is_set():
            block(64)
            started.set()

    thread = threading.Thread(target=other)

    def run():
        kept = block(2)
        started.clear()
        started.wait(60)
        del kept

    thread.start()
    try:
        assert peak_bytes(run) == 2 * MIB
    finally:
        stop.set()
        thread.join()


def test_a_failing_run_leaves_no_trace():
    """Its error is passed on, and the next measurement is right."""

    def fail():
        block(4)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        peak_bytes(fail)
    assert peak_bytes(block) == MIB


def test_nothing_allocated_is_nothing():
    """A run without tensors has a peak of 0."""
    assert peak_bytes(lambda: None) == 0


def test_nothing_is_written_to_the_terminal(capfd):
    """An executor's stderr is the server's log."""
    peak_bytes(block)
    assert capfd.readouterr() == ("", "")
