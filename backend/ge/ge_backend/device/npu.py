"""An Ascend NPU as a device: `.om` files through pyACL, `.onnx` compiled to such."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from ge_backend.device.acl_device import AclDevice
from ge_backend.device.acl_load import load_om
from ge_backend.device.acl_loaded import OmSource
from ge_backend.device.acl_memory import Block, SharedWeights
from ge_backend.device.base import UNPLANNED, Graph, GraphSource, MemoryInfo, Workspace
from ge_backend.errors import ConfigError, DeviceUnavailable, ModelError

__all__ = ["NpuDevice"]

TIMEOUT_OPTION = "npu.timeout_s"
DEFAULT_TIMEOUT_S = 60.0


class NpuDevice:
    """One NPU.

    Two runs may be in flight, each on a stream of its own: while one computes, the other copies.

    Args:
        acl: the module `acl`, or what behaves like it.
        index: which NPU, as this process sees them.
        lanes: how many runs may be in flight.

    Raises:
        DeviceUnavailable: there is no such NPU, or it cannot be taken.
    """

    def __init__(self, acl: Any, index: int = 0, *, lanes: int = 2) -> None:
        self._device = AclDevice(acl, index, streams=lanes)
        self._weights = SharedWeights(self._device.runtime)
        self._pool: Block | None = None
        self.name = self._device.name
        self.lanes = lanes

    @classmethod
    def open(cls, index: int) -> NpuDevice:
        """Open an NPU of this machine.

        Raises:
            DeviceUnavailable: CANN is not installed or not set up, or as above.
        """
        try:
            acl = importlib.import_module("acl")
        except ImportError as error:
            raise DeviceUnavailable(
                f"npu:{index} needs CANN's Python module 'acl', which cannot be imported "
                f"({error}); start the server in a shell that has run 'source <CANN>/set_env.sh', "
                "such as /usr/local/Ascend/ascend-toolkit/set_env.sh"
            ) from error
        return cls(acl, index)

    def reserve(self, nbytes: int) -> int:
        """Set the pool aside in one block; see `Device.reserve`.

        Without a pool each graph has work memory of its own, which only its own files share.
        """
        if nbytes:
            with self._device.entered():
                self._pool = Block(self._device.runtime, nbytes, "the workspace pool")
        return nbytes

    def load(self, source: GraphSource, workspace: Workspace = UNPLANNED) -> Graph:
        """Load a file; see `Device.load`."""
        path = Path(source.path)
        if path.suffix != ".om":
            raise ModelError(f"{path}: the npu device runs .om")
        if not path.is_file():
            raise ModelError(f"{path}: there is no such file")
        return load_om(
            OmSource(
                device=self._device,
                path=path,
                workspace=workspace,
                pool=self._pool,
                weights=self._weights,
                timeout_ms=_timeout_ms(source),
            )
        )

    def memory(self) -> MemoryInfo:
        """Return the free and total memory of the NPU."""
        return self._device.memory()

    def close(self) -> None:
        """Give the NPU back; all graphs are closed."""
        self._device.settle()
        if self._pool is not None:
            self._pool.close()
        self._device.close()


def _timeout_ms(source: GraphSource) -> int:
    """Return how long a run may take before the device counts as failed."""
    text = dict(source.options).get(TIMEOUT_OPTION, str(DEFAULT_TIMEOUT_S))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 2**31 / 1000:  # ACL takes milliseconds in 32 bits
        raise ConfigError(f"parameter {TIMEOUT_OPTION!r} is {text!r}; expected seconds above 0")
    return max(1, int(seconds * 1000))
