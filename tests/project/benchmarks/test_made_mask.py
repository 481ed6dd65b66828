"""The encoder's file for a server that cannot make inputs."""

import numpy as np
import onnx
import onnxruntime
from benchmarks.rivals.made_mask import with_mask_inside
from onnx import TensorProto, helper


def test_it_answers_as_with_a_mask_of_ones(tmp_path):
    """One input less, the same sum, at any length."""
    sizes = ["batch", "sequence"]
    given = [
        helper.make_tensor_value_info(name, TensorProto.INT64, sizes)
        for name in ("input_ids", "attention_mask")
    ]
    product = helper.make_node("Mul", ["input_ids", "attention_mask"], ["sentence_embedding"])
    result = helper.make_tensor_value_info("sentence_embedding", TensorProto.INT64, sizes)
    graph = helper.make_graph([product], "masked", given, [result])
    opset = [helper.make_opsetid("", 17)]
    source, target = tmp_path / "model.onnx", tmp_path / "made.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), source)
    with_mask_inside(source, target)
    session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    assert [one.name for one in session.get_inputs()] == ["input_ids"]
    for length in (1, 7):
        ids = np.arange(2 * length).reshape(2, length)
        (answer,) = session.run(None, {"input_ids": ids})
        assert np.array_equal(answer, ids)
