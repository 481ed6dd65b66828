"""The CPU as a device: ONNX Runtime for `.onnx`, torch for `.pt2` and `.pt`."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from ge_backend.device.base import UNPLANNED, Graph, GraphSource, MemoryInfo, Workspace
from ge_backend.device.cores import usable_cores
from ge_backend.errors import DeviceUnavailable, ModelError

__all__ = ["CpuDevice", "read_memory"]

# suffix -> (module, class, the library it needs, the extra that installs it); imported at load,
# so that a model of one engine never waits for the import of the other.
ENGINES: Mapping[str, tuple[str, str, str, str]] = {
    ".onnx": ("ge_backend.device.onnx_graph", "OnnxGraph", "onnxruntime", "onnx"),
    ".pt2": ("ge_backend.device.torch_graph", "TorchGraph", "torch", "torch"),
    ".pt": ("ge_backend.device.torch_graph", "TorchGraph", "torch", "torch"),
}


class _Engine(Protocol):
    def __call__(self, source: GraphSource, *, cores: int) -> Graph: ...


class CpuDevice:
    """The cores this process may use.

    A run uses one thread and as many run at once as there are cores: measured on an encoder, two
    one-thread runs side by side finish sooner than two two-thread runs one after the other. What
    a run does that has the device for itself is measured per graph (`ThreadChoice`).

    Args:
        lanes: how many runs may be in flight; None is one per usable core.
    """

    name = "cpu"

    def __init__(self, lanes: int | None = None) -> None:
        self._cores = usable_cores()
        # One file at a time per library: torch.export.load keeps its state in a global.
        self._loading = {library: threading.Lock() for _, _, library, _ in ENGINES.values()}
        self.lanes = self._cores if lanes is None else lanes

    @classmethod
    def open(cls, index: int) -> CpuDevice:
        """Return the device; there is only `cpu`, not `cpu:1`.

        Raises:
            DeviceUnavailable: an index was given.
        """
        if index:
            raise DeviceUnavailable(f"device 'cpu:{index}': there is one cpu device; say 'cpu'")
        return cls()

    def reserve(self, nbytes: int) -> int:
        """Return `nbytes`: nothing is set aside, the engines' own scratch counts as the pool's."""
        return nbytes

    def load(self, source: GraphSource, workspace: Workspace = UNPLANNED) -> Graph:
        """Load `.onnx`, `.pt2` or `.pt`; see `Device.load`."""
        del workspace  # the engines' scratch is only known once it has been measured
        path = Path(source.path)
        if path.suffix not in ENGINES:
            raise ModelError(f"{path}: the cpu device runs {', '.join(ENGINES)} files")
        if not path.is_file():
            raise ModelError(f"{path}: there is no such file")
        module, attribute, library, extra = ENGINES[path.suffix]
        # Read by libgomp when torch is first imported: threads that wait for each other sleep. By
        # default they spin, and beside other busy processes single runs took 1300 ms, not 90.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        try:
            importlib.import_module(library)
        except ImportError as error:
            raise DeviceUnavailable(
                f"{path.name} needs {library} ({error}); pip install 'triton-ge-backend[{extra}]'"
            ) from error
        engine: _Engine = getattr(importlib.import_module(module), attribute)
        with self._loading[library]:
            return engine(source, cores=self._cores)

    def memory(self) -> MemoryInfo:
        """Return the machine's available and total memory."""
        return read_memory(Path("/proc/meminfo").read_text())

    def close(self) -> None:
        """Do nothing: graphs own what they hold."""


def read_memory(meminfo: str) -> MemoryInfo:
    """Return the figures of a `/proc/meminfo` text."""
    fields = dict(line.split(":", 1) for line in meminfo.splitlines() if ":" in line)
    free, total = (int(fields[key].split()[0]) * 1024 for key in ("MemAvailable", "MemTotal"))
    return MemoryInfo(free_bytes=free, total_bytes=total)
