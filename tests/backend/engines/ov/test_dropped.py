"""What OpenVINO reads over in an ONNX file, and who computes such a file then."""

import numpy as np
import pytest

pytest.importorskip("openvino")
pytest.importorskip("onnx")

from onnx import helper

from builders import engine_faults as faults
from ge_backend.device.base import GraphSource
from ge_backend.engines.kinds.cpu import CpuDevice
from ge_backend.engines.ov.dropped import EXAMINED, RUNTIME, check_nothing_dropped
from ge_backend.errors import Unsupported


def one(kind, inputs=("x",), *, opset=22, **attributes):
    """Return a file of one operator."""
    return faults.model(
        [helper.make_node(kind, list(inputs), ["y"], name="only", **attributes)],
        [(name, faults.FLOAT, ["a"]) for name in inputs if name],
        [("y", faults.FLOAT, None)],
        opset=opset,
    )


PEEPHOLES = ("x", "w", "r", "", "", "", "", "p")
LEFT_OUT = {
    "layout=1 of the LSTM": one("LSTM", ("x", "w", "r"), hidden_size=2, layout=1),
    "layout=1 of the GRU": one("GRU", ("x", "w", "r"), hidden_size=2, layout=1),
    "layout=1 of the RNN": one("RNN", ("x", "w", "r"), hidden_size=2, layout=1),
    "input_forget=1 of the LSTM": one("LSTM", ("x", "w", "r"), hidden_size=2, input_forget=1),
    "its peepholes of the LSTM": one("LSTM", PEEPHOLES, hidden_size=2),
    "antialias=1 of the Resize": one("Resize", ("x", "", "s"), mode="linear", antialias=1),
    "exclude_outside=1 of the Resize": one("Resize", ("x", "", "s"), exclude_outside=1),
    "keep_aspect_ratio_policy=not_larger of the Resize": one(
        "Resize", ("x", "", "", "s"), keep_aspect_ratio_policy="not_larger"
    ),
    "its axis, where that is an input, of the DFT": one("DFT", ("x", "", "a")),
    "onesided=1 of the DFT": one("DFT", onesided=1, opset=17),
    "left_window_size=1 of the Attention": one(
        "Attention", ("q", "k", "v"), left_window_size=1, opset=25
    ),
    "right_window_size=0 of the Attention": one(
        "Attention", ("q", "k", "v"), right_window_size=0, opset=25
    ),
    "mode=CRD of the SpaceToDepth": one("SpaceToDepth", blocksize=2, mode="CRD", opset=28),
    "mode=max of the RoiAlign": one("RoiAlign", ("x", "r", "b"), mode="max"),
    "ceil_mode=1 beside count_include_pad=1 of the AveragePool": one(
        "AveragePool", kernel_shape=[2], ceil_mode=1, count_include_pad=1
    ),
    "the place of output_shape of the ConvTranspose": one(
        "ConvTranspose", ("x", "w"), strides=[2], output_shape=[8]
    ),
    "auto_pad=SAME_LOWER of the ConvTranspose": one(
        "ConvTranspose", ("x", "w"), auto_pad="SAME_LOWER"
    ),
    "sorted=0 of the Unique": one("Unique", sorted=0),
    "scale of the Attention": one(
        "Attention", ("x", "w", "b"), domain=RUNTIME, num_heads=2, scale=0.1
    ),
    "mask_filter_value of the Attention": one(
        "Attention", ("x", "w", "b"), domain=RUNTIME, num_heads=2, mask_filter_value=-1.0
    ),
    "rotary_embedding_dim=4 of the RotaryEmbedding": one(
        "RotaryEmbedding", ("x", "p", "c", "s"), domain=RUNTIME, rotary_embedding_dim=4
    ),
    "its g_idx of the MatMulNBits": one(
        "MatMulNBits", ("x", "w", "s", "", "g"), domain=RUNTIME, K=32, N=2, bits=4, block_size=32
    ),
    "the zero point of the QLinearLeakyRelu": one(
        "QLinearLeakyRelu", ("x", "s", "z", "t", "y"), domain=RUNTIME, alpha=0.5
    ),
}


@pytest.mark.parametrize("left_out", LEFT_OUT)
def test_what_is_left_out_is_named(tmp_path, left_out):
    """With the operator, and the engine to set."""
    path = tmp_path / "m.onnx"
    path.write_bytes(LEFT_OUT[left_out])
    with pytest.raises(Unsupported, match=f"OpenVINO leaves out {left_out} 'only'.*onnxruntime"):
        check_nothing_dropped(path)


