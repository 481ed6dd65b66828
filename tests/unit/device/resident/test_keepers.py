"""Tensors that stay on a device between two graphs' runs, on each engine that can keep them."""

import functools
import json
from dataclasses import replace

import numpy as np
import pytest

from acl_simulator import DimsGears, Ranges
from acl_simulator.graphs import Affine
from builders.npu import Npu
from ge_backend.device.acl.compiled import CompiledGraph
from ge_backend.device.base import GraphSource
from ge_backend.device.resident.tensors import KeepingGraph, Rows, StayingOutput, fed
from ge_backend.errors import GraphFailed, OutOfMemory, ProtocolError
from ge_backend.tensors import DATA_TYPES, Signature, TensorSpec

torch = pytest.importorskip("torch")

from fakes.torch_vendor import FakeVendor  # noqa: E402
from ge_backend.device.pytorch.accelerator import AcceleratorGraph  # noqa: E402
from ge_backend.device.pytorch.streams import Streams  # noqa: E402

FP32 = DATA_TYPES["FP32"]
WIDTH = 16
SHAPES = [(2, 3, WIDTH), (4, 5, WIDTH)]
X = {"x": (-1, -1, WIDTH)}


class OnNpu:
    """y = 2x + 1, on a simulated NPU."""

    counts_bus = True

    def __init__(self, folder, copies=1):
        self.npu = Npu(folder, copies=copies)

    def load(self):
        gears = DimsGears(X, [shape[:2] for shape in SHAPES])
        return self.npu.load(self.npu.write(Affine(), gears))

    def bus(self):
        return self.npu.sim.uploads, self.npu.sim.downloads

    def allocated(self):
        return self.npu.sim.calls["rt.malloc"]

    def close(self):
        self.npu.close()


class OnCompiled(OnNpu):
    """The same from an ONNX file, whose compiled model calls its output otherwise."""

    def load(self):
        gears = DimsGears(X, [shape[:2] for shape in SHAPES])
        file = self.npu.write(Affine(), gears)
        spec = TensorSpec(name="x", dtype=FP32, dims=X["x"], axes=("batch", "length", ""))
        signature = Signature(inputs=(spec,), outputs=(replace(spec, name="y"),), axis_limits={})
        graph = CompiledGraph(file, signature, lambda _: file, self.npu.load)
        graph.compile([{"x": shape} for shape in SHAPES])
        return graph


class Doubling(torch.nn.Module):
    def forward(self, x):
        return 2 * x + 1


@functools.cache
def exported():
    dims = {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("length", max=64)}
    return torch.export.export(Doubling(), (torch.zeros(2, 3, WIDTH),), dynamic_shapes=(dims,))


class OnTorch:
    """The same, on an accelerator that is not there; in graphs, or operator by operator."""

    def __init__(self, folder, mode, precision="origin"):
        self.vendor, self.folder, self.mode = FakeVendor(), folder, mode
        self.precision = precision
        self.streams = Streams(self.vendor)
        self.counts_bus = mode == "graphs"  # else torch itself copies, which nobody counts

    def load(self):
        path = self.folder / "model.pt2"
        names = {"inputs": ["x"], "outputs": ["y"]}
        torch.export.save(exported(), str(path), extra_files={"ge_names.json": json.dumps(names)})
        options = (("torch.mode", self.mode),)
        source = GraphSource.of(path, precision=self.precision, options=options)
        graph = AcceleratorGraph(source, self.streams)
        for shape in SHAPES:
            graph.prepare({"x": np.zeros(shape, np.float32)})
        return graph

    def bus(self):
        counts = self.vendor.counts
        return counts["copy", "uploads"], counts["copy", "downloads"]

    def allocated(self):
        return self.vendor.counts["allocate", ""]

    def close(self):
        self.vendor.synchronize()


RIGS = {
    "npu": OnNpu,
    "npu-twice": lambda folder: OnNpu(folder, copies=2),
    "npu-compiled": OnCompiled,
    "torch-graphs": lambda folder: OnTorch(folder, "graphs"),
    "torch-eager": lambda folder: OnTorch(folder, "eager"),
}


