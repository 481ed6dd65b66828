"""The ways to serve a file are those of the table of engines, as far as they are installed."""

from dataclasses import replace

import pytest

from ge_backend.model.config.model import ModelConfig
from ge_tools.model import ways
from ge_tools.model.ways import Way, way_of, ways_of


@pytest.fixture
def configured(tmp_path, monkeypatch):
    """Return a function that gives the configuration of a file; every engine is installed."""
    monkeypatch.setattr(ways, "installed", lambda _: True)

    def configured(file, device="cpu", **said):
        (tmp_path / file).write_bytes(b"\x08\x08")
        parameters = {
            key: {"string_value": text} for key, text in {"device": device, **said}.items()
        }
        document = {"name": "m", "max_batch_size": 4, "parameters": parameters}
        return ModelConfig.read(document, directory=tmp_path, version="1", environment={})

    return configured


def named(found):
    return [(way.engine, way.precision) for way in found]


def test_each_engine_in_each_of_its_precisions(configured):
    """In the order of the table."""
    assert named(ways_of(configured("model.onnx"))) == [
        ("onnxruntime", "origin"),
        ("openvino", "origin"),
        ("openvino", "bf16"),
        ("openvino", "int8"),
    ]


def test_only_some_precisions(configured):
    """Those that were asked for."""
    found = ways_of(configured("model.onnx"), ["int8", "bf16"])
    assert named(found) == [("openvino", "bf16"), ("openvino", "int8")]


def test_what_is_not_installed_is_no_way(configured, monkeypatch):
    """The other engines are."""
    monkeypatch.setattr(ways, "installed", lambda row: row.name != "openvino")
    assert named(ways_of(configured("model.onnx"))) == [("onnxruntime", "origin")]


def test_what_its_device_runs_has_one_way(configured):
    """It names no engine, and so sets none."""
    config = configured("model.null", device="null")
    assert ways_of(config) == (way_of(config, "null"),) == (Way(engine="", precision="origin"),)
    assert way_of(config, "null").parameters() == {"precision": "origin"}


def test_the_configuration_of_a_way(configured):
    """In this process and without learning; sizes beside those that are there."""
    config = replace(configured("model.onnx"), buckets={"rows": "1,4", "length": "8"})
    way = Way(engine="openvino", precision="bf16", buckets=(("buckets.length", "20"),))
    served = way.of(config)
    assert (served.engine, served.precision) == ("openvino", "bf16")
    assert served.buckets == {"rows": "1,4", "length": "20"}
    assert (served.executor, served.learn, served.warmup_background) == ("inline", "off", False)
