"""An index or a length that the model does not take is the client's fault, and is named."""

from dataclasses import replace

import numpy as np
import pytest

from ge_backend.device.base import GraphSource
from ge_backend.device.machine.threads import Cores
from ge_backend.errors import GraphFailed, InvalidRequest
from ge_backend.model.layout.layout import InputLayout, Layout, OutputLayout
from ge_backend.serving.batching.blame import blamed
from ge_backend.serving.batching.request import Request
from ge_backend.tensors import DATA_TYPES

TENSOR = {"dtype": DATA_TYPES["INT64"], "dims": (-1,), "axes": (0,), "names": ("length",)}
LAYOUT = Layout(
    batched=True,
    axes=("length",),
    limits={},
    inputs=(
        InputLayout(name="ids", fill=0.0, made="", **TENSOR),
        InputLayout(name="mask", fill=0.0, made="mask", **TENSOR),
    ),
    outputs=(OutputLayout(name="y", **TENSOR),),
)
GATHER = (
    "Non-zero status code returned while running Gather node. Status Message: indices element out "
    "of data bounds, idx={} must be within the inclusive range [-{},{}]"
)
BROADCAST = "Attempting to broadcast an axis by a dimension other than 1. {} by {}"


def cause(text, ids, *, planned=False):
    array = np.array([ids])
    request = Request(index=0, rows=1, tensors={"ids": array}, sizes=(len(ids),))
    return blamed(GraphFailed(text), request, LAYOUT, rows=request.rows, planned=planned)


def test_an_index_is_found_in_its_input():
    """With its place, and what the model takes; whether or not the shape was prepared."""
    for planned in (False, True):
        error = cause(GATHER.format(999, 100, 99), [1, 2, 999], planned=planned)
        assert isinstance(error, InvalidRequest)
        assert str(error) == "input 'ids' holds 999 at [0, 2]; the model takes -100 to 99"


def test_every_input_that_may_hold_the_index_is_named():
    """A mask is no index, whatever it holds."""
    kinds = InputLayout(name="kinds", fill=0.0, made="", **TENSOR)
    layout = replace(LAYOUT, inputs=(*LAYOUT.inputs, kinds))
    given = {"ids": [0, 5, 2], "mask": [1, 1, 1], "kinds": [0, 0, 1]}
    for ids, said in (
        (given["ids"], "input 'kinds' holds 1 at [0, 2]; the model takes -1 to 0"),
        ([1, 5], "input 'ids' holds 1 at [0, 0] and input 'kinds' holds 1 at [0, 2]; the model"),
    ):
        tensors = {name: np.array([values]) for name, values in (given | {"ids": ids}).items()}
        request = Request(index=0, rows=1, tensors=tensors, sizes=(3,))
        error = blamed(
            GraphFailed(GATHER.format(1, 1, 0)), request, layout, rows=request.rows, planned=True
        )
        assert str(error).startswith(said)


def test_an_index_that_no_client_sent_is_a_position():
    """The graph counts positions itself, and has no row for the last ones."""
    error = cause(GATHER.format(4, 4, 3), [1] * 6)
    assert isinstance(error, InvalidRequest)
    assert str(error) == "axis 'length' of 'ids' is 6 long; the model takes at most 4"


def test_a_text_of_no_tokens_is_the_clients():
    """Where the graph takes its first place, as a classifier does; whatever was prepared."""
    error = cause(GATHER.format(0, 0, -1), [], planned=True)
    assert isinstance(error, InvalidRequest)
    assert str(error) == "axis 'length' of 'ids' is 0 long; the model takes at least 1"


def test_so_is_one_of_an_axis_that_is_not_padded():
    """As where nothing says that padding is harmless."""
    layout = replace(LAYOUT, axes=(), equal_axes=("length",))
    tensors = {"ids": np.zeros((1, 0), np.int64)}
    request = Request(index=0, rows=1, tensors=tensors, sizes=(), equal_sizes=(0,))
    error = blamed(
        GraphFailed(GATHER.format(0, 0, -1)), request, layout, rows=request.rows, planned=True
    )
    assert str(error) == "axis 'length' of 'ids' is 0 long; the model takes at least 1"


@pytest.mark.parametrize(
    "said",
    [
        "input 'x', element 1: invalid start byte; ONNX Runtime takes UTF-8 text only, so send …",
        "input 'x' has values from 0 to 5000000000, and OpenVINO computes whole numbers in 32 bits",
    ],
)
def test_values_that_the_device_does_not_take_are_the_clients(said):
    """It names input and element; what it says is what to change."""
    error = cause(said, [1])
    assert isinstance(error, InvalidRequest)
    assert str(error) == said


