"""Bounds of a model's own queue, as its configuration states them."""

import pytest

from ge_backend.config.queue_policy import QueuePolicy
from ge_backend.errors import ConfigError


def test_without_bounds_there_is_no_queue():
    """Requests wait in the host then; a model with sequences says nothing of it."""
    assert QueuePolicy.of(0, 0, sequences=False) is None
    assert QueuePolicy.of(0, 0, sequences=True) is None


@pytest.mark.parametrize(("size", "timeout"), [(8, 0), (0, 250), (3, 9)])
def test_either_bound_makes_a_queue(size, timeout):
    """0 leaves the other alone."""
    assert QueuePolicy.of(size, timeout, sequences=False) == QueuePolicy(
        max_size=size, timeout_us=timeout
    )


def test_sequences_keep_the_hosts_order():
    """The steps of a sequence must not be overtaken, so they do not wait here."""
    with pytest.raises(ConfigError, match="sequence_batching"):
        QueuePolicy.of(8, 0, sequences=True)
