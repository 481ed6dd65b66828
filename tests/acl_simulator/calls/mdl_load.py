"""`acl.mdl`: loading and unloading models."""

from acl_simulator.codes import Code
from acl_simulator.machine.loader import Given, Loader
from acl_simulator.machine.machine import Machine
from acl_simulator.om_file import Om
from acl_simulator.refusals import Refusal

__all__ = ["LoadCalls"]


class LoadCalls:
    """One machine's load calls."""

    def __init__(self, machine: Machine, loader: Loader) -> None:
        self._machine = machine
        self._loader = loader

    def load_from_file(self, path: str) -> int:
        return self._loader.load(self._loader.read_path(path)).number

    def load_from_mem(self, address: int, size: int) -> int:
        return self._loader.load(self._loader.read_bytes(address, size)).number

    def load_from_file_with_mem(
        self, path: str, work: int, work_size: int, weights: int, weight_size: int
    ) -> int:
        om = self._loader.read_path(path)
        self._refuse_plans(om)
        return self._loader.load(om, Given(work, work_size), Given(weights, weight_size)).number

    def load_from_mem_with_mem(
        self, address: int, size: int, work: int, work_size: int, weights: int, weight_size: int
    ) -> int:
        om = self._loader.read_bytes(address, size)
        return self._loader.load(om, Given(work, work_size), Given(weights, weight_size)).number

    def unload(self, number: int) -> None:
        if self._loader.find(number).bundle:
            raise Refusal(Code.INVALID_PARAM, "a bundle's model cannot be unloaded singly")
        self._loader.unload(number)

    def query_size(self, path: str) -> tuple[int, int]:
        om = self._loader.read_path(path)
        self._refuse_plans(om)
        return om.work_bytes, om.weight_bytes

    def query_size_from_mem(self, address: int, size: int) -> tuple[int, int]:
        om = self._loader.read_bytes(address, size)
        self._refuse_plans(om)
        return om.work_bytes, om.weight_bytes

    def _refuse_plans(self, om: Om) -> None:
        """Refuse what the documents forbid: aclmdlQuerySize, aclmdlLoadFromFileWithMem."""
        if om.is_v2 and not self._machine.plans_ranges:
            raise Refusal(Code.GE_PARAM_INVALID, f"{om.name} has no fixed shape to plan memory for")