KEPT = {
    "LSTM": one("LSTM", ("x", "w", "r"), hidden_size=2, layout=0, direction="reverse"),
    "Resize": one("Resize", ("x", "", "s"), antialias=0, keep_aspect_ratio_policy="stretch"),
    "DFT": one("DFT", axis=1, opset=17),
    "Attention": one("Attention", ("q", "k", "v"), left_window_size=-1, opset=25),
    "SpaceToDepth": one("SpaceToDepth", blocksize=2, mode="DCR", opset=28),
    "AveragePool": one("AveragePool", kernel_shape=[2], ceil_mode=1),
    "ConvTranspose": one("ConvTranspose", ("x", "w"), strides=[2], pads=[0, 1]),
    "ConvTranspose without padding": one("ConvTranspose", ("x", "w"), auto_pad="VALID"),
    "Unique": one("Unique", sorted=1),
    "Attention's own scale": one("Attention", ("q", "k", "v"), scale=0.1, opset=23),
    "RotaryEmbedding of ONNX": one("RotaryEmbedding", ("x", "c", "s"), rotary_embedding_dim=4),
    "MatMulNBits": one(
        "MatMulNBits", ("x", "w", "s"), domain=RUNTIME, K=32, N=2, bits=4, block_size=32
    ),
}


@pytest.mark.parametrize("kind", KEPT)
def test_what_says_nothing_else_than_the_default_is_computed(tmp_path, kind):
    """An attribute that is written out with its default is none that is left out."""
    path = tmp_path / "m.onnx"
    path.write_bytes(KEPT[kind])
    check_nothing_dropped(path)


def test_operators_of_a_branch_are_looked_at(tmp_path):
    """What a model computes only now and then, too."""
    x = helper.make_tensor_value_info("x", faults.FLOAT, [1, 2, 2, 4])
    y = helper.make_tensor_value_info("y", faults.FLOAT, [1, 8, 1, 2])
    on = helper.make_tensor_value_info("on", 9, [])
    branches = [
        helper.make_graph(
            [helper.make_node("SpaceToDepth", ["x"], ["y"], name=mode, blocksize=2, mode=mode)],
            mode,
            [],
            [y],
        )
        for mode in ("DCR", "CRD")
    ]
    node = helper.make_node("If", ["on"], ["y"], then_branch=branches[0], else_branch=branches[1])
    graph = helper.make_graph([node], "g", [x, on], [y])
    path = tmp_path / "m.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 28)]).SerializeToString()
    )
    with pytest.raises(Unsupported, match="mode=CRD of the SpaceToDepth 'CRD'"):
        check_nothing_dropped(path)


def test_operators_newer_than_those_that_were_looked_at_are_refused(tmp_path):
    """They may have attributes that OpenVINO does not know of."""
    path = tmp_path / "m.onnx"
    path.write_bytes(one("Relu", opset=EXAMINED))
    check_nothing_dropped(path)
    path.write_bytes(one("Relu", opset=EXAMINED + 1))
    with pytest.raises(Unsupported, match=f"operators of opset {EXAMINED + 1}"):
        check_nothing_dropped(path)


def test_without_its_name_another_engine_serves_such_a_file(tmp_path, caplog):
    """Under its name it is refused; in neither case is an answer wrong."""
    pytest.importorskip("onnxruntime")
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    path = tmp_path / "model.onnx"
    path.write_bytes(
        faults.model(
            [helper.make_node("Resize", ["x", "", "by"], ["y"], mode="linear", antialias=1)],
            [("x", faults.FLOAT, ["batch", 1, "h", "w"])],
            [("y", faults.FLOAT, ["batch", 1, "a", "b"])],
            [("by", np.array([1, 1, 0.5, 0.5], np.float32))],
        )
    )
    graph = CpuDevice().load(GraphSource.of(path, threads=1))
    assert graph.engine == "onnxruntime"
    graph.run({"x": x}, {}, exclusive=False)
    graph.close()
    for named in ({"engine": "openvino"}, {"precision": "bf16"}):
        with pytest.raises(Unsupported, match="leaves out antialias=1"):
            CpuDevice().load(GraphSource.of(path, threads=1, **named))
