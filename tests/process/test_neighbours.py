"""A request that ends executors, among others in one run: it fails, and they do not."""

import numpy as np
import pytest

from builders.null_models import DEADLY, SHORT, write_null
from ge_backend.errors import ExecutorLost
from ge_backend.metrics import Recorder
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.layout.layout import build_layout
from ge_backend.serving.batching.pipeline import Pipeline
from ge_backend.serving.batching.plan import Policy
from ge_backend.serving.batching.request import check_request
from ge_backend.serving.fleet.fleet import Fleet
from ge_backend.shapes.buckets.costs import DynamicCosts
from ge_backend.shapes.traffic.traffic import Traffic

INPUT = {"name": "x", "data_type": "TYPE_FP32", "dims": [-1], "allow_ragged_batch": True}


@pytest.fixture
def pipeline(machine, tmp_path, deed):
    fault = {"on": "run", "do": deed, "value": DEADLY}
    session = machine.session(write_null(tmp_path / "model.null", faults=[fault]))
    session.fleet = Fleet({"null": session}, SHORT)
    config = ModelConfig.read(
        {"name": "sums", "max_batch_size": 8, "input": [INPUT]},
        directory=tmp_path,
        version="1",
        environment={},
    )
    layout = build_layout(config, session.signature)
    return Pipeline(
        layout=layout,
        fleet=session.fleet,
        costs=DynamicCosts({(1, 8): 10.0, (8, 8): 12.0}, 8),
        policy=Policy(axes=layout.axes),
        recorder=Recorder(),
        traffic=Traffic(layout.axes),
    )


@pytest.mark.parametrize("deed", ["die", "fault"])
def test_a_request_that_ends_executors_fails_alone(machine, pipeline):
    """All of one run; it ends the executor with them, again with them, and once alone."""
    rows = [[1.0], [2.0, 3.0], [DEADLY], [4.0]]
    batch = [
        check_request(index, {"x": np.array([row], np.float32)}, pipeline.layout)
        for index, row in enumerate(rows)
    ]
    replies = {reply.request: reply for reply in pipeline.run(batch)}
    assert isinstance(replies.pop(2).error, ExecutorLost)
    assert [replies[index].outputs["y"].tolist() for index in (0, 1, 3)] == [[1], [5], [4]]
    assert machine.restarts == 3
