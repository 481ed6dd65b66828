"""Who has a file whose answers depend on what runs beside a request is told, and what to do."""

import pytest

pytest.importorskip("onnx")
from onnx import TensorProto, helper

from builders.graphs import graph
from ge_backend.metrics import Recorder
from ge_backend.model.config.model import ModelConfig
from ge_backend.serving.dynamic_quantization import warn_of_dynamic_quantization
from ge_backend.serving.opening import open_model
from ge_backend.serving.warmup.store import Store

SETTINGS = {"device": "cpu", "executor": "inline", "warmup": "off", "learn": "off"}


def quantised():
    """Take x [batch, length] -> y, x in 8 bits: in one range over all rows."""
    return graph(
        [
            helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
            helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
        ],
        [("x", TensorProto.FLOAT, ["batch", "length"])],
        [("y", TensorProto.FLOAT, ["batch", "length"])],
    )


def plain():
    """Take x [batch, length] -> y [batch, length]."""
    return graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        [("x", TensorProto.FLOAT, ["batch", "length"])],
        [("y", TensorProto.FLOAT, ["batch", "length"])],
    )


@pytest.fixture
def config(tmp_path):
    """A function that writes a model's file and returns its configuration."""

    def config(model, name="model.onnx", most=8):
        (tmp_path / name).write_bytes(model)
        tensor = {"data_type": "TYPE_FP32", "dims": [-1]}
        return ModelConfig.read(
            {
                "name": "m",
                "max_batch_size": most,
                "default_model_filename": name,
                "input": [{"name": "x", **tensor}],
                "output": [{"name": "y", **tensor}],
                "parameters": {k: {"string_value": v} for k, v in SETTINGS.items()},
            },
            directory=tmp_path,
            version="1",
            environment={},
        )

    return config


def test_a_file_with_one_range_for_a_whole_run(config, caplog):
    """The log names the file, the operator and the remedies."""
    warn_of_dynamic_quantization(config(quantised()))
    assert "model.onnx" in caplog.text
    assert "DynamicQuantizeLinear" in caplog.text
    assert "set max_batch_size to 1" in caplog.text


def test_nothing_is_said_where_rows_run_alone_or_have_no_such_range(config, caplog):
    """Nor of a file of another kind, which is not looked into."""
    warn_of_dynamic_quantization(config(quantised(), most=1))
    warn_of_dynamic_quantization(config(b"", name="model.pt2"))
    warn_of_dynamic_quantization(config(plain()))
    assert caplog.text == ""


def test_opening_says_so_once(config, caplog):
    """Whichever engine runs it."""
    pytest.importorskip("onnxruntime")
    pipeline, learner = open_model(
        config(quantised()), Recorder(), Store(None), on_restart=lambda _: None
    )
    learner.close()
    pipeline.close()
    assert caplog.text.count("one range of values over all rows") == 1
