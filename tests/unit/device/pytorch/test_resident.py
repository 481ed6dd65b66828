"""A run of which nothing stays on the device."""

import pytest

pytest.importorskip("torch")

from ge_backend.device.pytorch.resident import NOTHING, Nothing


def test_nothing_adds_and_keeps_nothing():
    """Every other run is made with it."""
    assert isinstance(NOTHING, Nothing)
    assert (NOTHING.stand_ins, NOTHING.hidden, NOTHING.rows()) == ({}, frozenset(), {})
    for action in (NOTHING.keep, NOTHING.gather, NOTHING.scatter):
        assert action({}) is None
