"""The systems that an encoder's benchmark compares, and their model repository."""

from types import SimpleNamespace

import pytest
from benchmarks import bench_serving
from benchmarks.encoder.systems import (
    CHECKPOINT,
    ONNX_FILE,
    PRECISIONS,
    QUANTISED_FILE,
    absent,
    served_systems,
    write_repository,
)
from benchmarks.encoder.traffic import Sequences, pools_of
from benchmarks.harness.requests import http_request

OURS = {
    "fp32": {"ge", "ge_onnx_process", "ge_checkpoint", "ge_process", "ge_openvino"},
    "bf16": {"ge_checkpoint", "ge_process", "ge_openvino"},
    "int8": {"ge_checkpoint", "ge_process"},
}


@pytest.fixture
def files(tmp_path):
    onnx = pytest.importorskip("onnx")
    found = {name: tmp_path / name for name in ("model.pt2", QUANTISED_FILE, ONNX_FILE)}
    kind = onnx.TensorProto.INT64
    given = [
        onnx.helper.make_tensor_value_info(name, kind, ["b", "s"])
        for name in ("input_ids", "attention_mask")
    ]
    out = onnx.helper.make_tensor_value_info("y", kind, ["b", "s"])
    node = onnx.helper.make_node("Add", ["input_ids", "attention_mask"], ["y"])
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", given, [out]))
    for path in found.values():
        onnx.save(model, path)
    (tmp_path / CHECKPOINT).mkdir()
    return {**found, CHECKPOINT: tmp_path / CHECKPOINT}


def repository(tmp_path, files, precision, **changes):
    systems = served_systems(precision, cores=4, **changes)
    write_repository(tmp_path / "models", systems, files)
    return {p.parent.name: p.read_text() for p in tmp_path.glob("models/*/config.pbtxt")}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_rival_has_both_layouts(precision):
    """All cores in one instance, and one thread in each of as many as there are cores."""
    systems = served_systems(precision, cores=4)
    rivals = [served for served in systems if not served.system.ours]
    assert {served.name for served in systems} - {served.name for served in rivals} == OURS[
        precision
    ]
    for name in {served.name for served in rivals}:
        layouts = [(s.instances, s.threads) for s in rivals if s.name == name]
        assert layouts == [(1, 4), (4, 1)]


def test_one_core_has_one_layout():
    """On a machine with one core the two are the same and run once."""
    assert {s.system.layout for s in served_systems("fp32", cores=1)} == {"", "1x1"}


def test_the_plain_engines_are_rivals_in_every_precision():
    """One forward pass per request is what a user would write."""
    for precision in PRECISIONS:
        codes = [s for s in served_systems(precision, cores=2) if s.code == "one_forward"]
        assert any("openvino" in s.parameters["engine"] for s in codes)
        assert all(not s.batches for s in codes)
    engines = {s.parameters["engine"] for s in served_systems("fp32") if s.code == "one_forward"}
    assert engines == {"onnx", "openvino"}


def test_only_what_is_asked_for_is_served():
    """By its name in the tables."""
    found = served_systems("fp32", cores=2, only=["ge", "onnx"])
    assert [s.system.model for s in found] == ["ge", "onnx_1x2", "onnx_2x1"]


def test_every_system_has_its_file(tmp_path, files):
    """Ours has it alone, rivals also their code, the C++ backend a graph that makes the mask."""
    onnx = pytest.importorskip("onnx")
    repository(tmp_path, files, "fp32")
    versions = {path.name: path / "1" for path in (tmp_path / "models").iterdir()}
    assert versions["ge_checkpoint"].resolve() == files[CHECKPOINT].resolve()
    assert (versions["ge"] / ONNX_FILE).resolve() == files[ONNX_FILE].resolve()
    assert {path.name for path in versions["packed_4x1"].iterdir()} == {
        *(CHECKPOINT, "model.py", "forward.py")
    }
    made = onnx.load(versions["cpp_onnx_1x4"] / ONNX_FILE)
    assert [given.name for given in made.graph.input] == ["input_ids"]


