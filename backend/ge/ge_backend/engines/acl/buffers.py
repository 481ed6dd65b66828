"""Device buffers of an NPU. Copies between them must begin at 64-byte boundaries."""

from __future__ import annotations

import contextlib

import numpy as np

from ge_backend.device.resident.buffers import Copy, DeviceBuffer
from ge_backend.engines.acl.codes import ALIGNMENT
from ge_backend.engines.acl.device import AclDevice
from ge_backend.engines.acl.memory import Block, Pinned
from ge_backend.errors import ProtocolError
from ge_backend.tensors import Array

__all__ = ["AclMemory", "address"]


class AclMemory:
    """An NPU's memory; see `BufferMemory`.

    Args:
        timeout_ms: how long a copy may take before the device counts as failed.
    """

    name = "acl"
    alignment = ALIGNMENT

    def __init__(self, device: AclDevice, timeout_ms: int) -> None:
        self._device = device
        self._timeout_ms = timeout_ms

    def allocate(self, nbytes: int, what: str) -> DeviceBuffer:
        """Return a buffer; see `BufferMemory`."""
        with self._device.entered():
            return _AclBuffer(self._device, nbytes, what)

    def upload(self, buffer: DeviceBuffer, content: Array) -> None:
        """Copy from the host; see `BufferMemory`."""
        device, target = self._device, address(Copy(0, buffer, 0, content.nbytes))
        with contextlib.ExitStack() as taken, device.entered():
            pinned = Pinned(device.runtime, content.nbytes, "what is uploaded")
            taken.callback(pinned.close)
            taken.callback(device.settle)  # after a fault the copy may be in flight
            np.copyto(pinned.bytes, content)
            with device.stream(self._timeout_ms) as stream:
                device.runtime.upload(target, pinned.address, content.nbytes, stream)
                device.runtime.synchronise(stream, self._timeout_ms)


class _AclBuffer(Block):
    """Device memory; see `DeviceBuffer`."""

    def __init__(self, device: AclDevice, nbytes: int, what: str) -> None:
        super().__init__(device.runtime, nbytes, what)
        self._device = device

    def close(self) -> None:
        """Free it; see `DeviceBuffer`."""
        self._device.settle()
        super().close()


def address(copy: Copy) -> int:
    """Return where on the NPU a copy's bytes are in their buffer.

    Raises:
        ProtocolError: they are in another engine's memory.
    """
    if not isinstance(copy.buffer, _AclBuffer):
        raise ProtocolError("a tensor that another engine keeps cannot be given to this model")
    return copy.buffer.address + copy.place