@pytest.mark.parametrize(
    "said",
    [
        BROADCAST.format(4, 6),
        BROADCAST.format(6, 4),
        "right operand cannot broadcast on dim 0 LeftShape: {1,6,2}, RightShape: {4,2}",  # CUDA
        "left operand cannot broadcast on dim 1 LeftShape: {1,4,2}, RightShape: {6,2}",
    ],
)
def test_a_length_that_a_table_of_positions_lacks_is_told(said):
    """Whichever side of the operator it stands on."""
    error = cause(said, [1] * 6)
    assert str(error) == "axis 'length' of 'ids' is 6 long; the model takes at most 4"


@pytest.mark.parametrize(
    "said",
    [
        "index out of range in self",
        "index 999 is out of bounds for dimension 0 with size 2",
        "invalid index found, index = 999",
        "GatherElements op: Out of range value in index tensor",
    ],
)
def test_where_no_range_is_told_the_inputs_are(said):
    """Whoever knows the vocabulary sees which it is."""
    error = cause(said, [1, 2, 999])
    assert isinstance(error, InvalidRequest)
    assert "ids from 1 to 999" in str(error)


@pytest.mark.parametrize(
    ("text", "planned"),
    [
        ("something else", False),
        (GATHER.format(7, 4, 3), True),  # a value that the client did not send, of a short request
        (BROADCAST.format(4, 6), True),  # sizes of a prepared shape are not the client's
        (BROADCAST.format(9, 11), False),
    ],
)
def test_all_else_is_the_graphs_failure(text, planned):
    """Nobody is blamed without reason."""
    error = cause(text, [1, 2], planned=planned)
    assert isinstance(error, GraphFailed)
    assert str(error) == text


UNFIT = (
    # ONNX Runtime's
    "while running Conv node. Status Message: Invalid input shape: {3}",
    "Input channels C is not equal to kernel channels * group. C: 2 kernel channels: 3 group: 1",
    "matmul_helper.h:59 Compute MatMul dimension mismatch",
    "matmul_helper.h:142 Compute left operand cannot broadcast on dim 0",
    "GEMM: Dimension mismatch, W: {4,5} K: 3 N:5",
    "Gemm: Invalid bias shape for broadcast",
    "Einsum operands could not be broadcast together. Please check input shapes/equation provided.",
    "Cannot split using values in 'split' attribute. Axis=1 Input shape={2,5} NumOutputs=2",
    "Dimension of input 1 must be 1 instead of 3. shape={2,3}",
    "invalid expand shape",
    "out_size >= 0 was false. Calculated output dimension is negative. Check kernel_shape, pads",
    "SpaceToDepth requires input height to be a multiple of block_size",
    "k argument [5] should not be greater than specified axis dim value [3]",
    "Input W must have shape {1,12,6}. Actual:{1,12,4}",
    "Scale and (optional) bias must match X.shape[axis:] or be NumPy-broadcastable to it.",
    "Pad reflect: pre-pad (5) exceeds maximum allowed (2) for axis 1. Input shape:{2,3}",
    BROADCAST.format(3, 4),
    # torch's
    "Guard failed: 2 * x.size()[1] == y.size()[1]",
    "Kernel size can't be greater than actual input size",
    "Given groups=1, weight of size [2, 1, 9], expected input[2, 2, 10] to have 1 channels, but got",
    "Expected size for first two dimensions of batch2 tensor to be: [2, 3] but got: [2, 4].",
    "Given input size: (1x1x5). Calculated output size: (1x1x0). Output size is too small",
    "stack expects each tensor to be equal size, but got [2, 3] at entry 0 and [2, 4] at entry 1",
    "The expanded size of the tensor (4) must match the existing size (3) at non-singleton dim",
    "subscript j has size 4 for operand 1 which does not broadcast with previously seen size 3",
    "Given normalized_shape=[4], expected input with shape [*, 4], but got input of size[2, 3]",
    "running_mean should contain 3 elements not 4",
    "selected index k out of range",
    "split_with_sizes expects split_sizes to sum exactly to 3 (input tensor's size at dimension 1)",
    "Padding size should be less than the corresponding input dimension, but got: padding (3, 3)",
    "select(): index 3 out of range for tensor of size [2, 3] at dimension 1",
    "max(): Expected reduction dim 1 to have non-zero size.",
)


@pytest.mark.parametrize("text", UNFIT)
def test_shapes_that_a_graph_does_not_take_are_named_where_others_have_run(text):
    """As a sound that is shorter than a convolution; the engine's words are kept."""
    layout = replace(LAYOUT, axes=(), equal_axes=("length",))
    request = Request(index=0, rows=2, tensors={"x": np.zeros((2, 3))}, sizes=(), equal_sizes=(3,))
    error = blamed(GraphFailed(text), request, layout, rows=request.rows, planned=True, most_rows=2)
    assert isinstance(error, InvalidRequest)
    assert "does not take 'x' [2, 3], where it has taken other sizes" in str(error)
    assert text in str(error)


