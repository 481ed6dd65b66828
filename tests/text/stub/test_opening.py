"""What an engine counted arrives in the recorder, sums and buckets right."""

import json
from bisect import bisect_left
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.writer import make_writer
from ge_backend.errors import ConfigError, DeviceUnavailable, ModelError
from ge_backend.metrics import METRICS, Recorder
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.files.checkpoint import read_checkpoint
from ge_backend.serving.connect import VISIBLE
from ge_text.engine.figures import HistogramFigures, Tally
from ge_text.protocol import ServiceSpec, StatsReply
from ge_text.service.service import LEVELS
from ge_text.stub import opening as generation
from ge_text.stub.opening import (
    HISTOGRAMS,
    _observations,
    _record,
    open_generation,
)

BOUNDS = (1.0, 2.0, 5.0)


@given(st.lists(st.floats(0.001, 20.0), max_size=30))
def test_observations_have_the_buckets_and_the_sum(values):
    """Not the values are known, only how many fell where, and their sum: both stay."""
    counts = [0] * (len(BOUNDS) + 1)
    for value in values:
        counts[bisect_left(BOUNDS, value)] += 1
    seen = HistogramFigures(bounds=BOUNDS, counts=tuple(counts), total=sum(values))
    made = list(_observations(seen))
    again = [0] * (len(BOUNDS) + 1)
    for value in made:
        again[bisect_left(BOUNDS, value)] += 1
    assert sum(made) == pytest.approx(sum(values), rel=1e-6, abs=1e-6)
    assert len(made) == len(values)
    assert again == counts or min(made, default=1.0) < 1e-9


