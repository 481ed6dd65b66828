"""Device and host memory, and who may reach which.

Device memory lies at addresses that no host pointer can have; host memory is real memory of this
process, so that ctypes and NumPy can view it. Nothing is zeroed: fresh memory is poison.
"""

import ctypes

import numpy as np

from acl_simulator.codes import Code, Policy
from acl_simulator.machine.address_space import POISON, AddressSpace, Block, align_up
from acl_simulator.refusals import Misuses, Refusal

__all__ = ["ALIGNMENT", "DeviceMemory", "HostMemory", "Memory", "padding_of"]

ALIGNMENT = 64
DEVICE_BASE = 0x12C0_0000_0000
DEVICE_SPAN = 0x0100_0000_0000  # addresses of one device
MIB = 1 << 20
HUGE_PAGE, GIANT_PAGE = 2 * MIB, 1024 * MIB
CANARY = 64  # bytes behind a host block that nobody may write


def padding_of(soc: str) -> int:
    """Return the bytes that this chip wants free behind each slice of memory."""
    return 0 if soc.startswith("Ascend950") else 32


class DeviceMemory:
    """One device's HBM."""

    def __init__(self, index: int, size: int, padding: int, misuses: Misuses) -> None:
        self.index = index
        self.size = size
        self.used = 0
        self.padding = padding
        self.space = AddressSpace(misuses)
        self._next = DEVICE_BASE + index * DEVICE_SPAN

    @property
    def free_bytes(self) -> int:
        """Bytes that are not taken."""
        return self.size - self.used

    def allocate(
        self,
        size: int,
        policy: int = Policy.HUGE_FIRST,
        *,
        owner: str = "user",
        refusal: Code = Code.RT_MEMORY_ALLOCATION,
    ) -> Block:
        """Return a new block of poison.

        Raises:
            Refusal: an unknown policy, no bytes asked for, or not enough left.
        """
        if size == 0:
            raise Refusal(Code.INVALID_PARAM, "malloc of 0 bytes")
        page = _page(size, policy)
        cost = align_up(align_up(size, 32) + self.padding, page)
        if cost > self.free_bytes:
            raise Refusal(
                refusal,
                f"device {self.index} has {self.free_bytes} of {self.size} bytes left, "
                f"{cost} are needed for {owner}",
            )
        start = align_up(self._next, max(page, ALIGNMENT))
        self._next = start + cost + ALIGNMENT
        block = Block(
            start=start,
            size=size,
            cost=cost,
            place=f"device {self.index}",
            owner=owner,
            data=np.full(size, POISON, np.uint8),
        )
        self.space.add(block)
        self.used += cost
        return block

    def free(self, block: Block) -> None:
        """Give a block back at once, whoever still uses it."""
        block.data = None
        self.used -= block.cost


class HostMemory:
    """Pinned memory of this process. What is freed stays mapped, poisoned, to show late writes."""

    def __init__(self, misuses: Misuses) -> None:
        self.space = AddressSpace(misuses)
        self._misuses = misuses
        self._buffers: dict[int, np.ndarray] = {}
        self._freed: dict[int, Block] = {}

    def allocate(self, size: int) -> Block:
        """Return a new block of poison at a 64-byte boundary.

        Raises:
            Refusal: no bytes asked for.
        """
        if size == 0:
            raise Refusal(Code.INVALID_PARAM, "malloc_host of 0 bytes")
        buffer = np.full(size + CANARY + ALIGNMENT, POISON, np.uint8)
        offset = -buffer.ctypes.data % ALIGNMENT
        block = Block(
            start=buffer.ctypes.data + offset,
            size=size,
            cost=size + CANARY,
            place="host",
            owner="user",
            data=buffer[offset : offset + size],
        )
        self.space.add(block)
        self._buffers[block.start] = buffer[offset : offset + size + CANARY]
        return block

    def free(self, block: Block) -> None:
        """Poison a block; its address is not given out again."""
        self._check_canary(block)
        self._buffers[block.start][:] = POISON
        self._freed[block.start] = block
        block.data = None

    def check(self) -> None:
        """Note what was written behind a block or after it was freed."""
        for block in self.space:
            self._check_canary(block)
        for start, block in self._freed.items():
            if np.any(self._buffers[start] != POISON):
                self._misuses.note(f"written after free_host: {block}")
                self._buffers[start][:] = POISON

    def _check_canary(self, block: Block) -> None:
        canary = self._buffers[block.start][block.size :]
        if np.any(canary != POISON):
            self._misuses.note(f"written behind the end of {block}")
            canary[:] = POISON


class Memory:
    """All memory that a copy can name: every device's, pinned, and any other of this process."""

    def __init__(self, devices: list[DeviceMemory], misuses: Misuses) -> None:
        self.devices = devices
        self.host = HostMemory(misuses)

    def device_of(self, address: int) -> DeviceMemory | None:
        """Return the device whose address this is, allocated or not."""
        index = (address - DEVICE_BASE) // DEVICE_SPAN
        return self.devices[index] if 0 <= index < len(self.devices) else None

    def is_pinned(self, address: int) -> bool:
        """Whether `malloc_host` gave this host address."""
        return self.host.space.find(address) is not None

    def view(self, address: int, size: int) -> np.ndarray:
        """Return bytes wherever they are; host addresses that we do not know are taken on trust."""
        device = self.device_of(address)
        if device is not None:
            return device.space.view(address, size)
        if self.is_pinned(address):
            return self.host.space.view(address, size)
        return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)

    def live(self) -> list[Block]:
        """Return what the user has allocated and not freed."""
        spaces = [self.host.space, *(device.space for device in self.devices)]
        return [block for space in spaces for block in space if block.owner == "user"]


def _page(size: int, policy: int) -> int:
    try:
        kind = Policy(policy & 0xFF)
    except ValueError:
        raise Refusal(Code.RT_INVALID_MALLOC_TYPE, f"malloc policy {policy}") from None
    if kind in (Policy.HUGE1G_ONLY, Policy.HUGE1G_ONLY_P2P):
        return GIANT_PAGE
    first = kind in (Policy.HUGE_FIRST, Policy.HUGE_FIRST_P2P) and size > MIB
    if first or kind in (Policy.HUGE_ONLY, Policy.HUGE_ONLY_P2P):
        return HUGE_PAGE
    return ALIGNMENT
