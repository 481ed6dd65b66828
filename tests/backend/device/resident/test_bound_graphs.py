"""Tensors in device buffers between two graphs' runs, on each engine that can do it."""

import functools
import json
from dataclasses import replace

import numpy as np
import pytest

from acl_simulator import DimsGears, Ranges
from acl_simulator.graphs import Affine
from builders.npu import Npu
from ge_backend.device.base import GraphSource
from ge_backend.device.resident.buffers import Bound, BoundTensor, Copy, memory_of
from ge_backend.device.resident.rows import BufferRows, gathered
from ge_backend.engines.acl.compiled import CompiledGraph
from ge_backend.errors import GraphFailed, OutOfMemory, ProtocolError
from ge_backend.tensors import DATA_TYPES, Signature, TensorSpec

torch = pytest.importorskip("torch")

from fakes.torch_vendor import FakeVendor  # noqa: E402
from ge_backend.engines.torch.accelerator import AcceleratorGraph  # noqa: E402
from ge_backend.engines.torch.streams import Streams  # noqa: E402

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
        graph = CompiledGraph(file, signature, lambda _: self.npu.load(file))
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
        return counts["upload", ""], counts["download", ""]

    def allocated(self):
        return self.vendor.counts["allocate", ""]

    def close(self):
        self.vendor.synchronize()


class OnOnnx:
    """The same in ONNX Runtime, on an accelerator that is not there: its CPU provider instead."""

    counts_bus = False  # ONNX Runtime copies by itself

    def __init__(self, folder):
        self.vendor, self.folder = FakeVendor(), folder
        self.streams = Streams(self.vendor)

    def load(self):
        pytest.importorskip("onnx")
        pytest.importorskip("onnxruntime")
        from builders.graphs import doubled_plus_one
        from ge_backend.engines.ort import cuda as onnx_cuda

        path = self.folder / "model.onnx"
        path.write_bytes(doubled_plus_one(WIDTH))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(onnx_cuda, "PROVIDER", "CPUExecutionProvider")
            patch.setattr(onnx_cuda, "OPTIONS", {})
            return onnx_cuda.OnnxCudaGraph(GraphSource.of(path), self.streams)

    def bus(self):
        return 0, 0

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
    "onnx": OnOnnx,
}


@pytest.fixture(params=RIGS)
def rig(request, tmp_path):
    rig = RIGS[request.param](tmp_path)
    yield rig
    rig.close()


@pytest.fixture
def pair(rig):
    """Two graphs of one device, and buffers that are freed at the end."""
    pair = Pair([rig.load() for _ in range(2)])
    yield pair
    pair.close()


class Pair:
    def __init__(self, graphs):
        self.first, self.second = graphs
        self.buffers = []

    def staying(self, shape):
        """Return an output that is copied whole to a buffer of its own."""
        self.buffers.append(buffer_of(self.first, shape))
        return staying(shape, self.buffers[-1])

    def close(self):
        for buffer in self.buffers:
            buffer.close()


def buffer_of(graph, shape):
    return graph.device_memory().allocate(int(np.prod(shape)) * 4, "a test")


def staying(shape, buffer):
    copies = (Copy(0, buffer, 0, int(np.prod(shape)) * 4),)
    return BoundTensor(dtype=FP32, shape=shape, copies=copies)


def part_of(kept, first, count, length):
    """Return rows of what was kept."""
    (copy,) = kept.copies
    return BufferRows(buffer=copy.buffer, shape=kept.shape, first=first, count=count, length=length)


def run(graph, inputs, outputs, *, given=(), kept=None, hidden=()):
    """Run; `given` are the rows of the one input, `kept` is the one output, not shown if hidden."""
    shape = max(SHAPES) if len(given) > 1 else SHAPES[0]
    bound = Bound(
        inputs={"x": gathered(FP32, shape, 0, given)} if given else {},
        outputs={} if kept is None else {output_of(graph): kept},
        hidden=frozenset(hidden),
    )
    return graph.run_bound(inputs, outputs, bound)


