"""What OpenVINO leaves undone where an input has no elements is found before it runs."""

import numpy as np
import pytest

openvino = pytest.importorskip("openvino")
from openvino import opset13 as ops  # noqa: E402

from ge_backend.engines.ov.empty import skipped_operator  # noqa: E402


def model_of(make, rank):
    x = ops.parameter([-1] * rank, np.float32, name="x")
    result = make(x)
    result.set_friendly_name("last")
    return openvino.Model([result.output(0)], [x], "m")


def ones(*shape):
    return ops.constant(np.ones(shape, np.float32))


SKIPPED = {
    "gather": (lambda x: ops.gather(x, 0, 1), (2, 0)),
    "slice": (
        lambda x: ops.strided_slice(x, [0, -1], [0, 0], [1, 1], [1, 1], [1, 1], [], [0, 1]),
        (2, 0),
    ),
    "topk": (lambda x: ops.topk(x, 1, 1, "max", "value"), (2, 0)),
    "convolution": (lambda x: ops.convolution(x, ones(1, 1, 3), [1], [2], [2], [1]), (1, 1, 0)),
}
COMPUTED = {
    "echo": (ops.relu, (2, 0)),
    "sum": (lambda x: ops.reduce_sum(x, [1], False), (2, 0)),
    "product": (lambda x: ops.matmul(x, ops.transpose(x, [1, 0]), False, False), (2, 0)),
    "joined": (lambda x: ops.concat([x, ones(2, 3)], 1), (2, 0)),
    "shape": (lambda x: ops.gather(ops.shape_of(x), 0, 0), (2, 0)),
    "embedding": (lambda x: ops.gather(ones(5, 3), ops.convert(x, "i64"), 0), (2, 0)),
}


@pytest.mark.parametrize(("make", "shape"), SKIPPED.values(), ids=SKIPPED)
def test_what_reads_an_empty_tensor_is_named(make, shape):
    """If it has something to write, and only then."""
    model = model_of(make, len(shape))
    assert skipped_operator(model, [shape]) == "last"
    assert skipped_operator(model, [tuple(size or 8 for size in shape)]) == ""


@pytest.mark.parametrize(("make", "shape"), COMPUTED.values(), ids=COMPUTED)
def test_what_is_computed_of_an_empty_tensor_is_not(make, shape):
    """As a sum over nothing, or a state that begins without a token."""
    assert skipped_operator(model_of(make, len(shape)), [shape]) == ""
