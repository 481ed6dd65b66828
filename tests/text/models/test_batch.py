"""Steps are values: frozen, of named fields."""

import dataclasses

import numpy as np
import pytest

from ge_text.models.batch import Batch, Drawn, Group, SampleRow, full_batch
from ge_text.models.sampling import Sampling


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
    drawn = Drawn(
        tokens=np.array([3]),
        logprobs=np.array([-1.0], np.float32),
        ranks=np.array([1]),
        top=(None,),
    )
    for value in (group, row, batch, drawn):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, dataclasses.fields(value)[0].name, 0)
    assert row.forbidden == ()
    assert drawn.failed == {}


@pytest.mark.parametrize(("num_blocks", "apart"), [(100, True), (4, False)])
def test_a_full_step_has_every_row_at_the_end_of_its_context(num_blocks, apart):
    """Groups follow each other; each row's last token is drawn; block 0 stays nobody's."""
    wish = Sampling(top_p=0.5)
    batch = full_batch([(3, 1, 2), (1, 5, 4)], block_size=4, num_blocks=num_blocks, sampling=wish)
    assert batch.positions.tolist() == [7, 7, 7, 11, 12, 13, 14, 15]
    assert batch.sampled.tolist() == [0, 1, 2, 7]
    assert [row.sampling for row in batch.rows] == [wish] * 4
    assert [group.lengths.tolist() for group in batch.groups] == [[8, 8, 8], [16]]
    decoding, chunk = (group.tables for group in batch.groups)
    assert 0 < min(decoding.min(), chunk.min()) <= max(decoding.max(), chunk.max()) < num_blocks
    assert (len(np.unique(decoding)) == decoding.size) == apart
    owned = [decoding[0, 1], decoding[1, 1], decoding[2, 1], *chunk[0, [2, 3, 3, 3, 3]]]
    assert (batch.slots // 4).tolist() == owned
    assert (batch.slots % 4).tolist() == [3, 3, 3, 3, 0, 1, 2, 3]
