"""When an executor has to be replaced for its memory, and when that would not help."""

import logging
import subprocess
import sys

import pytest

from ge_backend.executor.server.memory import SETTLE_S, MemoryLimit

MIB = 1 << 20


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def limit(clock):
    """A limit of 100 MiB for what has settled at 50."""
    limit = MemoryLimit(100 * MIB, clock)
    assert not limit.exceeded(1, "loaded")
    clock.now += SETTLE_S
    assert not limit.exceeded(50 * MIB, "loaded")
    return limit


def test_what_grows_beyond_the_limit_is_replaced(limit):
    """At the limit itself it is not."""
    assert not limit.exceeded(100 * MIB, "loaded")
    assert limit.exceeded(100 * MIB + 1, "loaded")


def test_growth_is_said_once_before_the_limit(limit, caplog):
    """With what it was and what it is."""
    with caplog.at_level(logging.WARNING):
        limit.exceeded(89 * MIB, "loaded")
        assert caplog.text == ""
        limit.exceeded(91 * MIB, "loaded")
        limit.exceeded(92 * MIB, "loaded")
    assert caplog.text.count("memory has grown from 50 MiB to 91 MiB; at 100 MiB") == 1


def test_what_is_being_loaded_has_not_grown(limit, clock):
    """Another model counts from some seconds after it has come."""
    assert not limit.exceeded(120 * MIB, "two loaded")
    clock.now += SETTLE_S / 2
    assert not limit.exceeded(120 * MIB, "two loaded")
    clock.now += SETTLE_S
    assert not limit.exceeded(60 * MIB, "two loaded")
    assert limit.exceeded(101 * MIB, "two loaded")


def test_what_needs_as_much_from_the_beginning_is_not_replaced(clock, caplog):
    """The next one would need as much; the log says what to do."""
    limit = MemoryLimit(100 * MIB, clock)
    limit.exceeded(95 * MIB, "loaded")
    clock.now += SETTLE_S
    assert not limit.exceeded(95 * MIB, "loaded")
    assert not limit.exceeded(500 * MIB, "loaded")
    assert "GE_EXECUTOR_MEMORY allows 100 MiB" in caplog.text


def test_without_a_limit_nothing_is_too_much(clock):
    """That is the default."""
    limit = MemoryLimit(0, clock)
    clock.now += 2 * SETTLE_S
    assert not limit.exceeded(2**50, None)
    assert not limit.exceeded(2**50, None)


def test_own_memory_is_what_this_process_takes():
    """Bytes that are written count; in a process of its own, where nothing else comes and goes."""
    code = """
from ge_backend.executor.server.memory import own_bytes
before = own_bytes()
block = b"x" * (50 << 20)
print(own_bytes() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    assert 40 * MIB < int(done.stdout) < 80 * MIB
