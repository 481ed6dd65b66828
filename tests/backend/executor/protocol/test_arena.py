"""Arenas hand out aligned memory, grow, and refuse what does not lie in them."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.null_models import comes_true, num_descriptors
from ge_backend.device.base import MemoryInfo
from ge_backend.device.machine import host_memory
from ge_backend.errors import InvalidRequest, OutOfMemory, ProtocolError
from ge_backend.executor.protocol.arena import ALIGNMENT, Arena, Segment, aligned
from ge_backend.executor.protocol.messages import TensorRef
from ge_backend.tensors import DATA_TYPES, encode_bytes

FIXED = [name for name, dtype in DATA_TYPES.items() if dtype.itemsize]


@pytest.fixture
def arena():
    arena = Arena(4096)
    yield arena
    arena.close()


def ref(**changes):
    given = {"name": "x", "dtype": "FP32", "shape": (2, 2), "offset": 0, "nbytes": 16}
    return TensorRef(**{**given, **changes})


@given(st.integers(0, 10**9))
def test_aligned_rounds_up_by_less_than_one_step(nbytes):
    """The rounded size is a multiple of the alignment, and the smallest that is enough."""
    assert aligned(nbytes) % ALIGNMENT == 0
    assert nbytes <= aligned(nbytes) < nbytes + ALIGNMENT


@given(st.lists(st.tuples(st.sampled_from(FIXED), st.integers(0, 40)), min_size=1, max_size=12))
def test_placed_tensors_are_aligned_and_apart(wanted):
    """Whatever is placed within what was reserved is aligned, and no tensor touches another."""
    arena = Arena(1)
    sizes = [DATA_TYPES[dtype].itemsize * count for dtype, count in wanted]
    arena.reserve(sum(map(aligned, sizes)))
    refs = [
        arena.place(str(index), dtype, (count,), size)
        for index, ((dtype, count), size) in enumerate(zip(wanted, sizes, strict=True))
    ]
    for index, placed in enumerate(refs):
        arena.view(placed)[...] = index % 2
    for index, placed in enumerate(refs):
        view = arena.view(placed)
        assert view.ctypes.data % ALIGNMENT == 0 or not view.size
        assert (view == index % 2).all()
    arena.close()


def test_reserving_less_than_there_is_keeps_the_segment(arena):
    """A batch that fits starts at the front of the same segment."""
    first = arena.place("x", "FP32", (4,), 16)
    assert arena.reserve(4096) is False
    assert arena.place("x", "FP32", (4,), 16) == first
    assert arena.id == 0


def test_growth_gives_a_new_segment_once(arena):
    """A larger batch gets a new segment under a new id; the next one of that size does not."""
    assert arena.reserve(4097) is True
    assert (arena.id, arena.nbytes) == (1, 8192)
    assert arena.reserve(8192) is False


def test_views_outlive_growth(arena):
    """A view of the segment before stays readable, and what is written later does not reach it."""
    view = arena.view(arena.place("x", "INT32", (3,), 12))
    view[...] = 7
    arena.reserve(1 << 16)
    arena.view(arena.place("x", "INT32", (3,), 12))[...] = 9
    assert view.tolist() == [7, 7, 7]


def test_kept_tensors_are_not_placed_over(arena):
    """With `keep`, what was placed before stays, and the next is placed behind it."""
    first = arena.place("x", "INT32", (3,), 12)
    arena.view(first)[...] = 7
    assert arena.reserve(64, keep=True) is False
    second = arena.place("x", "INT32", (3,), 12)
    assert second.offset >= first.offset + first.nbytes
    assert arena.reserve(4096, keep=True) is True
    assert arena.place("x", "INT32", (3,), 12).offset == 0


def test_placing_more_than_there_is_is_refused(arena):
    """Placing beyond the segment is an error that leaves the arena as it was."""
    with pytest.raises(ProtocolError, match="beyond the 4096"):
        arena.place("x", "FP32", (2000,), 8000)
    assert arena.place("x", "FP32", (1000,), 4000).offset == 0


def test_growth_that_the_system_refuses_leaves_the_arena_as_it_was(arena):
    """An impossible size is OutOfMemory, and the old segment goes on."""
    with pytest.raises(OutOfMemory, match="shared memory"):
        arena.reserve(1 << 62)
    assert (arena.id, arena.nbytes) == (0, 4096)
    assert arena.view(arena.place("x", "FP32", (2,), 8)).shape == (2,)


def test_texts_are_written_serialised_and_read_decoded(arena):
    """A BYTES tensor comes back equal, also empty elements and none at all."""
    for texts in ([b"a", b"", b"long" * 50], []):
        values = np.array(texts, dtype=object)
        block = encode_bytes(values)
        placed = arena.place("t", "BYTES", values.shape, len(block))
        arena.write(placed, block)
        assert arena.view(placed).tolist() == texts


def test_damaged_texts_are_refused(arena):
    """A BYTES tensor whose data does not make its elements is an invalid request."""
    placed = arena.place("t", "BYTES", (2,), 8)
    arena.write(placed, b"\xff\xff\xff\xff0000")
    with pytest.raises(InvalidRequest, match="BYTES"):
        arena.view(placed)


@pytest.mark.parametrize(
    "bad",
    [
        ref(dtype="FP99"),
        ref(offset=-4),
        ref(nbytes=-1),
        ref(shape=(-2, -2)),
        ref(nbytes=15),
        ref(offset=4090),
        ref(offset=4096),
        ref(offset=2**70),
        ref(shape=(2**40,), nbytes=2**42),
        ref(dtype="BYTES", nbytes=5000),
    ],
)
def test_a_reference_that_is_not_in_the_segment_is_refused(arena, bad):
    """No reference reaches memory outside the segment, or memory that it does not name."""
    with pytest.raises(ProtocolError):
        arena.view(bad)


def test_a_tensor_without_elements_may_lie_at_the_very_end(arena):
    """Zero elements need no room."""
    assert arena.view(ref(shape=(0, 5), nbytes=0, offset=4096)).shape == (0, 5)


def test_both_sides_see_one_memory(arena):
    """What one mapping writes, another mapping of the descriptor reads."""
    other = Segment.map(arena.descriptor, arena.nbytes)
    placed = arena.place("x", "INT64", (4,), 32)
    arena.view(placed)[...] = [1, 2, 3, 4]
    assert other.view(placed).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("nbytes", [0, -1, 8192])
def test_a_descriptor_shorter_than_announced_is_refused(arena, nbytes):
    """Mapping beyond the end would kill the process at first use."""
    with pytest.raises(ProtocolError, match="holds 4096"):
        Segment.map(arena.descriptor, nbytes)


def test_closing_twice_does_not_close_a_strangers_descriptor(arena):
    """The second close leaves alone whoever got the number meanwhile."""
    number = arena.descriptor
    arena.close()
    stranger = os.memfd_create("stranger")
    arena.close()
    os.fstat(stranger)
    os.close(stranger)
    assert number >= 0


def test_growing_leaks_no_descriptors():
    """An arena that grew often holds as many descriptors as a new one."""
    before = num_descriptors()
    arena = Arena(1)
    for bits in range(12, 20):
        arena.reserve(1 << bits)
    assert comes_true(lambda: num_descriptors() - before <= 2)
    del bits
    arena.close()
    del arena
    assert comes_true(lambda: num_descriptors() <= before)


def test_an_arena_larger_than_the_machine_is_refused_before_it_is_made(monkeypatch):
    """It keeps what it has; the batch that wanted it fails."""
    arena = Arena(4096)
    monkeypatch.setattr(os, "memfd_create", pytest.fail)
    with pytest.raises(OutOfMemory, match="a batch's shared memory takes 1 TiB"):
        arena.reserve(1 << 40)
    assert arena.nbytes == 4096
    arena.close()


def test_going_on_elsewhere_leaves_the_segment_to_whoever_has_it(arena):
    """All is where it was, under a new id; what is still written to the old one is nobody's."""
    arena.reserve(8192)
    ref = arena.place("x", "INT32", (3,), 12)
    late = arena.view(ref)
    late[...] = 9
    arena.renew()
    assert (arena.id, arena.nbytes) == (2, 8192)
    late[...] = 7
    assert arena.view(ref).tolist() == [9, 9, 9]
    assert arena.place("y", "INT32", (3,), 12).offset >= ref.offset + ref.nbytes


