"""A batch becomes tensors: places of new tokens, and one attention for each group."""

import numpy as np
import pytest
import torch

from ge_text.models.batch import Batch, Group
from ge_text.torch.attention import Attend
from ge_text.torch.cache import KeyValueShape, PagedCache
from ge_text.torch.step import stage

CPU = torch.device("cpu")


@pytest.fixture
def cache():
    shape = KeyValueShape(heads=2, key_dim=3, value_dim=3)
    return PagedCache((shape,), block_size=4, num_blocks=6, dtype=torch.float32, device=CPU)


def group(rows, query, lengths, tables):
    return Group(rows=rows, query=query, tables=np.array(tables), lengths=np.array(lengths))


def test_new_keys_and_values_go_to_their_tokens_slots(cache):
    """Slot 4 * block + offset is that offset of that block, for every head."""
    batch = Batch(
        ids=np.array([1, 2, 3]),
        positions=np.array([5, 0, 1]),
        slots=np.array([3 * 4 + 1, 2 * 4, 2 * 4 + 1]),
        groups=(group(1, 1, [6], [[1, 3]]), group(1, 2, [2], [[2]])),
        sampled=np.array([0, 2]),
        rows=(),
    )
    step = stage(batch, cache, CPU)
    key = torch.arange(3 * 2 * 3.0).view(3, 2, 3) + 1
    found = step.attend(0, Attend(scale=1.0), torch.zeros(3, 2, 3), key, -key)
    for token, (block, offset) in enumerate([(3, 1), (2, 0), (2, 1)]):
        assert torch.equal(cache.keys[0][block, :, offset], key[token])
        assert torch.equal(cache.values[0][block, :, offset], -key[token])
    assert cache.keys[0].count_nonzero() == key.numel()
    # Equal scores: the second group's first token sees itself, its second the mean of both.
    assert torch.equal(found[1], -key[1].flatten())
    assert torch.equal(found[2], -key[1:].mean(0).flatten())
    assert step.sampled.tolist() == [0, 2]


def test_what_padding_computes_from_no_numbers_stays_with_it(cache):
    """A row's padding attends to the row; block 0 is read by others, masked, and holds zeros."""
    batch = Batch(
        ids=np.zeros(4, np.int64),
        positions=np.array([0, 1, 0, 0]),
        slots=np.array([8, 9, 4, 0]),
        groups=(group(2, 2, [2, 1], [[2, 0], [1, 0]]),),
        sampled=np.array([1, 2]),
        rows=(),
    )
    key = torch.ones(4, 2, 3)
    key[2:] = torch.nan
    found = stage(batch, cache, CPU).attend(0, Attend(scale=1.0), torch.zeros(4, 2, 3), key, key)
    assert torch.equal(found[:2], torch.ones(2, 6))
    assert not cache.keys[0][0].any()
    assert not cache.values[0][0].any()


def test_one_row_alone_reads_no_more_than_its_keys(cache):
    """Rows together are as long as the longest table."""
    batch = Batch(
        ids=np.zeros(3, np.int64),
        positions=np.array([5, 2, 4]),
        slots=np.array([5, 10, 16]),
        groups=(group(1, 1, [6], [[1, 3]]), group(2, 1, [3, 5], [[2, 0], [4, 5]])),
        sampled=np.zeros(0, np.int64),
        rows=(),
    )
    alone, together = stage(batch, cache, CPU).parts()
    assert (alone.length, alone.alone) == (6, True)
    assert (together.length, together.alone) == (8, False)
