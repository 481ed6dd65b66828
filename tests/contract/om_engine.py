"""Offline models on a simulated NPU: the contract's graphs as `.om` files with free dimensions."""

from __future__ import annotations

import json
from pathlib import Path

from acl_simulator import Echo, Kept, Ranges, Simulator, Static, Sums, write_om
from ge_backend.device.base import Graph, GraphSource, MemoryInfo, Workspace
from ge_backend.engines.kinds.npu import NpuDevice

ANY = (0, -1)  # a dimension of any size


class OmEngine:
    suffix = ".om"

    def write(self, path: Path, kind: str, dtype: str) -> None:
        graphs = {"echo": Echo, "scalar": Echo, "sums": Sums, "kept": Kept}
        dims = {"scalar": (), "kept": (ANY,)}.get(kind, (ANY, ANY))
        shapes = (Ranges if dims else Static)({"x": dims})
        write_om(path, graphs[kind](dtype), shapes)
        known = {"x": ["batch", "length"], "y": ["batch", "length"]}
        names = {
            "scalar": {},
            "kept": {"x": ["length"]},
            "sums": {"x": ["batch", "length"], "y": ["batch"]},
        }.get(kind, known)
        path.with_name(f"{path.name}.json").write_text(json.dumps({"axes": names}))


class CheckedNpu:
    """A simulated NPU that fails the test, at its end, if anything was misused or left."""

    def __init__(self) -> None:
        self.sim = Simulator()
        self._device = NpuDevice(self.sim)
        self.name, self.lanes = self._device.name, self._device.lanes
        self.chip = self._device.chip

    def reserve(self, nbytes: int) -> int:
        return self._device.reserve(nbytes)

    def load(self, source: GraphSource, *workspace: Workspace) -> Graph:
        return self._device.load(source, *workspace)

    def memory(self) -> MemoryInfo:
        return self._device.memory()

    def close(self) -> None:
        self._device.close()
        assert self.sim.calls["finalize"] == 1
        self.sim.check()
