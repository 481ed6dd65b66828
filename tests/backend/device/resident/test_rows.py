"""Which bytes of kept tensors become an input: what the host's staging would write, copy by copy."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_backend.device.resident.buffers import merged
from ge_backend.device.resident.rows import BufferRows, gathered
from ge_backend.errors import ProtocolError
from ge_backend.tensors import DATA_TYPES

FP32 = DATA_TYPES["FP32"]
FILL = 0xFF


@dataclass(frozen=True)
class Memory:
    """A room on the host, with a tensor in it."""

    tensor: np.ndarray

    @property
    def nbytes(self):
        return self.tensor.nbytes

    def close(self):
        pass


def rows(room, first, count, length):
    return BufferRows(buffer=room, shape=room.tensor.shape, first=first, count=count, length=length)


def made(item):
    """Make the copies; what nothing was written to is 0x11."""
    block = np.full(int(np.prod(item.shape)) * item.dtype.itemsize, 0x11, np.uint8)
    if item.fill >= 0:
        block[:] = item.fill
    for copy in item.copies:
        source = copy.buffer.tensor.reshape(-1).view(np.uint8)
        block[copy.offset : copy.offset + copy.nbytes] = source[copy.place :][: copy.nbytes]
    return block.view(item.dtype.numpy).reshape(item.shape)


def staged(shape, parts):
    """Return what `serving/batching/stage.py` writes for these rows."""
    target = np.full(shape, np.frombuffer(bytes([FILL] * 4), np.float32)[0], np.float32)
    at = 0
    for part in parts:
        real = part.buffer.tensor[part.first : part.first + part.count, : part.length]
        target[at : at + part.count, : part.length] = real
        at += part.count
    target[at:] = target[:1]
    return target


@given(st.data())
def test_it_is_what_the_host_would_stage(data):
    """Rows of several tensors with padding of their own, in a shape with other padding."""
    inner = data.draw(st.integers(1, 3))
    seed = data.draw(st.integers(0, 2**16))
    generator = np.random.default_rng(seed)
    parts = []
    for _ in range(data.draw(st.integers(1, 4))):
        tensor = generator.standard_normal(
            (data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5)), inner)
        ).astype(np.float32)
        first = data.draw(st.integers(0, len(tensor) - 1))
        count = data.draw(st.integers(1, len(tensor) - first))
        parts.append(rows(Memory(tensor), first, count, data.draw(st.integers(0, tensor.shape[1]))))
    longest = max(part.length for part in parts)
    total = sum(part.count for part in parts)
    shape = (
        total + data.draw(st.integers(0, 3)),
        max(1, longest) + data.draw(st.integers(0, 2)),
        inner,
    )
    assert made(gathered(FP32, shape, FILL, parts)).tobytes() == staged(shape, parts).tobytes()


def test_rows_without_padding_are_one_copy():
    """Neighbours in a room that stay neighbours; and nothing is filled."""
    room = Memory(np.arange(24, dtype=np.float32).reshape(4, 3, 2))
    item = gathered(FP32, (2, 3, 2), 0, [rows(room, 1, 2, 3)])
    assert item.fill == -1
    assert [(copy.offset, copy.place, copy.nbytes) for copy in merged(item.copies)] == [(0, 24, 48)]


def test_rows_may_have_no_dimensions():
    """One number per row; a row that only fills repeats the first."""
    room = Memory(np.arange(4, dtype=np.float32))
    assert made(gathered(FP32, (3,), 0, [rows(room, 2, 2, 1)])).tolist() == [2, 3, 2]


ROOM = Memory(np.zeros((4, 3, 2), np.float32))


@pytest.mark.parametrize(
    ("part", "shape"),
    [
        (rows(ROOM, 3, 2, 3), (4, 3, 2)),  # behind the last row
        (rows(ROOM, -1, 2, 3), (4, 3, 2)),
        (rows(ROOM, 0, 0, 3), (4, 3, 2)),
        (rows(ROOM, 0, 2, 4), (4, 5, 2)),  # longer than it is
        (rows(ROOM, 0, 2, 3), (4, 2, 2)),  # longer than the input is
        (rows(ROOM, 0, 2, 3), (4, 3, 1)),  # of other rows
        (rows(ROOM, 0, 2, 3), (4, 3)),
        (rows(ROOM, 0, 4, 3), (3, 3, 2)),  # more rows than the input has
    ],
)
def test_what_does_not_fit_is_refused(part, shape):
    """Before anything is copied past an end."""
    with pytest.raises(ProtocolError):
        gathered(FP32, shape, 0, [part])


def test_padding_of_several_bytes_is_refused():
    """A device fills byte by byte."""
    gathered(FP32, (1, 3, 2), -1, [rows(ROOM, 0, 1, 3)])
    with pytest.raises(ProtocolError, match="byte to byte"):
        gathered(FP32, (1, 3, 2), -1, [rows(ROOM, 0, 1, 2)])
