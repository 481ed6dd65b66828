"""A shared-memory segment that a stub and the executor both map: tensors are never copied twice.

The segment is a memfd: it has no name in any file system, so nothing is left behind whichever of
the two processes dies.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ge_backend.device.machine.host_memory import check_room
from ge_backend.errors import OutOfMemory, ProtocolError
from ge_backend.executor.protocol.descriptors import created, mapped
from ge_backend.executor.protocol.messages import TensorRef
from ge_backend.tensors import DATA_TYPES, Array, decode_bytes

__all__ = ["ALIGNMENT", "Arena", "Segment", "aligned"]

# Accelerators want 64-byte aligned host memory for asynchronous copies, and so do vector loads.
ALIGNMENT = 64
# Has the peer map a segment, given its id, its size and its descriptor; may raise.
_Show = Callable[[int, int, int], None]


def aligned(nbytes: int) -> int:
    """Return `nbytes` rounded up to the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _not_shown(number: int, nbytes: int, descriptor: int) -> None:
    del number, nbytes, descriptor


@dataclass(frozen=True, slots=True)
class Segment:
    """A mapped memfd. Views of it keep the mapping alive after the segment is dropped."""

    memory: mmap.mmap
    nbytes: int

    @classmethod
    def create(cls, nbytes: int) -> tuple[Segment, int]:
        """Return a new zeroed segment and its descriptor, which the caller closes.

        Raises:
            OutOfMemory: the machine has not that much left, or the system refuses the mapping.
        """
        check_room(nbytes, "a batch's shared memory")
        memory, descriptor = created("ge-arena", nbytes)
        return cls(memory, nbytes), descriptor

    @classmethod
    def map(cls, descriptor: int, nbytes: int) -> Segment:
        """Map a segment that the peer created; the descriptor stays the caller's.

        Raises:
            OutOfMemory: the system refuses the mapping.
            ProtocolError: the descriptor is shorter than the peer said.
        """
        actual = os.fstat(descriptor).st_size
        if nbytes <= 0 or actual < nbytes:
            raise ProtocolError(f"arena of {nbytes} bytes announced, its descriptor holds {actual}")
        return cls(mapped(descriptor, nbytes), nbytes)

    def view(self, ref: TensorRef) -> Array:
        """Return the tensor without copying; BYTES is decoded into a fresh object array.

        Raises:
            ProtocolError: the reference does not lie in the segment or contradicts itself.
        """
        dtype = DATA_TYPES.get(ref.dtype)
        if dtype is None or min(ref.offset, ref.nbytes, *ref.shape) < 0:
            raise ProtocolError(f"{ref} is not a tensor")
        needed = ref.nbytes if dtype.name == "BYTES" else math.prod(ref.shape) * dtype.itemsize
        if needed > ref.nbytes or ref.offset + ref.nbytes > self.nbytes:
            raise ProtocolError(f"{ref} does not lie in a segment of {self.nbytes} bytes")
        if dtype.name == "BYTES":
            block = memoryview(self.memory)[ref.offset : ref.offset + ref.nbytes]
            return decode_bytes(block, ref.shape)
        return np.ndarray(ref.shape, dtype.numpy, buffer=self.memory, offset=ref.offset)

    def write(self, ref: TensorRef, block: bytes) -> None:
        """Copy a serialised BYTES tensor to its place."""
        self.memory[ref.offset : ref.offset + ref.nbytes] = block


class Arena:
    """The stub's segment, handed out front to back and taken back all at once.

    `reserve` is called once per batch, before anything is placed: it makes all of the arena free
    again and grows it if the batch needs more. So nothing is allocated while serving once the
    largest batch has been seen, and views of the batch before stay valid until then.

    Attributes:
        id: changes whenever the segment is a new one, which the executor must then attach.
        nbytes: the size of the segment.
    """

    def __init__(self, nbytes: int) -> None:
        self.id = 0
        self.nbytes = self._first_nbytes = max(aligned(nbytes), mmap.PAGESIZE)
        self._segment, self.descriptor = Segment.create(self.nbytes)
        self._used = 0

    def reserve(self, nbytes: int, *, keep: bool = False, show: _Show = _not_shown) -> bool:
        """Make room for `nbytes`; True when the segment is a new one.

        Everything placed before is free again, unless `keep` is set: then it stays as it is, in a
        segment of its own if need be, for as long as there are views of it.

        Args:
            nbytes: how much will be placed.
            keep: see above.
            show: called with a larger segment before it is taken; one that it refuses is not.

        Raises:
            OutOfMemory: there is not even room for that much; the segment stays.
        """
        self._used = self._used if keep else 0
        if self._used + nbytes <= self.nbytes:
            return False
        roomy, least = max(self.nbytes, 1 << (nbytes - 1).bit_length()), aligned(nbytes)
        try:
            self._replace(roomy, show)
        except OutOfMemory:
            if least == roomy:
                raise
            self._replace(least, show)
        return True

    def shrink(self) -> None:
        """Go on in another segment, of the first one's size, where nothing is placed.

        Raises:
            OutOfMemory: not even that is left; the segment stays.
        """
        self._replace(self._first_nbytes)

    def renew(self) -> None:
        """Go on in another segment that is as this one: an executor may write to this one still."""
        memory, used = self._segment.memory, self._used
        self._replace(self.nbytes)
        self._segment.memory[:used], self._used = memory[:used], used

    def place(self, name: str, dtype: str, shape: tuple[int, ...], nbytes: int) -> TensorRef:
        """Return the next free place.

        Raises:
            ProtocolError: more was placed than was reserved.
        """
        offset, end = self._used, self._used + aligned(nbytes)
        if end > self.nbytes:
            raise ProtocolError(f"{name}: {nbytes} bytes placed beyond the {self.nbytes} reserved")
        self._used = end
        return TensorRef(name=name, dtype=dtype, shape=shape, offset=offset, nbytes=nbytes)

    def view(self, ref: TensorRef) -> Array:
        """Return the tensor's memory as an array."""
        return self._segment.view(ref)

    def write(self, ref: TensorRef, block: bytes) -> None:
        """Copy a serialised BYTES tensor to its place."""
        self._segment.write(ref, block)

    def _replace(self, nbytes: int, show: _Show = _not_shown) -> None:
        segment, descriptor = Segment.create(nbytes)
        try:
            show(self.id + 1, nbytes, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(self.descriptor)
        self._segment, self.descriptor, self.nbytes = segment, descriptor, nbytes
        self._used = 0
        self.id += 1

    def close(self) -> None:
        """Close the descriptor; the mapping goes with its last view. Twice does no harm."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
