"""What clients of a fused ensemble must send, and may."""

import numpy as np
import pytest

from builders.host_config import config_of, tensor
from ge_backend.errors import InvalidRequest
from ge_backend.model.layout.layout import outside_layout
from ge_backend.serving.batching.request import check_request

IDS = tensor("ids", dtype="TYPE_INT64", allow_ragged_batch=True)


def sent(config, **shapes):
    tensors = {name: np.zeros(shape, np.int64) for name, shape in shapes.items()}
    return check_request(0, tensors, outside_layout(config))


@pytest.mark.parametrize("name", ["attention_mask", "MASK"])
def test_an_optional_input_may_be_left_out(name):
    """Under whatever name: it is the steps' business to make it."""
    config = config_of(inputs=[IDS, {**IDS, "name": name, "optional": True}])
    assert sent(config, ids=(2, 3)).rows == 2
    assert sent(config, ids=(2, 3), **{name: (2, 3)}).omitted == ()


def test_an_input_that_is_not_optional_is_missed():
    """A well-known name does not make it less wanted."""
    config = config_of(inputs=[IDS, {**IDS, "name": "attention_mask"}])
    with pytest.raises(InvalidRequest, match="input 'attention_mask' is missing"):
        sent(config, ids=(2, 3))


def test_what_is_sent_is_as_declared():
    """Type, rank and fixed sizes; as the host has reshaped it, and without a batch where none is."""
    reshaped = tensor("x", [1, -1, 4], "TYPE_INT64", reshape={"shape": [-1, 4]})
    config = config_of(inputs=[reshaped], outputs=[tensor("y", [3])])
    assert sent(config, x=(2, 7, 4)).rows == 2
    for shape in ((2, 7, 5), (2, 1, 7, 4)):
        with pytest.raises(InvalidRequest, match=r"expected \[batch, x\.0, 4\]"):
            sent(config, x=shape)
    (output,) = outside_layout(config).outputs
    assert (output.name, output.dtype.name, output.dims) == ("y", "FP32", (3,))
    assert sent(config_of(inputs=[IDS], max_batch_size=0), ids=(5,)).rows == 1
