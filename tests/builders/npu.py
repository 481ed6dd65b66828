"""A simulated NPU with model files, which sees that nothing was misused and nothing is left."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from acl_simulator import (
    BatchGears,
    DimsGears,
    Echo,
    Encoder,
    ImageGears,
    Kept,
    Ranges,
    Simulator,
    Static,
    StaticV2,
    Sums,
    write_om,
)
from ge_backend.device.base import NO_POOL, GraphSource
from ge_backend.engines.kinds.npu import NpuDevice

INVALID, NO_MEMORY, BROKEN, LATE = 100000, 207001, 507015, 507046
PAIRS = {"input_ids": (-1, -1), "attention_mask": (-1, -1)}


class Npu:
    """A device, the simulator below it, and a folder for models.

    Args:
        folder: for the files.
        lanes: of the device.
        copies: of the device.
        **options: of the simulator.
    """

    def __init__(self, folder: Path, *, lanes: int = 2, copies: int = 1, **options: object) -> None:
        self.folder = folder
        self.sim = Simulator(**options)
        self.device = NpuDevice(self.sim, lanes=lanes, copies=copies)
        self._graphs: list = []

    def write(self, graph, shapes, name="model.om", axes=None, **options) -> Path:
        """Write a file, and names for its dimensions if any are given."""
        path = write_om(self.folder / name, graph, shapes, **options)
        if axes is not None:
            (self.folder / "model.om.json").write_text(json.dumps({"axes": axes}))
        return path

    def load(self, path: Path, workspace=NO_POOL, **options):
        """Load a file; it is closed at the end."""
        given = tuple(sorted(options.items()))
        graph = self.device.load(GraphSource.of(path, options=given), workspace)
        self._graphs.append(graph)
        return graph

    def close(self) -> None:
        """Close all that is open; see that ACL was left as it was found."""
        self.sim.heal()
        for graph in self._graphs:
            graph.close()
        self.device.close()
        assert self.sim.in_flight() == []
        assert self.sim.allocations() == []
        self.sim.check()


def run(graph, **inputs):
    """Run once without places."""
    return graph.run(inputs, {}, exclusive=False)


def encoder(folder: Path, name="model.om", **options) -> Path:
    """Write an encoder with gears 1x16, 4x16, 4x32."""
    gears = [(1, 16, 1, 16), (4, 16, 4, 16), (4, 32, 4, 32)]
    return write_om(folder / name, Encoder(), DimsGears(PAIRS, gears), **options)


def tokens(rows: int, length: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return an encoder's inputs."""
    generator = np.random.default_rng(seed)
    return {
        "input_ids": generator.integers(0, 100, (rows, length)),
        "attention_mask": (generator.random((rows, length)) < 0.8).astype(np.int64),
    }


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    """Return FP32 values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# Every kind of model: what is written, and inputs that it runs. A grid is several files.
def kinds(folder: Path) -> dict[str, tuple[Path, dict[str, np.ndarray], dict[str, np.ndarray]]]:
    """Write a model of each kind; return by kind the file, inputs, and what ought to come."""
    found = {}

    def add(kind, path, graph, **inputs):
        found[kind] = path, inputs, graph.expected(**inputs)

    def place(kind):
        (folder / kind).mkdir()
        return folder / kind / "model.om"

    add(
        "static",
        write_om(place("static"), Sums(), Static({"x": (3, 5)})),
        Sums(),
        x=floats(3, 5),
    )
    add(
        "static_v2",
        write_om(place("static_v2"), Sums(), StaticV2({"x": (3, 5)})),
        Sums(),
        x=floats(3, 5),
    )
    batches = BatchGears({"x": (-1, 5)}, [(1,), (2,), (8,)])
    add("batch", write_om(place("batch"), Sums(), batches), Sums(), x=floats(2, 5))
    images = ImageGears({"x": (1, 3, -1, -1)}, [(8, 8), (16, 4)])
    add("image", write_om(place("image"), Echo(), images), Echo(), x=floats(1, 3, 16, 4))
    path = encoder(place("dims").parent)
    add("dims", path, Encoder(), **tokens(4, 16))
    free = Ranges({"x": ((1, 64), (1, 64))})
    path = write_om(place("range"), Sums(), free)
    path.with_name("model.om.json").write_text(
        json.dumps({"axes": {"x": ["batch", "length"], "y": ["batch"]}})
    )
    add("range", path, Sums(), x=floats(3, 7))
    add(
        "unknown",
        write_om(place("unknown"), Kept("INT64"), Ranges({"x": ((1, 64),)})),
        Kept("INT64"),
        x=np.array([1, 0, 3]),
    )
    (folder / "grid").mkdir()
    for rows, length in [(1, 8), (4, 8), (4, 16)]:
        path = write_om(
            folder / "grid" / f"model.{rows}x{length}.om", Sums(), Static({"x": (rows, length)})
        )
    add("grid", path, Sums(), x=floats(4, 8))
    return found


KINDS = ("static", "static_v2", "batch", "image", "dims", "range", "unknown", "grid")
