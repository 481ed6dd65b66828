"""`acl.rt`: allocating, freeing, and how much there is."""

from acl_simulator.codes import Code
from acl_simulator.machine.address_space import Block
from acl_simulator.machine.hazards import writing
from acl_simulator.machine.machine import Machine
from acl_simulator.refusals import Refusal

__all__ = ["MemoryCalls"]

DDR, HBM = (0, 2, 3), (1, 4, 5)


class MemoryCalls:
    """One machine's memory calls."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def malloc(self, size: int, policy: int) -> int:
        return self._machine.context().device.memory.allocate(size, policy).start

    def malloc_align32(self, size: int, policy: int) -> int:
        return self.malloc(size, policy)

    def malloc_cached(self, size: int, policy: int) -> int:
        return self.malloc(size, policy)

    def free(self, address: int) -> None:
        machine = self._machine
        machine.context()
        if address == 0:
            raise Refusal(Code.INVALID_PARAM, "free of a null pointer")
        device = machine.memory.device_of(address)
        if device is None:
            machine.misuses.refuse(f"free({address:#x}): not a device's address")
        block = device.space.at_start(address, "free")
        if block.owner != "user":
            machine.misuses.refuse(f"free of what belongs to {block.owner}: {block}")
        self._refuse_while_used(block, "free")
        device.free(block)

    def malloc_host(self, size: int) -> int:
        self._machine.context()
        return self._machine.memory.host.allocate(size).start

    def free_host(self, address: int) -> None:
        machine = self._machine
        machine.context()
        if address == 0:
            raise Refusal(Code.INVALID_PARAM, "free_host of a null pointer")
        block = machine.memory.host.space.at_start(address, "free_host")
        self._refuse_while_used(block, "free_host")
        machine.memory.host.free(block)

    def get_mem_info(self, kind: int) -> tuple[int, int]:
        memory = self._machine.context().device.memory
        if kind in DDR:
            return 0, 0
        if kind not in HBM:
            raise Refusal(Code.RT_PARAM_INVALID, f"memory attribute {kind}")
        return memory.free_bytes, memory.size

    def _refuse_while_used(self, block: Block, call: str) -> None:
        machine = self._machine
        whole = writing(block.start, block.size, f"the memory freed, {block},")
        machine.hazards.touch(call, whole)
        for model in machine.models.values():
            for held in model.holds:
                if held.conflicts(whole):
                    machine.misuses.refuse(
                        f"{call} of {block}: {held.what} of {model}, still loaded"
                    )
