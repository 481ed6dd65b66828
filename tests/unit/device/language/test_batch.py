"""Steps are values: frozen, of named fields."""

import dataclasses

import numpy as np
import pytest

from ge_backend.device.language.batch import Batch, Drawn, Group, SampleRow
from ge_backend.device.language.sampling import Sampling


def test_a_step_cannot_be_changed_under_way():
    """What was planned is what runs."""
    group = Group(rows=1, query=2, tables=np.array([[1]]), lengths=np.array([2]))
    row = SampleRow(
        sampling=Sampling(), position=2, prompt=np.array([5, 6]), output=np.array([], np.int64)
    )
    batch = Batch(
        ids=np.array([5, 6]),
        positions=np.array([0, 1]),
        slots=np.array([4, 5]),
        groups=(group,),
        sampled=np.array([1]),
        rows=(row,),
    )
    drawn = Drawn(tokens=np.array([3]), logprobs=np.array([-1.0], np.float32), top=(None,))
    for value in (group, row, batch, drawn):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, dataclasses.fields(value)[0].name, 0)
    assert row.forbidden == ()
    assert drawn.failed == {}