def random(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def crossed(rig, before):
    """Return how often something went over the bus since then: [up, down]."""
    return [now - then for now, then in zip(rig.bus(), before, strict=True)]


def output_of(graph):
    """Return how the engine calls the one output: an offline model has the compiler's name."""
    return graph.signature.outputs[0].name


def test_graphs_of_one_device_share_their_memory(pair):
    """Which is what makes the one's tensors the other's."""
    assert pair.first.device_memory().name == pair.second.device_memory().name


def test_rows_go_from_one_run_to_another(rig, pair):
    """Cut to their real lengths, in another order and shape, padded anew; only x and z cross."""
    y = pair.staying(SHAPES[1])
    x = random(SHAPES[1])
    before = rig.bus()
    assert run(pair.first, {"x": x}, {}, kept=y, hidden=[output_of(pair.first)]) == {}
    assert crossed(rig, before) == [rig.counts_bus, 0]
    before = rig.bus()
    given = [part_of(y, 3, 1, length=2), part_of(y, 0, 2, length=3)]
    (z,) = run(pair.second, {}, {}, given=given).values()
    known = np.zeros(SHAPES[1], np.float32)
    known[0, :2], known[1:3, :3] = (2 * x + 1)[3, :2], (2 * x + 1)[:2, :3]
    known[3] = known[0]
    assert np.array_equal(z, 2 * known + 1)
    assert crossed(rig, before) == [0, rig.counts_bus]


def test_whole_rows_are_taken_in_any_order(rig, pair):
    """Rows without padding may be picked by their numbers; the values are those of copies."""
    y = pair.staying(SHAPES[1])
    x = random(SHAPES[1])
    run(pair.first, {"x": x}, {}, kept=y, hidden=[output_of(pair.first)])
    before = rig.bus()
    given = [part_of(y, first, 1, length=5) for first in (2, 0, 3, 1)]
    (z,) = run(pair.second, {}, {}, given=given).values()
    assert np.array_equal(z, 2 * (2 * x + 1)[[2, 0, 3, 1]] + 1)
    assert crossed(rig, before) == [0, rig.counts_bus]


def test_a_tensor_may_be_shown_as_well(pair):
    """It comes into its place, and stays."""
    y = pair.staying(SHAPES[0])
    x, place = random(SHAPES[0]), np.zeros(SHAPES[0], np.float32)
    name = output_of(pair.first)
    found = run(pair.first, {"x": x}, {name: place}, kept=y)
    assert found[name] is place
    assert np.array_equal(place, 2 * x + 1)
    (z,) = run(pair.second, {}, {}, given=[part_of(y, 0, 2, length=3)]).values()
    assert np.array_equal(z, 2 * place + 1)


def test_what_nobody_wants_is_not_downloaded(rig, pair):
    """Nor kept."""
    before = rig.bus()
    hidden = [output_of(pair.first)]
    assert run(pair.first, {"x": random(SHAPES[0])}, {}, hidden=hidden) == {}
    assert crossed(rig, before) == [rig.counts_bus, 0]


def test_a_run_may_take_and_keep(pair):
    """Through three runs, without a value on the host in between."""
    first, second = pair.first, pair.second
    y, z = pair.staying(SHAPES[0]), pair.staying(SHAPES[0])
    x = random(SHAPES[0])
    run(first, {"x": x}, {}, kept=y, hidden=[output_of(first)])
    for source, target in ((y, z), (z, y)):
        given = [part_of(source, 0, 2, length=3)]
        assert run(second, {}, {}, given=given, kept=target, hidden=[output_of(second)]) == {}
    (last,) = run(first, {}, {}, given=[part_of(y, 0, 2, length=3)]).values()
    assert np.allclose(last, 16 * x + 15)


def test_an_output_of_another_shape_is_refused(pair):
    """What was planned with would be wrong; the buffer's tensor is not used then."""
    y, hidden = pair.staying((2, 5, WIDTH)), [output_of(pair.first)]
    with pytest.raises(GraphFailed, match=r"was to be \[2, 5, 16\] and is \[2, 3, 16\]"):
        run(pair.first, {"x": random(SHAPES[0])}, {}, kept=y, hidden=hidden)
    good = pair.staying(SHAPES[0])
    assert run(pair.first, {"x": random(SHAPES[0])}, {}, kept=good, hidden=hidden) == {}


def test_runs_allocate_nothing(rig, pair):
    """Buffers are set aside before; only what runs operator by operator has no fixed places."""
    y = pair.staying(SHAPES[0])

    def both():
        hidden = [output_of(pair.first)]
        run(pair.first, {"x": random(SHAPES[0])}, {}, kept=y, hidden=hidden)
        run(pair.second, {}, {}, given=[part_of(y, 0, 2, length=3)])

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
    kept = staying(y.shape, buffer_of(first, y.shape))
    assert run(first, {"x": x}, {}, kept=kept, hidden=["y"]) == {}
    (z,) = run(second, {}, {}, given=[part_of(kept, 0, 2, length=3)]).values()
    assert z.tobytes() == known.tobytes()


def test_another_engines_tensor_is_refused(tmp_path):
    """Memory of torch is nothing for pyACL, and the other way round."""
    npu, on_torch = OnNpu(tmp_path), OnTorch(tmp_path, "graphs")
    graphs = npu.load(), on_torch.load()
    for graph, other in (graphs, graphs[::-1]):
        kept = staying(SHAPES[0], buffer_of(other, SHAPES[0]))
        with pytest.raises(ProtocolError, match="another engine"):
            run(graph, {}, {}, given=[part_of(kept, 0, 2, length=3)])
        kept.copies[0].buffer.close()
    npu.close()


def test_buffers_that_do_not_fit_are_refused_with_the_numbers(pair):
    """And the graphs go on."""
    with pytest.raises(OutOfMemory):
        pair.first.device_memory().allocate(1 << 50, "a test")
    assert len(run(pair.first, {"x": random(SHAPES[0])}, {})) == 1


def test_a_model_whose_shapes_vary_freely_keeps_nothing(tmp_path):
    """Its memory grows as it runs; its tensors go through the host as ever."""
    npu = Npu(tmp_path)
    graph = npu.load(npu.write(Affine(), Ranges({"x": ((1, 4), (1, 8), (WIDTH, WIDTH))})))
    assert memory_of(graph) is None
    npu.close()
