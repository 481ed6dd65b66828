"""Steps whose tensors stay on the device, on every kind of device that has memory of its own."""

from __future__ import annotations

import itertools
import json
import socket
from types import SimpleNamespace

import numpy as np
import pytest

from acl_simulator import DimsGears
from acl_simulator.graphs import Affine
from builders.npu import Npu
from builders.null_models import SHORT
from ge_backend.device.base import GraphSource, open_device
from ge_backend.errors import DeviceUnavailable
from ge_backend.executor.client.executor_connection import ExecutorConnection
from ge_backend.executor.client.session import Session
from ge_backend.executor.protocol.messages import PrepareInput
from ge_backend.executor.server.executor import Executor
from ge_backend.metrics import Recorder
from ge_backend.model.config.model import TensorConfig
from ge_backend.model.layout.layout import InputLayout, Layout, OutputLayout
from ge_backend.serving.batching.pipeline import Pipeline
from ge_backend.serving.batching.plan import Policy
from ge_backend.serving.batching.request import check_request
from ge_backend.serving.ensemble.dag import read_dag
from ge_backend.serving.ensemble.retention import Place, step_retentions
from ge_backend.serving.ensemble.runner import EnsembleRunner, EnsembleStep
from ge_backend.serving.fleet.fleet import Fleet
from ge_backend.shapes.buckets.costs import StaticCosts, element_costs
from ge_backend.shapes.traffic.traffic import Traffic
from ge_backend.tensors import DATA_TYPES

WIDTH = 16
# Each step has buckets of its own; rows are grouped anew before each.
BUCKETS = (
    [(1, 4), (4, 4), (4, 8), (2, 16)],
    [(1, 8), (3, 8), (4, 16)],
    [(2, 6), (4, 16)],
)
LEARNED = [(2, 8), (4, 16)]
GEARS = sorted({bucket for buckets in (*BUCKETS, LEARNED) for bucket in buckets})
TENSORS = ("X", "A", "B", "Z")
DAG = read_dag(
    {
        "name": "e",
        "input": [{"name": "X"}],
        "output": [{"name": "Z"}],
        "ensemble_scheduling": {
            "step": [
                {"model_name": f"m{at}", "input_map": {"x": x}, "output_map": {"y": y}}
                for at, (x, y) in enumerate(itertools.pairwise(TENSORS))
            ]
        },
    }
)


class OnNpu:
    """y = 2x + 1 on a simulated NPU."""

    crossings = 3  # without keeping, each way

    def __init__(self, folder):
        self.npu = Npu(folder)
        self.device = self.npu.device
        gears = DimsGears({"x": (-1, -1, WIDTH)}, GEARS)
        self.sources = [GraphSource.of(self.npu.write(Affine(), gears))] * 3

    def bus(self):
        return self.npu.sim.uploads, self.npu.sim.downloads

    def close(self):
        assert self.npu.sim.allocations() == []
        self.npu.sim.check()


class OnTorch:
    """The same on an accelerator that is not there, in captured graphs."""

    crossings = 3

    def __init__(self, folder):
        torch = pytest.importorskip("torch")

        class Doubling(torch.nn.Module):
            def forward(self, x):
                return 2 * x + 1

        self.device = self.open()
        dims = {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("n", max=64)}
        program = torch.export.export(
            Doubling(), (torch.zeros(2, 3, WIDTH),), dynamic_shapes=(dims,)
        )
        names = {"inputs": ["x"], "outputs": ["y"]}
        path = folder / "model.pt2"
        torch.export.save(program, str(path), extra_files={"ge_names.json": json.dumps(names)})
        self.sources = [GraphSource.of(path)] * 3

    def open(self):
        from fakes.torch_vendor import FakeVendor
        from ge_backend.engines.kinds.cuda import CudaDevice

        self.vendor = FakeVendor()
        return CudaDevice(self.vendor)

    def bus(self):
        counts = self.vendor.counts
        return counts["upload", ""], counts["download", ""]

    def close(self):
        """Nothing is left to see."""


class OnTwoEngines(OnTorch):
    """The same with ONNX Runtime in the middle, whose CPU provider computes in CUDA's place."""

    crossings = 2  # ONNX Runtime copies by itself, which nobody counts

    def __init__(self, folder):
        super().__init__(folder)
        from ge_backend.engines.ort import cuda

        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(cuda, "PROVIDER", "CPUExecutionProvider")
        self.patch.setattr(cuda, "OPTIONS", {})
        self.sources[1] = in_onnx(folder)

    def close(self):
        self.patch.undo()


