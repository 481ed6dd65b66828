"""The torch engine on an NPU by itself, put to the checks of `device_checks.py`."""

from __future__ import annotations

from pathlib import Path

from ge_backend.device.base import NO_POOL, Graph, GraphSource, MemoryInfo, Workspace
from ge_backend.device.failures import reason
from ge_backend.engines.torch.accelerator import AcceleratorGraph
from ge_backend.engines.torch.npu import open_npu
from ge_backend.engines.torch.streams import Streams

from .device_checks import CHECKS, prepare

__all__ = ["NpuTorch", "checked", "passed"]


class NpuTorch:
    """An NPU as `CudaDevice` is a GPU: streams, and torch programs on them."""

    def __init__(self, streams: Streams) -> None:
        self.name = streams.vendor.device
        self.streams = streams

    def load(self, source: GraphSource, workspace: Workspace = NO_POOL) -> Graph:
        """Load a program."""
        del workspace
        return AcceleratorGraph(source, streams=self.streams)

    def memory(self) -> MemoryInfo:
        """Return the free and total memory."""
        return self.streams.vendor.memory()


def checked(index: int, folder: Path) -> str:
    """Return how many checks an NPU passes, and what the others say."""
    return passed(NpuTorch(Streams(open_npu(index))), folder)


def passed(device: NpuTorch, folder: Path) -> str:
    """Return how many checks a device passes, and what the others say."""
    subject = prepare(device, folder)
    failed = []
    for check in CHECKS:
        try:
            check(subject)
        except Exception as error:  # noqa: BLE001 - the next one can tell more
            failed.append(f"{check.__name__}: {type(error).__name__}: {reason(error)}")
    return f"{len(CHECKS) - len(failed)} of {len(CHECKS)} pass. {' '.join(failed)}".strip()
