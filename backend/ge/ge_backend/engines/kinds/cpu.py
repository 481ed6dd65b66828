"""The CPU as a device, and the engines that the table has for it."""

from __future__ import annotations

from pathlib import Path

from ge_backend.device.base import NO_POOL, Graph, GraphSource, MemoryInfo, Workspace
from ge_backend.device.engines import Engines
from ge_backend.device.machine.cores import usable_cores
from ge_backend.device.machine.host_memory import host_memory
from ge_backend.device.machine.openmp import spin_briefly
from ge_backend.device.machine.threads import Cores
from ge_backend.errors import DeviceUnavailable
from ge_backend.model.files.model_file import model_bytes

__all__ = ["CpuDevice"]

# Of a model's files. A step of a recurrent network of 1 MB took 20 us on one thread, and as long
# again to wake a second one, which a client then waits for, too.
FEW_BYTES = 4 << 20


class CpuDevice:
    """The cores this process may use.

    Unless it is said otherwise a run uses one thread and as many run at once as there are cores:
    measured on an encoder, two one-thread runs side by side finish sooner than two two-thread runs
    one after the other. With fewer lanes each has its share of the cores. What runs do that are
    alone is found out per graph (`ThreadChoice`); a model of few weights, whose runs may be shorter
    than it takes to wake a second thread, chooses between one thread and all.

    Args:
        lanes: how many runs may be in flight; 0 is one per usable core.
    """

    name = "cpu"
    chip = ""

    def __init__(self, lanes: int = 0) -> None:
        count = usable_cores()
        self.lanes = lanes or count
        self._cores = Cores(count, max(1, count // self.lanes))
        self._engines: Engines[Cores] = Engines("cpu")

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
        cores = Cores(self._cores.count) if _has_few_weights(source) else self._cores
        return self._engines.load(source, cores)

    def memory(self) -> MemoryInfo:
        """Return the machine's available and total memory."""
        return host_memory()

    def close(self) -> None:
        """Do nothing: graphs own what they hold."""


def _has_few_weights(source: GraphSource) -> bool:
    """Whether a model's files have few bytes; of one that is not there an engine says so."""
    try:
        return model_bytes(Path(source.path), source.options) <= FEW_BYTES
    except OSError:
        return False