class OnCuda(OnTorch):
    """The same on a GPU."""

    def open(self):
        try:
            return open_device("cuda")
        except DeviceUnavailable as error:
            pytest.skip(str(error))

    def bus(self):
        return None  # nobody counts there


class OnCudaWithOnnx(OnCuda):
    """The same with ONNX Runtime in the middle."""

    def __init__(self, folder):
        super().__init__(folder)
        runtime = pytest.importorskip("onnxruntime")
        if "CUDAExecutionProvider" not in runtime.get_available_providers():
            pytest.skip("this onnxruntime is built without CUDA")
        self.sources[1] = in_onnx(folder)


class OnCudaInOnnx(OnCudaWithOnnx):
    """The same in ONNX Runtime alone."""

    def __init__(self, folder):
        super().__init__(folder)
        self.sources = self.sources[1:2] * 3


def in_onnx(folder):
    pytest.importorskip("onnx")
    from builders.graphs import doubled_plus_one

    path = folder / "model.onnx"
    path.write_bytes(doubled_plus_one(WIDTH))
    return GraphSource.of(path)


class Ensemble:
    """Three steps, each with a connection to one executor, in this process."""

    def __init__(self, rig):
        self.rig = rig
        self.executor = Executor(rig.device, linger_s=0.0)
        self.connections = []
        self.pipelines = [self.pipeline(at, buckets) for at, buckets in enumerate(BUCKETS)]
        (output,) = self.pipelines[0].layout.outputs
        declared = TensorConfig(
            name="", dtype=DATA_TYPES["FP32"], dims=(-1, WIDTH), graph_dims=(-1, WIDTH),
            ragged=False, optional=False,
        )  # fmt: skip
        ports = {"inputs": {"x": declared}, "outputs": {output.name: declared}}
        steps = [
            SimpleNamespace(
                model=step.model,
                inputs=step.inputs,
                outputs={output.name: step.outputs["y"]},
            )
            for step in DAG.steps
        ]
        places = [
            Place(step=step, layout=p.layout, memory=p.retain_tensors("owner"), **ports)
            for step, p in zip(steps, self.pipelines, strict=True)
        ]
        self.retentions = step_retentions(DAG, places)
        self.steps = [
            EnsembleStep(node=step, pipeline=p, retention=retention, **ports)
            for step, p, retention in zip(steps, self.pipelines, self.retentions, strict=True)
        ]
        answer = OutputLayout(
            name="Z", dtype=DATA_TYPES["FP32"], dims=(-1, WIDTH), axes=(-1, -1), names=("", "")
        )
        face = Layout(batched=True, axes=(), limits={}, inputs=(), outputs=(answer,))
        self.resident = EnsembleRunner(DAG, self.steps, face, Recorder())
        through_host = [
            EnsembleStep(node=step.node, pipeline=step.pipeline, **ports) for step in self.steps
        ]
        self.through_host = EnsembleRunner(DAG, through_host, face, Recorder())

    def run(self, runner, arrays):
        """Return each request's output."""
        layout = self.pipelines[0].layout
        requests = [check_request(at, {"x": array}, layout) for at, array in enumerate(arrays)]
        for request in requests:
            request.tensors["X"] = request.tensors.pop("x")
        found = {}
        for reply in runner.run(requests):
            assert reply.error is None, reply.error
            found[reply.request] = reply.outputs["Z"].copy()
        return [found[at] for at in range(len(arrays))]

    def close(self):
        self.resident.close()
        self.executor.join()
        assert self.executor.tensor_stores.figures() == (0, 0)
        self.executor.close()

    def _connect(self):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.executor.accept(theirs)
        self.connections.append(ExecutorConnection(ours))
        return self.connections[-1]

    def pipeline(self, at, buckets):
        """Return what runs one step."""
        source = self.rig.sources[at]
        session = Session(self._connect, source, arena_bytes=4096, on_restart=lambda: None)
        for bucket in buckets:
            shape = (*bucket, WIDTH)
            session.prepare((PrepareInput(name="x", dtype="FP32", shape=shape, fill=0),), 0)
        row = {
            "dtype": DATA_TYPES["FP32"],
            "dims": (-1, WIDTH),
            "axes": (0, -1),
            "names": ("n", ""),
        }
        return Pipeline(
            layout=Layout(
                batched=True,
                axes=("n",),
                limits={},
                inputs=(InputLayout(name="x", fill=0.0, made="", **row),),
                outputs=(OutputLayout(name=session.signature.outputs[0].name, **row),),
            ),
            fleet=Fleet({"device": session}, SHORT),
            costs=StaticCosts(element_costs(buckets)),
            policy=Policy(axes=("n",), refuse_overflow=True),
            recorder=Recorder(),
            traffic=Traffic(("n",)),
        )


