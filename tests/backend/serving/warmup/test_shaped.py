"""What is served of a graph that is loaded."""

from types import SimpleNamespace

import pytest

from builders.host_config import config_of, tensor
from ge_backend.serving.warmup.shaped import ShapedModel
from ge_backend.tensors import ANY_SHAPE, DATA_TYPES, Signature, TensorSpec


@pytest.mark.parametrize(("largest", "rows"), [({}, 8), ({"batch": 4}, 4), ({"batch": 16}, 8)])
def test_runs_have_no_more_rows_than_the_file_takes(largest, rows):
    """Whatever config.pbtxt says of requests, which are cut."""
    x, y = (
        TensorSpec(name=name, dtype=DATA_TYPES["FP32"], dims=(-1, 3), axes=("batch", ""))
        for name in "xy"
    )
    session = SimpleNamespace(
        shape_policy=ANY_SHAPE,
        signature=Signature(inputs=(x,), outputs=(y,), axis_limits=largest),
    )
    config = config_of(inputs=[tensor("x", [3])], max_batch_size=8, parameters={"warmup": "off"})
    model = ShapedModel.of(config, session, SimpleNamespace())
    assert model.config.max_batch_size == rows
    assert max(bucket[0] for bucket in model.grid.entries) == rows
