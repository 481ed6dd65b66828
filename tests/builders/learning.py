"""Models that learn their buckets, as stubs have them, over one executor inside the test."""

import contextlib
import json
import socket
from dataclasses import replace

import numpy as np

from builders.null_models import SHORT, comes_true
from fakes.null_device import Fault, NullDevice
from ge_backend.device.base import GraphSource
from ge_backend.executor.client.executor_connection import ExecutorConnection
from ge_backend.executor.client.session import Session
from ge_backend.executor.server.executor import Executor
from ge_backend.executor.server.graphs import loaded_graphs
from ge_backend.metrics import Recorder
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.layout.layout import build_layout
from ge_backend.serving.batching.pipeline import Pipeline
from ge_backend.serving.batching.plan import Policy
from ge_backend.serving.batching.request import check_request
from ge_backend.serving.fleet.fleet import Fleet
from ge_backend.serving.learning.learner import Learner
from ge_backend.serving.warmup.measure import cost_model, estimated_costs, measured_costs
from ge_backend.serving.warmup.shaped import ShapedModel
from ge_backend.serving.warmup.store import Store
from ge_backend.shapes.buckets.costs import ShapeCache
from ge_backend.shapes.buckets.grid import listed_grid
from ge_backend.shapes.traffic.traffic import Traffic

ONE_AXIS = {
    "inputs": [{"name": "x", "dtype": "FP32", "dims": ["batch", "length"]}],
    "outputs": [{"name": "y", "dtype": "FP32", "dims": ["batch"], "compute": "sum", "of": "x"}],
    "axis_limits": {"length": 100},
}
# A run's cost grows with the length, as padding's does.
BY_LENGTH = {f"{rows}x{length}": 0.1 * length for rows in (1, 4) for length in range(101)}
BUCKETS = [(rows, size) for rows in (1, 4) for size in (8, 32)]


def config_of(dims=1, **changes):
    read = ModelConfig.read(
        {
            "name": "m",
            "max_batch_size": 4,
            "input": [
                {
                    "name": "x",
                    "data_type": "TYPE_FP32",
                    "dims": [-1] * dims,
                    "allow_ragged_batch": True,
                }
            ],
            "parameters": {"device": {"string_value": "null"}},
        },
        directory=None,
        version="1",
        environment={},
    )
    return replace(read, **changes)


class Instance:
    """What a stub has: a pipeline and a learner beside it."""

    def __init__(self, bench, config, buckets, connects, *, early=False):
        self.bench, self.connects = bench, connects
        self.recorder = Recorder()
        fleet = self.open_fleet()
        session = fleet.sessions[0]
        layout = build_layout(config, session.signature, session.shape_policy)
        self.model = ShapedModel(
            config=config,
            session=session,
            layout=layout,
            grid=listed_grid(("rows", *layout.axes), buckets),
            store=bench.store,
        )
        if early:
            costs = estimated_costs(self.model)
        else:
            costs = measured_costs(replace(self.model, store=Store(None)), fleet.sessions[1:])
        shapes = ShapeCache()
        self.pipeline = Pipeline(
            layout=layout,
            fleet=fleet,
            costs=cost_model(self.model, costs, shapes),
            policy=Policy(axes=layout.axes, refuse_overflow=session.shape_policy.prepared),
            recorder=self.recorder,
            traffic=Traffic(layout.axes),
        )
        self.learner = Learner(
            self.model, self.pipeline, costs, self.open_fleet, shapes=shapes, estimated=early
        )
        self.swaps = 0

    def open_fleet(self):
        if self.bench.refuse is not None:
            raise self.bench.refuse
        source = GraphSource.of(self.bench.path)
        sessions = {
            name: Session(connect, source, arena_bytes=1, on_restart=lambda: None)
            for name, connect in zip(("null", "null:1"), self.connects, strict=False)
        }
        return Fleet(sessions, SHORT)

    def ask(self, *shapes):
        """Run a batch of requests of ones; return the sum of each, or its error."""
        tensors = [np.ones((1, *s) if isinstance(s, tuple) else (1, s), np.float32) for s in shapes]
        layout = self.pipeline.layout
        batch = [check_request(i, {"x": x}, layout) for i, x in enumerate(tensors)]
        answers = {}
        for reply in self.pipeline.run(batch):
            assert reply.request not in answers
            answers[reply.request] = reply.error or float(reply.outputs["y"][0])
        return [answers[index] for index in range(len(shapes))]

    def swapped(self, times=1, seconds=30.0):
        """Return whether the grid has been changed that often, within some time."""

        def enough():
            drained = self.recorder.drain()
            self.swaps += drained.get(("ge_grid_swaps_total", ()), 0)
            self.num_buckets = drained.get(("ge_buckets", ()), None)
            return self.swaps >= times

        return comes_true(enough, seconds)

    @property
    def buckets(self):
        """The buckets that the next batch uses."""
        self.ask()
        return set(self.pipeline.costs.table)

    def close(self):
        self.learner.close()
        self.pipeline.close()


class Bench:
    """An executor for several sessions, as the process would be, and instances that use it."""

    def __init__(self, folder):
        self.path, self.held = folder / "model.null", folder / "held"
        self.store = Store(folder / "cache")
        self.device = NullDevice()
        self.executors = [Executor(self.device, linger_s=0.0)]
        self.sockets, self.instances = [], []
        self.refuse = None

    def connect(self):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.executors[-1].accept(theirs)
        self.sockets.append(ours)
        return ExecutorConnection(ours)

    def restart_executor(self):
        """Let the executor go away; whoever connects next finds another."""
        self.executors.append(Executor(self.device, linger_s=0.0))
        sockets, self.sockets = self.sockets, []
        for sock in sockets:
            with contextlib.suppress(OSError):  # some sessions have been closed
                sock.shutdown(socket.SHUT_RDWR)

    def hold(self, event, nth=1):
        """Let one of the next events wait; return the file that is there while it may not go on."""
        self.device.inject(Fault(on=event, do="hold", nth=nth, file=str(self.held)))
        return self.held

    def instance(self, buckets=BUCKETS, *, graph=ONE_AXIS, static=True, **changes):
        given = {"cost_ms": changes.pop("cost_ms", BY_LENGTH), "faults": changes.pop("faults", [])}
        text = json.dumps({**graph, "static_shapes": static, **given})
        if not self.path.exists() or self.path.read_text() != text:
            self.path.write_text(text)
        connects = changes.pop("connects", (self.connect,))
        dims = len(graph["inputs"][0]["dims"]) - 1
        early = changes.pop("early", False)
        config = config_of(dims, **changes)
        self.instances.append(Instance(self, config, buckets, connects, early=early))
        return self.instances[-1]

    def close(self):
        self.held.unlink(missing_ok=True)
        for instance in self.instances:
            instance.close()
        for executor in self.executors:
            executor.join()
            executor.close()
            assert loaded_graphs(executor) == []