def test_the_quantised_file_is_the_rival_of_eight_bits(tmp_path, files):
    """And ours is asked for `int8`."""
    texts = repository(tmp_path, files, "int8")
    assert (tmp_path / "models" / "onnx_int8_1x4" / "1" / QUANTISED_FILE).exists()
    assert '"int8"' in texts["ge_checkpoint"]
    assert 'backend: "onnxruntime"' in texts["cpp_onnx_int8_1x4"]


def test_configurations_say_what_differs(tmp_path, files):
    """Batching, precision, engine, threads, where the executor is, and the preferred size."""
    texts = repository(tmp_path, files, "bf16", preferred=8)
    ours = {name: text for name, text in texts.items() if 'backend: "ge"' in text}
    assert set(ours) == OURS["bf16"] | {"ge_preferred"}
    assert all('"bf16"' in text and "dynamic_batching" in text for text in ours.values())
    assert [name for name, text in texts.items() if '"process"' in text] == ["ge_process"]
    assert "preferred_batch_size: [ 8 ]" in texts["ge_preferred"]
    assert '"openvino-bf16"' in texts["openvino_bf16_4x1"]
    assert "count: 4" in texts["openvino_bf16_4x1"]
    assert "dynamic_batching" not in texts["openvino_bf16_4x1"]
    for text in texts.values():  # the C++ backend would lay such rows end to end
        assert ("allow_ragged_batch: true" in text) == ('backend: "onnxruntime"' not in text)


def test_on_another_device_all_run_there_in_torch():
    """Rivals have as many instances as we."""
    found = served_systems("bf16", instances=3, device="cuda:0")
    assert [s.name for s in found] == [
        "ge",
        "ge_checkpoint",
        "one_forward",
        "pad_longest",
        "packed",
    ]
    assert {s.instances for s in found} == {3}
    assert {s.parameters["device"] for s in found} == {"cuda:0"}


def test_what_cannot_be_served_is_named_with_the_reason(tmp_path, files, monkeypatch):
    """A backend, a file, an engine or a precision that is not there."""
    installation = SimpleNamespace(backends=tmp_path)
    systems = {s.name: s for s in served_systems("fp32")}
    assert "GE_TRITONSERVER" in absent(systems["cpp_onnx"], installation, files)
    assert absent(systems["onnx"], installation, files) == ""
    assert absent(systems["onnx"], installation, {}) == "this encoder has no model.onnx"
    (tmp_path / "onnxruntime").mkdir()
    assert absent(systems["cpp_onnx"], installation, files) == ""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert "pip install openvino" in absent(systems["openvino"], installation, files)
    monkeypatch.setattr("benchmarks.encoder.systems._known_precisions", lambda: ["origin"])
    (ours, *_) = served_systems("bf16")
    assert absent(ours, installation, files) == "the backend has no precision bf16 yet"


def test_every_system_is_sent_the_same_rows():
    """In the same order, each to its own model, with the same answers."""
    import numpy as np

    row = np.array([101, 7, 102])
    drawn = {"uniform": Sequences(rows=[row], answers={0: np.zeros(4, np.float32)})}
    systems = [served.system for served in served_systems("fp32", cores=1, only=["ge", "onnx"])]
    pools = pools_of(systems, drawn, "fp32")
    assert list(pools) == ["ge/uniform", "onnx_1x1/uniform"]
    request = http_request("onnx_1x1", {"input_ids": row[None]})
    assert pools["onnx_1x1/uniform"].scripts == ((request,),)


def test_a_quick_run_is_one_mix_at_two_loads():
    """And what is said counts."""
    options = bench_serving._parse(["--quick", "--rounds", "1"])
    assert (options.mix, options.concurrency, options.rounds) == (["lognormal"], [1, 32], 1)
    whole = bench_serving._parse([])
    assert (whole.mix, whole.concurrency) == (["lognormal", "uniform"], [1, 8, 32, 64])
    assert whole.precision == ["fp32", "bf16"]
