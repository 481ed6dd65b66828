"""`engine: auto`: measured once, the fastest serves, and the choice is kept."""

from dataclasses import replace

import pytest

from ge_backend.config.model import ModelConfig
from ge_backend.errors import DeviceUnavailable
from ge_backend.serving import engine_choice as choice
from ge_backend.serving.engine_choice import described_choice, remembered_engine, with_engine
from ge_backend.warmup.store import Store

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402

SMALL, LARGE = (1, 16), (4, 16)


@pytest.fixture
def config(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "length"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "length"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    given = {"engine": "auto", "executor": "inline", "device": "cpu", "max_length": "32"}
    tensor = {"data_type": "TYPE_FP32", "dims": [-1]}
    return ModelConfig.read(
        {
            "name": "m",
            "max_batch_size": 4,
            "input": [{"name": "x", "allow_ragged_batch": True, **tensor}],
            "output": [{"name": "y", **tensor}],
            "parameters": {key: {"string_value": text} for key, text in given.items()},
        },
        directory=folder,
        version="1",
        environment={},
    )


class Measured:
    """What measuring an engine finds; by its name. An error is raised."""

    def __init__(self, monkeypatch, **costs):
        self.costs, self.asked = costs, []
        monkeypatch.setattr(choice, "_measured", self)

    def __call__(self, config, store, samples):
        self.asked.append((config.engine, tuple(samples)))
        found = self.costs[config.engine]
        if isinstance(found, Exception):
            raise found
        return samples or [SMALL, LARGE], found


def test_the_fastest_engine_serves_and_is_kept(config, tmp_path, monkeypatch, caplog):
    """All on the same buckets; by ratio, so that large buckets do not decide alone."""
    times = {"onnxruntime": {SMALL: 4e6, LARGE: 10e6}, "openvino": {SMALL: 2e6, LARGE: 11e6}}
    measured, store = Measured(monkeypatch, **times), Store(tmp_path / "cache")
    with caplog.at_level("INFO"):
        assert with_engine(config, store).engine == "openvino"
    assert measured.asked == [("onnxruntime", ()), ("openvino", (SMALL, LARGE))]
    assert "engine openvino is chosen: 1x16 2.0 ms, 4x16 11.0 ms" in caplog.text
    assert "engine onnxruntime: 1x16 4.0 ms" in caplog.text
    assert with_engine(config, store).engine == "openvino"
    assert remembered_engine(config, store).engine == "openvino"
    assert len(measured.asked) == 2


def test_the_choice_can_be_told_with_its_figures(config, tmp_path, monkeypatch):
    """Once it is made; there is nothing to tell of an engine that is named, and little of one."""
    times = {"onnxruntime": {SMALL: 4e6, LARGE: 10e6}, "openvino": {SMALL: 2e6, LARGE: 11e6}}
    Measured(monkeypatch, **times)
    store = Store(tmp_path / "cache")
    assert described_choice(config, store) == "engine not chosen yet"
    with_engine(config, store)
    assert described_choice(config, store) == (
        "engine openvino is chosen: 1x16 2.0 ms, 4x16 11.0 ms; "
        "onnxruntime: 1x16 4.0 ms, 4x16 10.0 ms"
    )
    assert described_choice(replace(config, engine="openvino"), store) == ""
    only = replace(config, precision="bf16")
    assert described_choice(only, store) == "engine openvino, the only one for it"


def test_another_file_or_precision_is_another_choice(config, tmp_path, monkeypatch):
    """What was measured says nothing about them. In bf16 there is only one engine for the file."""
    times = {"onnxruntime": {SMALL: 1.0}, "openvino": {SMALL: 2.0}}
    measured, store = Measured(monkeypatch, **times), Store(tmp_path / "cache")
    assert with_engine(config, store).engine == "onnxruntime"
    assert with_engine(replace(config, precision="bf16"), store).engine == "openvino"
    assert len(measured.asked) == 2
    with (config.directory / "model.onnx").open("ab") as file:
        file.write(b"\x10\x01")  # a field more
    assert remembered_engine(config, store).engine == "auto"
    with_engine(config, store)
    assert len(measured.asked) == 4


def test_engines_that_have_come_or_gone_are_measured_anew(config, tmp_path, monkeypatch):
    """A cache may outlive an installation: what was chosen there need not be here."""
    times = {"onnxruntime": {SMALL: 2.0}, "openvino": {SMALL: 1.0}}
    measured, store = Measured(monkeypatch, **times), Store(tmp_path / "cache")
    assert with_engine(config, store).engine == "openvino"
    monkeypatch.setattr(choice, "find_spec", lambda name: None if name == "openvino" else name)
    measured.costs["openvino"] = DeviceUnavailable("not installed")
    assert with_engine(config, store).engine == "onnxruntime"
    assert with_engine(config, store).engine == "onnxruntime"
    assert len(measured.asked) == 4


def test_an_engine_that_cannot_run_the_model_is_left_out(config, tmp_path, monkeypatch, caplog):
    """Not installed, or lacking an operation."""
    missing = DeviceUnavailable("not installed")
    Measured(monkeypatch, onnxruntime={SMALL: 9.0}, openvino=missing)
    with caplog.at_level("INFO"):
        assert with_engine(config, Store(None)).engine == "onnxruntime"
    assert "engine openvino is left out: not installed" in caplog.text


def test_where_none_can_be_measured_the_first_is_asked(config, monkeypatch):
    """So that opening the model says what is wrong."""
    missing = DeviceUnavailable("not installed")
    Measured(monkeypatch, onnxruntime=missing, openvino=missing)
    assert with_engine(config, Store(None)).engine == ""


def test_an_engine_that_is_named_is_not_questioned(config, monkeypatch):
    """Nor is the first one, which is the default."""
    measured = Measured(monkeypatch)
    for name in ("", "openvino", "torch"):
        assert with_engine(replace(config, engine=name), Store(None)).engine == name
    assert measured.asked == []


def test_real_engines_are_measured_in_an_executor(config, tmp_path):
    """Whichever is the faster one for a tiny model."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("openvino")
    store = Store(tmp_path / "cache")
    chosen = with_engine(config, store).engine
    assert chosen in {"onnxruntime", "openvino"}
    assert remembered_engine(config, store).engine == chosen
