"""The seam between serving and hardware: what a device is, and what it loads.

Above this folder nobody names an engine or a vendor. A `Device` loads a `GraphSource` and gives a
`Graph`; a graph reads host arrays (views of an arena) and writes host arrays. What only some
devices can do is a separate optional object, not a flag.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ge_backend.errors import DeviceUnavailable
from ge_backend.tensors import Array, Shape, Signature

__all__ = ["DEVICE_KINDS", "Device", "Graph", "GraphSource", "MemoryInfo", "open_device"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSource:
    """What to load, and how: two equal sources on one device share one graph and its weights.

    Attributes:
        path: the model file; its suffix chooses the engine.
        stamp: the file's modification time and size, so that a changed file is another source.
        precision: `origin`, `bf16` or `fp16`.
        threads: CPU threads for one run; 0 lets the device measure and decide.
    """

    path: str
    stamp: str
    precision: str = "origin"
    threads: int = 0

    @classmethod
    def of(cls, path: Path, *, precision: str = "origin", threads: int = 0) -> GraphSource:
        """Return the source for a file as it is now."""
        state = path.stat()
        stamp = f"{state.st_mtime_ns}-{state.st_size}"
        return cls(path=str(path.resolve()), stamp=stamp, precision=precision, threads=threads)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryInfo:
    """Bytes of the device's memory; for `cpu` the machine's."""

    free_bytes: int
    total_bytes: int


class Graph(Protocol):
    """A loaded model. One graph may be run from several threads at once.

    Attributes:
        signature: inputs and outputs, batch dimension included.
        static_shapes: it runs only in prepared shapes, so rows must be padded to a bucket. Where
            it is False a run at the rows' own longest size costs less than one in a bucket.
    """

    @property
    def signature(self) -> Signature:
        """Inputs and outputs; empty where the file does not say (TorchScript)."""

    @property
    def static_shapes(self) -> bool:
        """Whether only prepared shapes run."""

    def prepare(self, inputs: Mapping[str, Array]) -> None:
        """Compile or capture for these inputs' shapes; the values are valid but arbitrary."""

    def workspace_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return the scratch bytes that one run with these input shapes needs; 0 if not known."""

    def run(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], *, exclusive: bool
    ) -> dict[str, Array]:
        """Run once and return every output by name.

        Args:
            inputs: C-contiguous host arrays; BYTES as object arrays, BF16 as uint16. They belong to
                the caller and are not written.
            outputs: host arrays of the predicted shape to write results into, for those outputs
                whose shape the caller could predict. An output that has another shape, or is not
                named here, comes back as a fresh array that the caller owns.
            exclusive: nothing else runs or waits on the device, so the run may use all of it.

        Raises:
            GraphFailed: the engine refused these inputs or broke; the device is well.
            OutOfMemory: the device's memory is used up.
        """

    def close(self) -> None:
        """Free the graph's memory; it is not used afterwards."""


class Device(Protocol):
    """One accelerator, opened. Owned by the executor; not used after `close`.

    Attributes:
        name: `cpu`, `cuda:0`, `npu:1`.
        lanes: how many runs may be in flight at once.
    """

    @property
    def name(self) -> str:
        """How configurations and logs call it."""

    @property
    def lanes(self) -> int:
        """How many runs may be in flight at once."""

    def load(self, source: GraphSource) -> Graph:
        """Load a model file; several may be loaded at once.

        Raises:
            ModelError: the file is missing, corrupt, or of a kind this device does not run.
            DeviceUnavailable: the engine for this kind of file is not installed.
        """

    def memory(self) -> MemoryInfo:
        """Return the device's free and total memory now."""

    def close(self) -> None:
        """Give the device back."""


# kind -> (module, class); a module is imported only when a device of its kind is opened.
DEVICE_KINDS: Mapping[str, tuple[str, str]] = {
    "cpu": ("ge_backend.device.cpu", "CpuDevice"),
    "null": ("ge_backend.device.null", "NullDevice"),
}


def open_device(name: str) -> Device:
    """Open a device by name: `cpu`, `null`, later `cuda:0` and `npu:0`.

    Raises:
        DeviceUnavailable: the kind is unknown, the device is not there, or its library is missing.
    """
    kind, _, index = name.partition(":")
    if kind not in DEVICE_KINDS or (index and not index.isdecimal()):
        known = ", ".join(DEVICE_KINDS)
        raise DeviceUnavailable(f"device {name!r} is unknown; known kinds are {known}")
    module, attribute = DEVICE_KINDS[kind]
    device: Device = getattr(importlib.import_module(module), attribute).open(int(index or 0))
    return device
