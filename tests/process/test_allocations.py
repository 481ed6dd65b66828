"""While a warm model serves, no memory is taken that grows with tensors.

Both sides are watched over 10,000 requests: what Python and numpy allocate is traced, and what a
process takes from the system is counted as pages that it touches for the first time. What an engine
takes and gives back inside a run is its own: on a CPU it comes from an arena that it keeps.
"""

import functools
import json
import os
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from builders.null_models import address_in, fleet_of
from ge_backend.device.base import GraphSource
from ge_backend.executor.client.session import Session
from ge_backend.executor.process.inline import connect_inline
from ge_backend.executor.process.launch import connect
from ge_backend.metrics import Recorder
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.layout.layout import build_layout
from ge_backend.serving.batching.pipeline import Pipeline
from ge_backend.serving.batching.plan import Policy
from ge_backend.serving.batching.request import check_request
from ge_backend.serving.warmup.warmup import warm_up
from ge_backend.shapes.buckets.costs import DynamicCosts
from ge_backend.shapes.traffic.traffic import Traffic

REQUESTS = 10_000
BATCH = 32
LONGEST = 8192  # elements: the tensors of a full sub-batch have 256 KiB each
BUCKETS = [(rows, length) for rows in (1, 8) for length in (2048, LONGEST)]
TENSOR_BYTES = 8 * LONGEST * 4
PAGE = os.sysconf("SC_PAGESIZE")
CONFIG = {
    "name": "twice",
    "max_batch_size": 8,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": ["-1"], "allow_ragged_batch": True}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": ["-1"]}],
}


def onnx_model(folder):
    """Write y = exp(x) * x + exp(x)."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    from builders.graphs import graph

    steps = (("Exp", ["x"], "e"), ("Mul", ["e", "x"], "m"), ("Add", ["m", "e"], "y"))
    nodes = [helper.make_node(kind, inputs, [output]) for kind, inputs, output in steps]
    tensors = [(name, TensorProto.FLOAT, ["batch", "length"]) for name in "xy"]
    path = folder / "model.onnx"
    path.write_bytes(graph(nodes, tensors[:1], tensors[1:]))
    return path


def torch_model(folder):
    """Write the same through torch.export."""
    torch = pytest.importorskip("torch")

    class Twice(torch.nn.Module):
        def forward(self, x):
            e = torch.exp(x)
            return {"y": e * x + e}

    sizes = {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("length", max=LONGEST)}
    program = torch.export.export(Twice(), (torch.ones(2, 5),), dynamic_shapes=(sizes,))
    given = next(node for node in program.graph.nodes if node.name == "x")
    axes = dict(zip(map(str, given.meta["val"].shape), ("batch", "length"), strict=True))
    path = folder / "model.pt2"
    torch.export.save(program, path, extra_files={"ge_names.json": json.dumps({"axes": axes})})
    return path


@pytest.fixture(params=[onnx_model, torch_model], ids=["onnx", "torch"])
def source(request, tmp_path):
    return GraphSource.of(request.param(tmp_path), threads=1)


@pytest.fixture
def serve(source, tmp_path, monkeypatch):
    """Return a function that opens a warm pipeline to an executor, and gives its session, too.

    Runs go by the arena; in one process small ones take arrays of their own, for as long as they
    last.
    """
    opened = []
    monkeypatch.setattr(Session, "runs_here", False)

    def open_pipeline(connection):
        session = Session(connection, source, arena_bytes=1, on_restart=lambda: None)
        config = ModelConfig.read(CONFIG, directory=tmp_path, version="1", environment={})
        layout = build_layout(config, session.signature)
        costs = warm_up(session, layout, BUCKETS, 1)
        pipeline = Pipeline(
            layout=layout,
            fleet=fleet_of(session),
            costs=DynamicCosts(costs, config.max_batch_size),
            policy=Policy(axes=layout.axes, lanes=session.lanes),
            recorder=Recorder(),
            traffic=Traffic(layout.axes),
        )
        opened.append(pipeline)
        return pipeline, session

    yield open_pipeline
    for pipeline in opened:
        pipeline.close()


@functools.cache
def tensors():
    """Rows of many lengths, made before anything is watched."""
    generator = np.random.default_rng(1)
    return [
        generator.random((1, length), np.float32)
        for length in generator.integers(500, LONGEST, 128, endpoint=True)
    ]


def run_batches(pipeline, count, first=0):
    """Run so many batches, whose sub-batches differ from batch to batch; look at each answer."""
    rows = tensors()
    for number in range(first, first + count):
        chosen = [rows[(7 * number + at) % len(rows)] for at in range(BATCH)]
        requests = [
            check_request(at, {"x": tensor}, pipeline.layout) for at, tensor in enumerate(chosen)
        ]
        for reply in pipeline.run(requests):
            assert reply.error is None
            x = chosen[reply.request][0, -1]
            assert reply.outputs["y"][0, -1] == pytest.approx(np.exp(x) * (x + 1), rel=1e-5)


def memory_of(pid):
    """Return (pages touched for the first time so far, bytes resident) of a process."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    minor_faults = int(stat.rsplit(")", 1)[1].split()[7])
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return minor_faults, resident * PAGE


def test_neither_process_takes_memory_while_it_serves(serve, tmp_path):
    """Less than a page per request, of which each brings up to 8 and takes as many."""
    address = replace(address_in(tmp_path / "run"), device="cpu")
    pipeline, session = serve(lambda: connect(address))
    run_batches(pipeline, 4 * len(tensors()) // BATCH)
    pids = {"stub": os.getpid(), "executor": session.executor_pid}
    before = {name: memory_of(pid) for name, pid in pids.items()}
    run_batches(pipeline, REQUESTS // BATCH)
    for name, pid in pids.items():
        faults, resident = (
            now - then for now, then in zip(memory_of(pid), before[name], strict=True)
        )
        assert faults < REQUESTS, name
        assert resident < 32 * TENSOR_BYTES, name


def traced_peak(pipeline, batch):
    """Return the most bytes that Python and numpy held at once for a batch."""
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    run_batches(pipeline, 1, first=batch)
    return tracemalloc.get_traced_memory()[1] - before


def test_no_tensor_is_allocated_in_python_or_numpy(serve):
    """In the stub and in the executor, here in one process: less than half a tensor at once.

    The least of three times counts: other threads of the process that runs the tests, and tables
    that grow once, are traced as well.
    """
    pipeline, _ = serve(functools.partial(connect_inline, "cpu"))
    run_batches(pipeline, 4 * len(tensors()) // BATCH)
    tracemalloc.start()
    try:
        run_batches(pipeline, 20)
        for batch in range(20):
            assert min(traced_peak(pipeline, batch) for _ in range(3)) < TENSOR_BYTES / 2
    finally:
        tracemalloc.stop()
