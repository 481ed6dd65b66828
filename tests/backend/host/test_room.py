"""An answer that has no room in the memory that stub and host share is known before it is sent."""

from types import SimpleNamespace

import numpy as np
import pytest

from ge_backend.errors import OutOfMemory
from ge_backend.host import room as room_module
from ge_backend.host.room import FRESH_NS, Room, check_room_to_wait


@pytest.mark.parametrize(
    ("mib", "left", "free", "fits"),
    [
        ((9,), 20, 0, True),
        ((9,), 0, 10, True),
        ((9, 9), 12, 10, True),
        ((9, 9, 9), 12, 10, False),
        ((12,), 8, 10, False),
        ((12,), 8, None, True),
    ],
)
def test_an_answer_without_room_is_refused(shared, mib, left, free, fits):
    """Each of its tensors lies in one piece: in the region, or in what this can grow by."""
    shared(left=left << 20, free=None if free is None else free << 20)
    arrays = [np.zeros(size << 20, np.uint8) for size in mib]
    if fits:
        Room().check(arrays)
    else:
        with pytest.raises(OutOfMemory, match=f"takes {sum(mib)} MiB"):
            Room().check(arrays)


def test_answers_of_one_moment_share_what_is_left(shared, monkeypatch):
    """The system is asked again where that does not do, and once a moment is over."""
    room, now_ns = Room(), [10**9]
    monkeypatch.setattr(room_module, "time", SimpleNamespace(monotonic_ns=lambda: now_ns[0]))
    shared(left=32 << 20, free=0)
    room.check([np.zeros(9 << 20, np.uint8)])
    shared(left=0, free=0)
    room.check([np.zeros(9 << 20, np.uint8)])
    now_ns[0] += FRESH_NS
    with pytest.raises(OutOfMemory, match="takes 9 MiB"):
        room.check([np.zeros(9 << 20, np.uint8)])
    shared(left=11 << 20, free=0)
    room.check([np.zeros(9 << 20, np.uint8)])


def test_memory_without_a_limit_has_room(shared):
    """A tmpfs of size=0 has neither blocks nor free ones."""
    shared(left=0, free=0, blocks=0)
    Room().check([np.zeros(9 << 20, np.uint8)])


def test_texts_take_room_too(shared):
    """Each with its length before it."""
    shared(left=0, free=(64 << 10) + 1000)
    texts = np.array([b"x" * 246, b"y" * 246] * 2, dtype=object)
    Room().check([texts])
    texts[0] += b"z"
    with pytest.raises(OutOfMemory):
        Room().check([texts])


@pytest.mark.parametrize(
    ("left", "free", "blocks", "fits"),
    [
        (0, 512 << 10, 1, True),
        (0, 128 << 10, 1, False),
        (9 << 20, 0, 1, True),
        (0, 0, 0, True),
        (0, None, 1, True),
    ],
)
def test_a_request_may_wait_where_messages_have_room(shared, left, free, blocks, fits):
    """In the region, or in what this can grow by."""
    shared(left=left, free=free, blocks=blocks)
    if fits:
        check_room_to_wait()
    else:
        with pytest.raises(OutOfMemory, match="/dev/shm, in which requests wait, is full"):
            check_room_to_wait()
