from __future__ import annotations

from pathlib import Path

import pytest
from demo.encoder import Encoder
from demo.repository import served_models, write_repository


@pytest.fixture
def encoder(tmp_path: Path) -> Encoder:
    for name in ("model.onnx", "model.pt2"):
        (tmp_path / name).write_text(name)
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "config.json").write_text("config.json")
    return Encoder(
        onnx=tmp_path / "model.onnx",
        program=tmp_path / "model.pt2",
        checkpoint=tmp_path / "checkpoint",
        differences={"ONNX": 0.0},
    )


def test_every_model_gets_a_configuration_and_its_file(encoder, tmp_path):
    """The version folder holds the model under the name that its engine is chosen by."""
    root = tmp_path / "models"
    write_repository(root, served_models(encoder))

    assert (root / "minilm_onnx" / "1" / "model.onnx").read_text() == "model.onnx"
    assert (root / "minilm_folder" / "1" / "config.json").read_text() == "config.json"


def test_configurations_differ_in_precision_alone(encoder, tmp_path):
    """Both engines serve the same buckets, instances and batches."""
    root = tmp_path / "models"
    write_repository(root, served_models(encoder))
    onnx = (root / "minilm_onnx" / "config.pbtxt").read_text()
    folder = (root / "minilm_folder" / "config.pbtxt").read_text()

    assert onnx != folder
    assert onnx.replace('"origin"', '"bf16"') == folder


def test_the_configuration_is_what_the_backend_understands(encoder, tmp_path):
    """Triton's own parser and the backend's read it: ragged ids, optional mask, two instances."""
    service = pytest.importorskip("tritonclient.grpc.model_config_pb2")
    from google.protobuf import json_format, text_format

    from ge_backend.model.config.model import ModelConfig

    root = tmp_path / "models"
    write_repository(root, served_models(encoder))
    text = (root / "minilm_folder" / "config.pbtxt").read_text()
    message = text_format.Parse(text, service.ModelConfig())
    given = json_format.MessageToDict(message, preserving_proto_field_name=True)
    config = ModelConfig.read(
        {"name": "minilm_folder", **given}, directory=tmp_path, version="1", environment={}
    )

    assert config.max_batch_size == 32
    assert config.instances == 2
    assert config.precision == "bf16"
    assert [(tensor.name, tensor.ragged, tensor.optional) for tensor in config.inputs] == [
        ("input_ids", True, False),
        ("attention_mask", True, True),
    ]
    assert config.buckets == {"rows": "1,2,4,8,16", "sequence": "16,32,64,128,256"}