@pytest.fixture(
    params=[
        pytest.param(OnNpu, id="npu"),
        pytest.param(OnTorch, id="torch"),
        pytest.param(OnTwoEngines, id="torch-onnx"),
        pytest.param(OnCuda, id="cuda", marks=pytest.mark.cuda),
        pytest.param(OnCudaWithOnnx, id="cuda-torch-onnx", marks=pytest.mark.cuda),
        pytest.param(OnCudaInOnnx, id="cuda-onnx", marks=pytest.mark.cuda),
    ]
)
def ensemble(request, tmp_path):
    rig = request.param(tmp_path)
    ensemble = Ensemble(rig)
    yield ensemble
    ensemble.close()
    rig.close()


def random_batch(generator, count):
    return [
        generator.standard_normal(
            (generator.integers(1, 4), generator.integers(1, 17), WIDTH)
        ).astype(np.float32)
        for _ in range(count)
    ]


def assert_crossed(ensemble, runner, arrays, expected):
    """Run a batch; see how often something went over the bus, (up, down), if that is counted."""
    before = ensemble.rig.bus()
    ensemble.run(runner, arrays)
    after = ensemble.rig.bus()
    if before is not None:
        assert tuple(now - then for now, then in zip(after, before, strict=True)) == expected


def test_one_upload_and_one_download(ensemble):
    """However many steps there are; without keeping it is one of each per step."""
    one = [np.ones((2, 3, WIDTH), np.float32)]
    assert_crossed(ensemble, ensemble.resident, one, (1, 1))
    assert_crossed(ensemble, ensemble.through_host, one, (ensemble.rig.crossings,) * 2)


def test_random_batches_are_what_they_are_through_the_host(ensemble):
    """Padded, cut and grouped anew in every step, to the bit; and nothing stays afterwards."""
    generator = np.random.default_rng(1)
    for count in (1, 2, 5, 9, 9, 9):
        batch = random_batch(generator, count)
        resident = ensemble.run(ensemble.resident, batch)
        for answer, known, x in zip(
            resident, ensemble.run(ensemble.through_host, batch), batch, strict=True
        ):
            assert answer.tobytes() == known.tobytes()
            np.testing.assert_allclose(answer, 8 * x + 7, rtol=1e-5)
        report = ensemble.pipelines[0].fleet.sessions[0].inspect()
        assert (report.kept_tensors, report.defects) == (0, ())


def test_a_step_that_loses_its_connection_repeats_the_batch_through_the_host(ensemble):
    """What it would go on from may be gone; the next batch stays on the device again."""
    batch = random_batch(np.random.default_rng(2), 4)
    ensemble.connections[1].sock.shutdown(socket.SHUT_RDWR)
    for answer, x in zip(ensemble.run(ensemble.resident, batch), batch, strict=True):
        np.testing.assert_allclose(answer, 8 * x + 7, rtol=1e-5)
    assert len(ensemble.connections) == 4
    one = [np.ones((1, 4, WIDTH), np.float32)]
    assert_crossed(ensemble, ensemble.resident, one, (1, 1))


def test_a_step_with_new_buckets_goes_on_with_what_stays(ensemble):
    """Its new connection is the same owner's."""
    batch = random_batch(np.random.default_rng(3), 4)
    ensemble.run(ensemble.resident, batch)
    other = ensemble.pipeline(1, LEARNED)
    ensemble.pipelines[1].hand_over(other.fleet, other.costs)
    one = [np.ones((2, 3, WIDTH), np.float32)]
    assert_crossed(ensemble, ensemble.resident, one, (1, 1))
    for answer, x in zip(ensemble.run(ensemble.resident, batch), batch, strict=True):
        np.testing.assert_allclose(answer, 8 * x + 7, rtol=1e-5)