def test_keeping_what_was_placed_never_makes_the_arena_smaller(arena):
    """A little more beside a batch that fills it: the next such batch finds room again."""
    arena.reserve(1 << 16)
    arena.place("x", "UINT8", (1 << 16,), 1 << 16)
    arena.reserve(64, keep=True)
    assert arena.nbytes == 1 << 16


@pytest.mark.parametrize("keep", [False, True])
def test_where_there_is_no_room_to_grow_on_the_arena_gets_what_is_needed(monkeypatch, keep):
    """Half of a power of two may be what the machine has not, nor a second one of the same size."""
    arena = Arena(8 << 20)
    arena.place("x", "UINT8", (8 << 20,), 8 << 20)
    few = MemoryInfo(free_bytes=70 << 20, total_bytes=1 << 30)
    monkeypatch.setattr(host_memory, "host_memory", lambda: few)
    monkeypatch.setattr(host_memory, "SMALL_BYTES", 0)
    with pytest.raises(OutOfMemory):
        arena.reserve(71 << 20, keep=keep)
    assert arena.nbytes == 8 << 20
    assert arena.reserve((66 << 20) + 1, keep=keep)
    assert arena.nbytes == aligned((66 << 20) + 1)
    few = MemoryInfo(free_bytes=1 << 20, total_bytes=1 << 30)
    arena.place("x", "UINT8", (66 << 20,), 66 << 20)
    assert arena.reserve(1000, keep=True)
    assert arena.nbytes == aligned(1000)
    arena.close()


def test_a_segment_is_taken_once_it_was_shown(arena):
    """One that is refused leaves the arena as it was, and the least that is needed is tried."""
    before, shown = num_descriptors(), []

    def show(number, nbytes, descriptor):
        shown.append((number, nbytes, os.fstat(descriptor).st_size))
        if nbytes > most:
            raise OutOfMemory("no room")

    first = arena.place("x", "INT32", (3,), 12)
    most = 4096
    with pytest.raises(OutOfMemory, match="no room"):
        arena.reserve(5000, keep=True, show=show)
    assert (arena.id, arena.nbytes, num_descriptors()) == (0, 4096, before)
    assert arena.place("y", "INT32", (3,), 12).offset == first.offset + 64
    most = 8191
    assert arena.reserve(5000, show=show)
    assert (arena.id, arena.nbytes) == (1, 5056)
    assert shown == [(1, 8192, 8192), (1, 5056, 5056)] * 2
    assert num_descriptors() <= before


def test_an_arena_that_shrinks_is_as_large_as_it_was_first(arena):
    """Under a new id, with all of it free; views of what was placed before stay."""
    arena.reserve(1 << 16)
    late = arena.view(arena.place("x", "INT32", (3,), 12))
    late[...] = 9
    arena.shrink()
    assert (arena.id, arena.nbytes) == (2, 4096)
    assert arena.place("y", "UINT8", (4096,), 4096).offset == 0
    assert late.tolist() == [9, 9, 9]