@pytest.mark.parametrize(
    ("text", "equal_axes", "most_rows"),
    [
        (UNFIT[0], ("length",), 0),
        (UNFIT[0], ("length",), 1),
        (UNFIT[0], (), 2),
        ("Integer division by zero", ("length",), 2),
    ],
    ids=["nothing has run", "fewer rows have run", "no free axis", "other words"],
)
def test_a_graph_that_may_be_broken_is_not_the_clients_fault(text, equal_axes, most_rows):
    """As one that was exported for one row, which runs with no two of any size."""
    layout = replace(LAYOUT, axes=(), equal_axes=equal_axes)
    request = Request(index=0, rows=2, tensors={"x": np.zeros((2, 3))}, sizes=(), equal_sizes=(3,))
    error = GraphFailed(text)
    assert (
        blamed(error, request, layout, rows=request.rows, planned=True, most_rows=most_rows)
        is error
    )


def openvino_says(tmp_path, make, **inputs):
    """Return how OpenVINO fails over inputs of a graph that takes any sizes of as many dimensions."""
    openvino = pytest.importorskip("openvino")
    from openvino import opset13

    from ge_backend.engines.ov.graph import OpenVinoGraph

    given = [
        opset13.parameter([-1] * array.ndim, array.dtype, name=name)
        for name, array in inputs.items()
    ]
    model = openvino.Model([make(opset13, *given)], given)
    openvino.save_model(model, tmp_path / "model.xml", compress_to_fp16=False)
    graph = OpenVinoGraph(GraphSource.of(tmp_path / "model.xml"), Cores(1))
    with pytest.raises(GraphFailed) as failed:
        graph.run(inputs, {}, exclusive=False)
    graph.close()
    return failed.value


@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (lambda ops, x, z: ops.matmul(x, z, False, False), [(2, 3), (2, 4)]),
        (lambda ops, x, z: ops.matmul(x, z, False, True), [(2, 3, 4), (3, 3, 4)]),
        (lambda ops, x: ops.matmul(x, np.ones((4, 5), np.float32), False, False), [(2, 3)]),
        (lambda ops, x, z: ops.add(x, z), [(2, 3), (2, 4)]),
        (lambda ops, x, z: ops.concat([x, z], 0), [(2, 3), (2, 4)]),
        (lambda ops, x: ops.reshape(x, [-1, 4], False), [(2, 3)]),
        (lambda ops, x: ops.gather(x, 0, 1), [(2, 0)]),
        (lambda ops, x: ops.squeeze(x, [1]), [(2, 3)]),
        (lambda ops, x: ops.topk(x, 5, 1, "max", "value").output(0), [(2, 3)]),
        (lambda ops, x: ops.variadic_split(x, 1, [2, 2]).output(0), [(2, 5)]),
        (lambda ops, x: ops.depth_to_space(x, "blocks_first", 2), [(1, 3, 2, 2)]),
        (
            lambda ops, x: ops.convolution(x, np.ones((2, 1, 9), np.float32), [4], [0], [0], [1]),
            [(2, 1, 3)],
        ),
        (
            lambda ops, x: ops.convolution(x, np.ones((2, 1, 9), np.float32), [4], [0], [0], [1]),
            [(2, 3, 9)],
        ),
        (
            lambda ops, x: ops.avg_pool(x, [1, 1], [0, 0], [0, 0], [7, 7], False),
            [(2, 1, 3, 3)],
        ),
    ],
    ids=[
        "matmul",
        "batches",
        "weights",
        "add",
        "concat",
        "reshape",
        "nothing",
        "squeeze",
        "topk",
        "split",
        "depth",
        "short",
        "channels",
        "pool",
    ],
)
def test_so_are_those_that_openvino_does_not_take(tmp_path, make, shapes):
    """In the words of the one that is installed, without where in its sources they stand."""
    inputs = {name: np.ones(shape, np.float32) for name, shape in zip("xz", shapes, strict=False)}
    failed = openvino_says(tmp_path, make, **inputs)
    layout = replace(LAYOUT, axes=(), equal_axes=("length",))
    request = Request(index=0, rows=2, tensors=inputs, sizes=(), equal_sizes=(3,))
    error = blamed(failed, request, layout, rows=request.rows, planned=True, most_rows=2)
    assert isinstance(error, InvalidRequest), failed
    assert f"does not take 'x' {list(shapes[0])}" in str(error)
    assert "Exception from" not in str(error)
    assert "src/" not in str(error)


def test_openvino_names_no_index_either(tmp_path):
    """So the inputs' ranges are told, as of torch's."""
    x, z = np.ones((2, 3), np.float32), np.array([[1], [7]])
    failed = openvino_says(tmp_path, lambda ops, x, z: ops.gather_elements(x, z, 1), x=x, z=z)
    request = Request(index=0, rows=2, tensors={"x": x, "z": z}, sizes=(), equal_sizes=(3,))
    error = blamed(failed, request, LAYOUT, rows=request.rows, planned=True, most_rows=2)
    assert isinstance(error, InvalidRequest)
    assert "z from 1 to 7" in str(error)
