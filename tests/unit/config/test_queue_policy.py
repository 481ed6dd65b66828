"""Bounds of a model's own queue, as its configuration states them."""

import pytest

from ge_backend.config.queue_policy import QueuePolicy
from ge_backend.errors import ConfigError


def read(size="0", timeout="0", *, sequences=False):
    values = {"max_queue_size": size, "default_timeout_microseconds": timeout}
    return QueuePolicy.read(values, sequences=sequences)


def test_without_bounds_there_is_no_queue():
    """Requests wait in the host then; a model with sequences says nothing of it."""
    assert read() is None
    assert read(sequences=True) is None


@pytest.mark.parametrize(("size", "timeout"), [("8", "0"), ("0", "250"), ("3", "9")])
def test_either_bound_makes_a_queue(size, timeout):
    """Both are whole numbers; 0 leaves the other alone."""
    assert read(size, timeout) == QueuePolicy(max_size=int(size), timeout_us=int(timeout))


@pytest.mark.parametrize("text", ["-1", "many", "1.5", "", "1" * 5000])
def test_what_is_no_number_is_refused(text):
    """The message names the key."""
    with pytest.raises(ConfigError, match="max_queue_size"):
        read(text)
    with pytest.raises(ConfigError, match="default_timeout_microseconds"):
        read("1", text)


def test_sequences_keep_the_hosts_order():
    """The steps of a sequence must not be overtaken, so they do not wait here."""
    with pytest.raises(ConfigError, match="sequence_batching"):
        read("8", sequences=True)
