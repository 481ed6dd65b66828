"""Memory of ours on an NPU and pinned memory beside it, each with an owner that gives it back.

Nothing here is allocated while requests are served: graphs take their memory when they are loaded,
for their largest shapes. Only pinned memory is copied asynchronously.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ge_backend.device.shared import Shared
from ge_backend.engines.acl.codes import ALIGNMENT
from ge_backend.engines.acl.runtime import AclRuntime
from ge_backend.errors import OutOfMemory
from ge_backend.model.config.sizes import format_bytes
from ge_backend.tensors import Array

__all__ = ["Block", "Pinned", "SharedWeights", "Slot", "Staging", "explained"]

# A slice of one block is rounded up and followed by a guard; both keep the next one aligned.
# Source: CANN runtime api_ref 11-01: at most the length rounded up to 32, and 32 bytes more.
GUARD_BYTES = 32


@contextlib.contextmanager
def explained(runtime: AclRuntime, what: str, nbytes: int) -> Iterator[None]:
    """Let a lack of memory say what was to be placed, and what the device has left."""
    try:
        yield
    except OutOfMemory as error:
        left = runtime.memory()
        raise OutOfMemory(
            f"no room for {what}: {format_bytes(nbytes)} needed, "
            f"{format_bytes(left.free_bytes)} of {format_bytes(left.total_bytes)} free ({error}); "
            "unload another model, or give this one smaller or fewer buckets"
        ) from error


class Block:
    """Device memory, until `close`.

    Args:
        what: what it is for, in messages.

    Raises:
        OutOfMemory: the device has not that much left.
    """

    def __init__(self, runtime: AclRuntime, nbytes: int, what: str) -> None:
        self._runtime = runtime
        self.nbytes = nbytes
        with explained(runtime, what, nbytes):
            self.address = runtime.allocate(nbytes)

    def close(self) -> None:
        """Free it: nothing in flight uses it."""
        self._runtime.free(self.address)


class Pinned:
    """Pinned host memory, until `close`: `bytes` is all of it, uint8."""

    def __init__(self, runtime: AclRuntime, nbytes: int, what: str) -> None:
        self._runtime = runtime
        with explained(runtime, f"{what}, pinned on the host", nbytes):
            self.address = runtime.allocate_host(nbytes)
        memory = (ctypes.c_uint8 * nbytes).from_address(self.address)
        self.bytes: Array = np.ctypeslib.as_array(memory)

    def close(self) -> None:
        """Free it: nothing in flight uses it."""
        self._runtime.free_host(self.address)


@dataclass(frozen=True, slots=True)
class Slot:
    """Room for one tensor: on the device, and pinned on the host.

    Attributes:
        device, host: addresses, at 64-byte boundaries.
        capacity: bytes on the device that the tensor may take; a few even for an empty one.
        bytes: the host side, uint8.
    """

    device: int
    host: int
    capacity: int
    bytes: Array


class Staging:
    """Slots for named tensors, in one block on each side.

    Args:
        sizes: the most bytes of each tensor.
        what: whose they are, in messages.

    Attributes:
        sizes: likewise; none where `resize` has lost all slots.

    Raises:
        OutOfMemory: one of the two sides has no room.
    """

    def __init__(self, runtime: AclRuntime, sizes: Mapping[str, int], what: str) -> None:
        self._runtime, self._what = runtime, what
        self.sizes: Mapping[str, int] = {}
        self._slots: dict[str, Slot] = {}
        self._take(sizes)

    def __getitem__(self, name: str) -> Slot:
        return self._slots[name]

    def resize(self, sizes: Mapping[str, int]) -> None:
        """Have slots of other sizes in place of these, which are freed first: none is in use.

        Raises:
            OutOfMemory: there is no room. Slots of the sizes before are taken again then; if
                that memory is another's by now, there are none.
        """
        before = self.sizes
        self.close()
        self.sizes, self._slots = {}, {}
        try:
            self._take(sizes)
        except OutOfMemory:
            if before:
                self._take(before)
            raise

    def close(self) -> None:
        """Free both sides: nothing in flight uses them."""
        self._taken.close()

    def _take(self, sizes: Mapping[str, int]) -> None:
        starts, total = _starts(sizes)
        with contextlib.ExitStack() as taken:
            device = Block(self._runtime, total, self._what)
            taken.callback(device.close)
            pinned = Pinned(self._runtime, total, self._what)
            taken.callback(pinned.close)
            self._taken = taken.pop_all()
        self.sizes = sizes
        self._slots = {
            name: Slot(
                device.address + start,
                pinned.address + start,
                max(sizes[name], 1),
                pinned.bytes[start : start + sizes[name]],
            )
            for name, start in starts.items()
        }


def _starts(sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Return where each slice begins, and the bytes of all; an empty tensor has a place, too."""
    starts, end = {}, 0
    for name, nbytes in sizes.items():
        starts[name] = end
        end += -(-(max(nbytes, 1) + GUARD_BYTES) // ALIGNMENT) * ALIGNMENT
    return starts, max(end, ALIGNMENT)


class SharedWeights:
    """Weights on the device, once per file however often it is loaded; safe from several threads.

    Weights are only read while models run, so several loads of one file may share them. Different
    files do where their weights are equal byte for byte: each load writes the same over the same.
    Source: CANN, aclmdlLoadFromFileWithMem; hicann/ge davinci_model.cc (InitWeightMem).
    """

    def __init__(self, runtime: AclRuntime) -> None:
        self._runtime = runtime
        self._blocks: Shared[str, Block] = Shared(0.0, Block.close)

    @contextlib.contextmanager
    def borrowed(self, key: str, nbytes: int) -> Iterator[Block]:
        """Lend the block of a file.

        Args:
            key: the same for equal files, another one once the file has changed.
            nbytes: of its weights.

        Raises:
            OutOfMemory: it is not there yet, and the device has no room for it.
        """
        what = f"the weights of {key}"
        block = self._blocks.acquire(key, lambda: Block(self._runtime, nbytes, what))
        try:
            yield block
        finally:
            self._blocks.release(key)
            self._blocks.close_idle(now=True)