def test_all_that_an_engine_counts_is_a_metric():
    """No name of the engine's is unknown to the table of metrics, and bounds are the same."""
    tally, recorder = Tally(), Recorder()
    histograms = {
        name: HistogramFigures(
            bounds=f.bounds, counts=(1,) + (0,) * len(f.bounds), total=f.bounds[0]
        )
        for name, f in tally.pictures().items()
    }
    seen = StatsReply(
        engine="torch",
        levels=dict.fromkeys(LEVELS, 1.0),
        counts=dict.fromkeys(tally.counts, 1),
        buckets={"8x1x4": 2},
        histograms=histograms,
    )
    _record(seen, recorder, "cpu")
    drained = recorder.drain()
    assert len(drained) == len(LEVELS) + len(tally.counts) + 3
    assert drained["ge_engine_info", (("device", "cpu"), ("engine", "torch"))] == 1
    assert drained["ge_text_buckets_total", (("bucket", "8x1x4"),)] == 2
    assert (
        drained["ge_run_seconds_total", (("device", "cpu"),)]
        == tally.histograms["step"].figures().bounds[0]
    )
    assert {name for name, _ in recorder.drain_observations()} == set(HISTOGRAMS.values())
    for name, figures in tally.pictures().items():
        assert METRICS[HISTOGRAMS[name]].bounds == figures.bounds


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("writer")
    make_writer(folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "awq"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def opened(monkeypatch, checkpoint):
    """A function that opens the checkpoint; it returns the address and what would be served."""
    monkeypatch.setattr(generation, "GenerationClient", lambda connect, key, **_: (connect, key))
    monkeypatch.setattr(generation, "kept_files", lambda *_: None)
    monkeypatch.setenv("GE_VLLM_PYTHON", "/opt/vllm/bin/python")
    for variable in VISIBLE.values():
        monkeypatch.delenv(variable, raising=False)

    def open_with(**parameters):
        config = {
            "name": "writer",
            "parameters": {
                k.replace("__", "."): {"string_value": v} for k, v in parameters.items()
            },
        }
        read = ModelConfig.read(config, directory=checkpoint, version="1", environment={})
        connect, key = open_generation(read, Recorder(), on_restart=print)
        return connect.args[0], ServiceSpec.of(key())

    return open_with


def test_vllm_gets_a_process_of_its_own_and_its_arguments(opened):
    """Its interpreter is the machine's; it sees the model's devices, and quantised weights."""
    address, spec = opened(
        engine="vllm", device="cuda", device_ids="2,3", vllm__max_model_len="512", precision="bf16"
    )
    assert (address.device, address.python) == ("cuda:2", "/opt/vllm/bin/python")
    assert address.apart.startswith("vllm-")
    assert address.environment == {"CUDA_VISIBLE_DEVICES": "2,3"}
    assert (spec.engine, spec.settings, spec.precision) == (
        "vllm",
        {"max_model_len": "512"},
        "bf16",
    )
    on_a_cpu, _ = opened(engine="vllm")
    assert on_a_cpu.environment == {}


@pytest.mark.parametrize(
    ("kind", "shown", "ids", "seen"),
    [
        ("cuda", "2,3", "0", "2"),
        ("cuda", "2,3", "1,0", "3,2"),
        ("cuda", "GPU-8f2b, MIG-1c,", "1", "MIG-1c"),
        ("npu", "4,5,6", "2,0", "4,6"),
        ("npu", None, "1,0", "0,1"),
    ],
)
def test_vllm_sees_the_devices_that_other_engines_call_so(
    opened, monkeypatch, kind, shown, ids, seen
):
    """Numbers count among the devices that the server sees; CANN's list ascends."""
    if shown is not None:
        monkeypatch.setenv(VISIBLE[kind], shown)
    address, _ = opened(engine="vllm", device=kind, device_ids=ids)
    assert address.environment == {VISIBLE[kind]: seen}


@pytest.mark.parametrize(("shown", "count"), [("2,3", 2), ("", 0)])
def test_vllm_gets_no_device_that_the_server_does_not_see(opened, monkeypatch, shown, count):
    """Else it would be another one's."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    message = f"there is no cuda:4: this process sees {count}, CUDA_VISIBLE_DEVICES={shown}"
    with pytest.raises(DeviceUnavailable, match=message):
        opened(engine="vllm", device="cuda:4")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"engine": "vllm", "max_num_seqs": "8"}, "'max_num_seqs' is of no use with engine 'vllm'"),
        ({"engine": "vllm", "buckets__batch": "8"}, "'buckets.batch' is of no use"),
        ({"engine": "vllm", "executor": "inline"}, "vLLM needs a process"),
        ({"precision": "int8", "engine": "torch"}, "not on cpu by 'torch'; take 'bf16'"),
        ({"precision": "int8", "device": "cuda"}, "not on cuda by 'torch'; take 'bf16'"),
        ({"precision": "int8", "engine": "vllm"}, "for vLLM take a checkpoint that is quantised"),
        ({"engine": "onnxruntime"}, "runs on 'openvino', 'torch' or 'vllm'"),
        ({"engine": "vllm", "speculative_model": "draft"}, "'speculative_model' is of no use"),
        ({"device": "cuda", "device_ids": "0,1"}, "device_ids name 2 devices"),
        ({"vllm__max_model_len": "512"}, "'vllm.max_model_len' is for engine 'vllm'"),
    ],
)
def test_settings_of_the_other_engine_are_refused(opened, parameters, message):
    """Nothing that is said goes without effect and without a word."""
    with pytest.raises(ConfigError, match=message):
        opened(**parameters)


@pytest.fixture
def served(monkeypatch, tmp_path):
    """A function that opens a model with a draft beside it; it returns what would be served."""
    monkeypatch.setattr(generation, "GenerationClient", lambda connect, key, **_: key)
    for name in ("1", "draft"):
        (tmp_path / name).mkdir()
        make_writer(tmp_path / name)

    def serve(name="draft", meanwhile=lambda: None):
        given = {"speculation": "model", "speculative_model": name}
        config = {
            "name": "writer",
            "parameters": {key: {"string_value": value} for key, value in given.items()},
        }
        read = ModelConfig.read(config, directory=tmp_path / "1", version="1", environment={})
        key = open_generation(read, Recorder(), on_restart=print)
        meanwhile()
        return ServiceSpec.of(key())

    return serve


def test_the_model_that_guesses_lies_in_the_models_folder(served, tmp_path):
    """It is served by its path, and another one when its files are; no name leads elsewhere."""
    spec = served()
    assert spec.settings["speculative_model"] == str(tmp_path / "draft")
    make_writer(tmp_path / "draft", seed=1)
    assert served().stamp != spec.stamp
    with pytest.raises(ConfigError, match="leaves the model's folder"):
        served("../draft")
    with pytest.raises(ModelError, match=r"no config.json in .*other"):
        served("other")


def test_the_model_that_guesses_is_loaded_again_as_it_was(served, tmp_path):
    """Whatever lies in its place when the executor dies: texts go on, guesses and all."""
    spec = served(meanwhile=lambda: (tmp_path / "draft" / "config.json").write_text("garbage"))
    assert spec.folder == str(tmp_path / "1")
    kept = read_checkpoint(Path(spec.settings["speculative_model"]))
    assert (kept.vocabulary, kept.folder.is_relative_to(tmp_path / "draft")) == (300, False)


def test_another_vocabulary_is_refused_with_both_sizes(served, tmp_path):
    """Before anything is loaded."""
    path = tmp_path / "draft" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"vocab_size": 301}))
    with pytest.raises(ConfigError, match=r"vocabulary of 301 tokens and .* one of 300"):
        served()


def test_a_model_that_guesses_has_safetensors(served, tmp_path):
    """Nothing else is read, as for any checkpoint."""
    (tmp_path / "draft" / "model.safetensors").rename(tmp_path / "draft" / "pytorch_model.bin")
    with pytest.raises(ModelError, match="only safetensors are read"):
        served()