@pytest.fixture(params=RIGS)
def rig(request, tmp_path):
    rig = RIGS[request.param](tmp_path)
    yield rig
    rig.close()


@pytest.fixture
def keepers(rig):
    """Two graphs of one device, and rooms that are freed at the end."""
    keepers = Keepers([rig.load().keeper() for _ in range(2)])
    yield keepers
    keepers.close()


class Keepers:
    def __init__(self, keepers):
        self.first, self.second = keepers
        self.rooms = []

    def room(self, shape):
        self.rooms.append(self.first.room(int(np.prod(shape)) * 4))
        return self.rooms[-1]

    def staying(self, shape, *, shown=False):
        return StayingOutput(dtype=FP32, shape=shape, room=self.room(shape), shown=shown)

    def close(self):
        for room in self.rooms:
            room.close()


def random(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def crossed(rig, before):
    """Return how often something went over the bus since then: [up, down]."""
    return [now - then for now, then in zip(rig.bus(), before, strict=True)]


def output_of(keeper):
    """Return how the engine calls the one output: an offline model has the compiler's name."""
    return keeper._graph.signature.outputs[0].name


def test_graphs_of_one_device_share_their_memory(keepers):
    """Which is what makes the one's tensors the other's."""
    assert keepers.first.memory == keepers.second.memory


def test_rows_go_from_one_run_to_another(rig, keepers):
    """Cut to their real lengths, in another order and shape, padded anew; only x and z cross."""
    first, second = keepers.first, keepers.second
    y = keepers.staying(SHAPES[1])
    x = random(SHAPES[1])
    before = rig.bus()
    assert first.run({"x": x}, {}, {}, {output_of(first): y}) == {}
    assert crossed(rig, before) == [rig.counts_bus, 0]
    parts = [
        Rows(room=y.room, shape=y.shape, first=3, count=1, length=2),
        Rows(room=y.room, shape=y.shape, first=0, count=2, length=3),
    ]
    before = rig.bus()
    (z,) = second.run({}, {}, {"x": fed(FP32, SHAPES[1], 0, parts)}, {}).values()
    known = np.zeros(SHAPES[1], np.float32)
    known[0, :2], known[1:3, :3] = (2 * x + 1)[3, :2], (2 * x + 1)[:2, :3]
    known[3] = known[0]
    assert np.array_equal(z, 2 * known + 1)
    assert crossed(rig, before) == [0, rig.counts_bus]


def test_a_tensor_may_be_shown_as_well(keepers):
    """It comes into its place, and stays."""
    first, second = keepers.first, keepers.second
    y = keepers.staying(SHAPES[0], shown=True)
    x, place = random(SHAPES[0]), np.zeros(SHAPES[0], np.float32)
    name = output_of(first)
    found = first.run({"x": x}, {name: place}, {}, {name: y})
    assert found[name] is place
    assert np.array_equal(place, 2 * x + 1)
    whole = Rows(room=y.room, shape=y.shape, first=0, count=2, length=3)
    (z,) = second.run({}, {}, {"x": fed(FP32, SHAPES[0], 0, [whole])}, {}).values()
    assert np.array_equal(z, 2 * place + 1)


def test_what_nobody_wants_is_not_downloaded(rig, keepers):
    """Nor kept."""
    before = rig.bus()
    name = output_of(keepers.first)
    assert keepers.first.run({"x": random(SHAPES[0])}, {}, {}, {}, {name}) == {}
    assert crossed(rig, before) == [rig.counts_bus, 0]


def test_a_run_may_take_and_keep(keepers):
    """Through three runs, without a value on the host in between."""
    first, second = keepers.first, keepers.second
    y, z = keepers.staying(SHAPES[0]), keepers.staying(SHAPES[0])
    x = random(SHAPES[0])
    first.run({"x": x}, {}, {}, {output_of(first): y})
    for source, target in ((y, z), (z, y)):
        whole = Rows(room=source.room, shape=source.shape, first=0, count=2, length=3)
        given = {"x": fed(FP32, SHAPES[0], 0, [whole])}
        assert second.run({}, {}, given, {output_of(second): target}) == {}
    whole = Rows(room=y.room, shape=y.shape, first=0, count=2, length=3)
    (last,) = first.run({}, {}, {"x": fed(FP32, SHAPES[0], 0, [whole])}, {}).values()
    assert np.allclose(last, 16 * x + 15)


def test_an_output_of_another_shape_is_refused(keepers):
    """What was planned with would be wrong; the room's tensor is not used then."""
    first = keepers.first
    y = keepers.staying((2, 5, WIDTH))
    with pytest.raises(GraphFailed, match=r"was to be \[2, 5, 16\] and is \[2, 3, 16\]"):
        first.run({"x": random(SHAPES[0])}, {}, {}, {output_of(first): y})
    good = keepers.staying(SHAPES[0])
    assert first.run({"x": random(SHAPES[0])}, {}, {}, {output_of(first): good}) == {}


def test_runs_allocate_nothing(rig, keepers):
    """Rooms are set aside before; only what runs operator by operator has no fixed places."""
    first, second = keepers.first, keepers.second
    y = keepers.staying(SHAPES[0])

    def both():
        first.run({"x": random(SHAPES[0])}, {}, {}, {output_of(first): y})
        whole = Rows(room=y.room, shape=y.shape, first=0, count=2, length=3)
        second.run({}, {}, {"x": fed(FP32, SHAPES[0], 0, [whole])}, {})

    both()
    before = rig.allocated()
    both()
    assert (rig.allocated() > before) == (not rig.counts_bus)


@pytest.mark.parametrize("mode", ["graphs", "eager"])
def test_what_is_computed_in_a_lower_precision_is_kept_as_declared(tmp_path, mode):
    """The next run sees what it would see through the host, to the bit."""
    rig = OnTorch(tmp_path, mode, precision="bf16")
    first, second = (rig.load() for _ in range(2))
    x = random(SHAPES[0])
    (y,) = first.run({"x": x}, {}, exclusive=False).values()
    (known,) = second.run({"x": y}, {}, exclusive=False).values()
    assert not np.array_equal(y, 2 * x + 1)
    room = first.keeper().room(y.nbytes)
    kept = {"y": StayingOutput(dtype=FP32, shape=y.shape, room=room, shown=False)}
    assert first.keeper().run({"x": x}, {}, {}, kept) == {}
    rows = Rows(room=room, shape=y.shape, first=0, count=2, length=3)
    (z,) = second.keeper().run({}, {}, {"x": fed(FP32, y.shape, 0, [rows])}, {}).values()
    assert z.tobytes() == known.tobytes()


def test_another_engines_tensor_is_refused(tmp_path):
    """Memory of torch is nothing for pyACL, and the other way round."""
    npu, on_torch = OnNpu(tmp_path), OnTorch(tmp_path, "graphs")
    keepers = npu.load().keeper(), on_torch.load().keeper()
    for keeper, other in (keepers, keepers[::-1]):
        room = other.room(2 * 3 * WIDTH * 4)
        rows = Rows(room=room, shape=SHAPES[0], first=0, count=2, length=3)
        with pytest.raises(ProtocolError, match="another engine"):
            keeper.run({}, {}, {"x": fed(FP32, SHAPES[0], 0, [rows])}, {})
        room.close()
    npu.close()


def test_rooms_that_do_not_fit_are_refused_with_the_numbers(rig, keepers):
    """And the graphs go on."""
    with pytest.raises(OutOfMemory):
        keepers.first.room(1 << 50)
    assert len(keepers.first.run({"x": random(SHAPES[0])}, {}, {}, {})) == 1


def test_a_model_whose_shapes_vary_freely_keeps_nothing(tmp_path):
    """Its memory grows as it runs; its tensors go through the host as ever."""
    npu = Npu(tmp_path)
    graph = npu.load(npu.write(Affine(), Ranges({"x": ((1, 4), (1, 8), (WIDTH, WIDTH))})))
    assert not isinstance(graph, KeepingGraph)
    npu.close()
