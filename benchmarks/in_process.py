"""A model's pipeline without a server: what a stub does, for one `model.pt2`, on any device."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ge_backend.batching.pipeline import Pipeline
from ge_backend.batching.plan import Policy
from ge_backend.batching.request import check_request
from ge_backend.buckets.build import build_grid
from ge_backend.config.model import ModelConfig
from ge_backend.device.base import GraphSource
from ge_backend.executor.client.session import Session
from ge_backend.executor.process.inline import connect_inline
from ge_backend.executor.process.launch import ExecutorAddress, connect
from ge_backend.fleet.fleet import Fleet
from ge_backend.layout.auto_complete import completed
from ge_backend.layout.layout import build_layout
from ge_backend.metrics import Recorder
from ge_backend.tensors import Array
from ge_backend.traffic.traffic import Traffic
from ge_backend.warmup.measure import cost_model, measured_costs
from ge_backend.warmup.store import Store

__all__ = ["Local", "open_local"]

ARENA_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """An opened pipeline; `buckets` is how many it prepared."""

    pipeline: Pipeline
    buckets: int

    def run(self, batch: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
        """Return the outputs of each request of a batch; the arrays are the caller's.

        Raises:
            GeError: one of them failed.
        """
        layout = self.pipeline.layout
        requests = [check_request(index, given, layout) for index, given in enumerate(batch)]
        results: list[dict[str, Array]] = [{} for _ in requests]
        for reply in self.pipeline.run(requests):
            if reply.error is not None:
                raise reply.error
            results[reply.request] = {name: array.copy() for name, array in reply.outputs.items()}
        return results


@contextmanager
def open_local(
    model: Path, *, device: str, rows: int, parameters: Mapping[str, str], inline: bool = False
) -> Iterator[Local]:
    """Load a model as a stub does, and measure its buckets.

    Args:
        model: its file.
        device: `cpu`, `cuda:0`.
        rows: the most of a batch.
        parameters: as in config.pbtxt.
        inline: the executor is in this process, not in one of its own.
    """
    document = {
        "name": "encoder",
        "backend": "ge",
        "max_batch_size": rows,
        "parameters": {key: {"string_value": text} for key, text in parameters.items()},
    }
    environment = {"GE_DEVICE": device}
    read = functools.partial(
        ModelConfig.read, directory=model.parent, version="1", environment=environment
    )
    given = read(document)
    source = GraphSource.of(model, precision=given.precision, options=given.options)
    with tempfile.TemporaryDirectory(prefix="ge-", dir="/tmp") as folder:
        address = ExecutorAddress(
            device=device,
            directory=Path(folder),
            owner_pid=os.getpid(),
            python=sys.executable,
            library_path="",
        )
        link = functools.partial(connect_inline, device)
        if not inline:
            link = functools.partial(connect, address)
        session = Session(link, source, arena_bytes=ARENA_BYTES, on_restart=lambda: None)
        fleet = Fleet({device: session})
        try:
            config = read(completed(document, given, session.signature))
            yield _opened(config, fleet)
        finally:
            fleet.close()


def _opened(config: ModelConfig, fleet: Fleet) -> Local:
    session = fleet.sessions[0]
    static = session.static_shapes
    layout = build_layout(config, session.signature, static_shapes=static)
    bucketed = session.bucketed
    grid = build_grid(config, layout, static_shapes=static, bucketed=bucketed, traffic={})
    costs = measured_costs(config, layout, fleet.sessions, grid, Store(None))
    pipeline = Pipeline(
        layout=layout,
        fleet=fleet,
        costs=cost_model(config, costs, static_shapes=static, bucketed=bucketed),
        policy=Policy(axes=layout.axes, lanes=session.lanes, refuse_overflow=static),
        recorder=Recorder(),
        traffic=Traffic(layout.axes),
    )
    return Local(pipeline=pipeline, buckets=len(costs))
