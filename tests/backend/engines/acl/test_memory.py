"""Memory has owners; slices of one block are aligned; weights are shared."""

import numpy as np
import pytest

from acl_simulator import Simulator
from ge_backend.engines.acl.memory import Block, SharedWeights, Staging
from ge_backend.errors import OutOfMemory


@pytest.fixture
def sim():
    return Simulator(hbm_bytes=1 << 20)


def sizes(sim):
    return sorted(block.size for block in sim.allocations())


def test_a_block_is_given_back(sim, runtime):
    """Allocated at once, freed by `close`."""
    block = Block(runtime, 4096, "a thing")
    assert sizes(sim) == [4096]
    block.close()
    assert sizes(sim) == []


def test_a_lack_of_memory_says_what_for_and_how_much(runtime):
    """Needed, free and total, with the code of ACL."""
    with pytest.raises(
        OutOfMemory, match=r"no room for a thing: 2 MiB needed, 1 MiB of 1 MiB free \(.*207001"
    ):
        Block(runtime, 2 << 20, "a thing")


def test_slots_are_aligned_and_apart(sim, runtime):
    """Every slot begins at a 64-byte boundary on both sides, with a guard behind it."""
    given = {"a": 1, "b": 0, "c": 64, "d": 100, "e": 4096}
    staging = Staging(runtime, given, "a graph")
    assert len(sizes(sim)) == 2
    for side in ("device", "host"):
        starts = [getattr(staging[name], side) for name in given]
        assert [start % 64 for start in starts] == [0] * 5
        ends = [start + nbytes for start, nbytes in zip(starts, given.values(), strict=True)]
        gaps = np.array(starts[1:]) - np.array(ends[:-1])
        assert (gaps >= 32).all()
    for name, nbytes in given.items():
        slot = staging[name]
        assert (len(slot.bytes), slot.capacity) == (nbytes, max(nbytes, 1))
        slot.bytes[:] = 7
    staging.close()
    assert sizes(sim) == []
    sim.check()  # nothing was written behind a block


def test_without_tensors_there_is_still_a_block(sim, runtime):
    """ACL gives no memory of 0 bytes."""
    staging = Staging(runtime, {}, "a graph")
    staging.close()
    assert sizes(sim) == []


def test_a_staging_that_fails_half_way_leaves_nothing(sim, runtime):
    """The device side is given back when the host side cannot be had."""
    sim.fail("rt.malloc_host", 207001)
    with pytest.raises(OutOfMemory, match="a graph, pinned on the host"):
        Staging(runtime, {"a": 64}, "a graph")
    assert sizes(sim) == []


def test_weights_are_one_block_per_file(sim, runtime):
    """The first loads them, the last one frees them."""
    weights = SharedWeights(runtime)
    with weights.borrowed("file 1", 256) as one:
        with weights.borrowed("file 1", 256) as same, weights.borrowed("file 2", 512) as other:
            assert same is one
            assert other is not one
            assert sizes(sim) == [256, 512]
        assert sizes(sim) == [256]
    assert sizes(sim) == []


def test_weights_without_room_leave_nothing_behind(sim, runtime):
    """The next one may try again."""
    weights = SharedWeights(runtime)
    sim.fail("rt.malloc", 207018)
    with pytest.raises(OutOfMemory, match="the weights of file"):
        weights.borrowed("file", 256).__enter__()
    with weights.borrowed("file", 256):
        assert sizes(sim) == [256]
    assert sizes(sim) == []
