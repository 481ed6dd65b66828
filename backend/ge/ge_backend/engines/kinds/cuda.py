"""A CUDA GPU as a device: torch for `.pt2` and `.pt`, ONNX Runtime's CUDA provider for `.onnx`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ge_backend.device.base import NO_POOL, Graph, GraphSource, MemoryInfo, Workspace
from ge_backend.device.engines import Engines
from ge_backend.device.failures import reason
from ge_backend.device.imports import importing
from ge_backend.device.machine.openmp import spin_briefly
from ge_backend.errors import DeviceUnavailable

if TYPE_CHECKING:  # torch is imported when a GPU is opened
    from ge_backend.engines.torch.streams import Streams
    from ge_backend.engines.torch.vendor import Vendor

__all__ = ["CudaDevice"]

log = logging.getLogger(__name__)

LANES = 2


class CudaDevice:
    """One GPU.

    Two runs are in flight: one computes while the other one is uploaded, downloaded or answered.

    Args:
        vendor: the GPU as torch has it.
        lanes: how many runs may be in flight.

    Attributes:
        streams: what all its torch graphs share.
    """

    def __init__(self, vendor: Vendor, *, lanes: int = LANES) -> None:
        with importing():
            from ge_backend.engines.torch.streams import Streams

        self.name = vendor.device
        self.chip = vendor.chip()
        self.lanes = lanes
        self._vendor = vendor
        self.streams = Streams(vendor)
        self._engines: Engines[Streams] = Engines("cuda")

    @classmethod
    def open(cls, index: int, *, lanes: int = 0) -> CudaDevice:
        """Return a GPU by its index among those that CUDA_VISIBLE_DEVICES shows.

        torch is needed for ONNX models too: it tells the GPU's memory.

        Raises:
            DeviceUnavailable: torch is missing or has no CUDA, or there is no such GPU, or another
                process has it for itself.
        """
        spin_briefly()  # torch computes on the host as well
        try:
            with importing():
                from ge_backend.engines.torch.cuda import open_cuda
        except ImportError as error:
            raise DeviceUnavailable(
                f"device 'cuda:{index}' needs torch ({error}); install a build of it with CUDA"
            ) from error
        try:
            return cls(open_cuda(index), lanes=lanes or LANES)
        except RuntimeError as error:
            raise DeviceUnavailable(
                f"device 'cuda:{index}' cannot be used: {reason(error)}"
            ) from error

    def reserve(self, nbytes: int) -> int:
        """Return 0: there is nothing to plan, since runs take turns in one stream.

        The captured graphs of all models share one pool of torch's as large as the largest one's.
        """
        if nbytes:
            log.info("%s has no workspace pool: torch's graphs share their own", self.name)
        return 0

    def load(self, source: GraphSource, workspace: Workspace = NO_POOL) -> Graph:
        """Load `.onnx`, `.pt2` or `.pt`; see `Device.load`."""
        del workspace  # see `reserve`
        self._vendor.enter()
        return self._engines.load(source, self.streams)

    def torch_streams(self) -> Streams:
        """Return what all torch models share; see `TorchDevice`."""
        self._vendor.enter()
        return self.streams

    def memory(self) -> MemoryInfo:
        """Return what the driver says; memory that torch keeps for later runs counts as used."""
        return self._vendor.memory()

    def close(self) -> None:
        """Give torch's memory back; the driver keeps its own until the process ends."""
        self._vendor.synchronize()
        self._vendor.give_back()
