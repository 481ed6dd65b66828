"""The CPU as a device, and the engines that the table has for it."""

from __future__ import annotations

from dataclasses import replace

from ge_backend.device.base import NO_POOL, Graph, GraphSource, MemoryInfo, Workspace
from ge_backend.device.engines import Engines
from ge_backend.device.machine.cores import usable_cores
from ge_backend.device.machine.host_memory import host_memory
from ge_backend.device.machine.openmp import spin_briefly
from ge_backend.device.machine.threads import Cores
from ge_backend.errors import DeviceUnavailable

__all__ = ["CpuDevice"]


class CpuDevice:
    """The cores this process may use.

    Unless it is said otherwise a run uses one thread and as many run at once as there are cores:
    measured on an encoder, two one-thread runs side by side finish sooner than two two-thread runs
    one after the other. What runs do that have been alone for a while is found out per graph
    (`ThreadChoice`). With fewer lanes each has its share of the cores.

    Args:
        lanes: how many runs may be in flight; 0 is one per usable core.
    """

    name = "cpu"
    chip = ""

    def __init__(self, lanes: int = 0) -> None:
        self._cores = Cores(usable_cores())
        self._engines = Engines("cpu", self._cores)
        self.lanes = lanes or self._cores.count

    @classmethod
    def open(cls, index: int, *, lanes: int = 0) -> CpuDevice:
        """Return the device; there is only `cpu`, not `cpu:1`.

        Raises:
            DeviceUnavailable: an index was given.
        """
        if index:
            raise DeviceUnavailable(f"device 'cpu:{index}': there is one cpu device; say 'cpu'")
        return cls(lanes)

    def reserve(self, nbytes: int) -> int:
        """Return `nbytes`: nothing is set aside, the engines' own scratch counts as the pool's."""
        return nbytes

    def load(self, source: GraphSource, workspace: Workspace = NO_POOL) -> Graph:
        """Load a file of one of its engines; see `Device.load`."""
        del workspace  # the engines' scratch is only known once it has been measured
        spin_briefly()
        share = self._cores.count // self.lanes
        if share > 1 and not source.threads:
            source = replace(source, threads=share)
        return self._engines.load(source)

    def memory(self) -> MemoryInfo:
        """Return the machine's available and total memory."""
        return host_memory()

    def close(self) -> None:
        """Do nothing: graphs own what they hold."""
