"""A model's way up: it is compiled for its buckets before its states get their memory."""

import json
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np
import pytest

from builders.graphs import (
    POSITIONS,
    WIDTH,
    convolution,
    repeated,
    transposed,
    with_positions,
)
from ge_backend.errors import ConfigError, ExecutorLost, InvalidRequest, ModelError
from ge_backend.executor.server.stub_handler import StubHandler
from ge_backend.metrics import Recorder
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.config.sequence_batching import SequenceBatching, State
from ge_backend.serving import opening
from ge_backend.serving.batching.request import check_request
from ge_backend.serving.connect import open_fleet
from ge_backend.serving.opening import keep_states, open_model
from ge_backend.serving.warmup.store import Store
from ge_backend.tensors import DATA_TYPES

STATE = State(input="h", output="n", dtype=DATA_TYPES["FP32"], dims=(2,), initial_dims=(2,))
BATCHING = SequenceBatching(strategy="oldest", capacity=2, idle_s=60, controls=(), states=(STATE,))
SUMS = {"dtype": "FP32", "dims": ["batch"], "compute": "accumulate", "of": "x", "from": "h"}
MODEL = {
    "inputs": [
        {"name": "x", "dtype": "FP32", "dims": ["batch", 2]},
        {"name": "h", "dtype": "FP32", "dims": ["batch"]},
    ],
    "outputs": [
        {"name": "y", **SUMS},
        {"name": "n", **SUMS},
        {"name": "extra", "dtype": "FP32", "dims": ["batch"], "compute": "sum", "of": "x"},
    ],
    "static_shapes": True,
}
WAY_UP = {"Load", "Compile", "Prepare", "KeepStates"}


def configured(folder):
    (folder / "model.null").write_text(json.dumps(MODEL))
    return ModelConfig.read(
        {
            "name": "m",
            "max_batch_size": 2,
            "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [2]}],
            "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [], "reshape": {}}],
            "parameters": {
                "device": {"string_value": "null"},
                "executor": {"string_value": "inline"},
            },
            "sequence_batching": {
                "oldest": {},
                "state": [
                    {"input_name": "h", "output_name": "n", "data_type": "TYPE_FP32", "dims": []}
                ],
            },
        },
        directory=folder,
        version="1",
        environment={},
    )


@dataclass
class Asked:
    """What an executor was asked for on a model's way up: kinds of messages, each once in a row."""

    kinds: list = field(default_factory=list)
    hidden: list = field(default_factory=list)

    def note(self, message):
        kind = type(message).__name__
        if kind in WAY_UP and self.kinds[-1:] != [kind]:
            self.kinds.append(kind)
        if kind == "KeepStates":
            self.hidden.append(message.hidden)


@pytest.fixture
def asked(monkeypatch):
    """Notes what every executor of this process is asked for."""
    asked, answer = Asked(), StubHandler._answer

    def noting(self, message, descriptors):
        asked.note(message)
        answer(self, message, descriptors)

    monkeypatch.setattr(StubHandler, "_answer", noting)
    return asked


@pytest.fixture
def opened(tmp_path):
    pipeline, learner = open_model(
        configured(tmp_path), Recorder(), Store(None), on_restart=lambda _: None
    )
    yield pipeline
    learner.close()
    pipeline.close()


def test_auto_is_the_first_engine_and_says_where_to_ask(tmp_path, caplog):
    """One line for the user; nothing is measured, and nothing kept of it."""
    config = replace(configured(tmp_path), engine="auto")
    caplog.set_level("INFO")
    pipeline, learner = open_model(
        config, Recorder(), Store(tmp_path / "kept"), on_restart=lambda _: None
    )
    learner.close()
    pipeline.close()
    assert caplog.text.count("`ge-backend tune MODEL --measure`") == 1
    assert not (tmp_path / "kept" / "engines").exists()


@pytest.mark.parametrize(
    "step", ["warn_of_dynamic_quantization", "measured_costs", "keep_states", "Learner"]
)
def test_what_was_loaded_is_left_again_where_the_model_cannot_be_served(
    tmp_path, monkeypatch, step
):
    """Its copy, too, which would lie there until the server ends; the error is the step's own."""
    left, fleets = [], []

    def opened(*args, **named):
        fleet = open_fleet(*args, **named)
        (session,) = fleet.sessions
        session.served.copy = SimpleNamespace(folder=tmp_path, close=lambda: left.append("copy"))
        fleets.append(fleet)
        return fleet

    def fails(*_, **__):
        raise ModelError("not so")

    monkeypatch.setattr(opening, "open_fleet", opened)
    monkeypatch.setattr(opening, step, fails)
    with pytest.raises(ModelError, match="not so"):
        open_model(configured(tmp_path), Recorder(), Store(None), on_restart=lambda _: None)
    assert left == ["copy"]
    assert [session.outstanding for fleet in fleets for session in fleet.sessions] == [None]


@pytest.mark.parametrize("ragged", [False, True])
def test_a_model_whose_lengths_are_never_padded_says_so(tmp_path, caplog, ragged):
    """Once, at load; one that may be padded says nothing."""
    graph = {
        "inputs": [{"name": "x", "dtype": "FP32", "dims": ["batch", "length"]}],
        "outputs": [{"name": "y", "dtype": "FP32", "dims": ["batch"]}],
    }
    (tmp_path / "model.null").write_text(json.dumps(graph))
    tensor = {"name": "x", "data_type": "TYPE_FP32", "dims": [-1], "allow_ragged_batch": ragged}
    document = {
        "name": "m",
        "max_batch_size": 4,
        "input": [tensor],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1], "reshape": {}}],
        "parameters": {
            "device": {"string_value": "null"},
            "executor": {"string_value": "inline"},
        },
    }
    config = ModelConfig.read(document, directory=tmp_path, version="1", environment={})
    with caplog.at_level("INFO"):
        pipeline, learner = open_model(config, Recorder(), Store(None), on_restart=lambda _: None)
    learner.close()
    pipeline.close()
    told = [line for line in caplog.messages if "of different lengths are not batched" in line]
    assert len(told) == (not ragged)
    assert all("no input has allow_ragged_batch" in line for line in told)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("warmup", ["background", "on"])
@pytest.mark.parametrize(
    "graph",
    [transposed(), transposed((None, None), (None, None)), repeated()],
    ids=["unlike names", "no names", "repeated"],
)
def test_a_graph_whose_outputs_do_not_begin_with_the_rows_is_refused(
    tmp_path, graph, warmup, ragged
):
    """Two texts of two tokens got half of each other's outputs without a word."""
    (tmp_path / "model.onnx").write_bytes(graph)
    given = {"executor": "inline", "warmup": warmup}
    tensor = {"name": "x", "data_type": "TYPE_FP32", "dims": [-1], "allow_ragged_batch": ragged}
    document = {
        "name": "m",
        "max_batch_size": 4,
        "input": [tensor],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1]}],
        "parameters": {key: {"string_value": value} for key, value in given.items()},
    }
    config = ModelConfig.read(document, directory=tmp_path, version="1", environment={})
    with pytest.raises(ConfigError, match=r"'y' (has the shape|is FP32) .* transpose it in"):
        open_model(config, Recorder(), Store(None), on_restart=lambda _: None)


@pytest.mark.parametrize("warmup", ["background", "on"])
def test_the_first_request_that_is_too_short_for_the_graph_is_told_so(tmp_path, warmup):
    """Warm-up has seen that longer ones run."""
    (tmp_path / "model.onnx").write_bytes(convolution())
    given = {"executor": "inline", "warmup": warmup}
    document = {
        "name": "m",
        "max_batch_size": 4,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1, -1]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1, -1]}],
        "parameters": {key: {"string_value": value} for key, value in given.items()},
    }
    config = ModelConfig.read(document, directory=tmp_path, version="1", environment={})
    pipeline, learner = open_model(config, Recorder(), Store(None), on_restart=lambda _: None)
    try:
        request = check_request(0, {"x": np.ones((1, 1, 3), np.float32)}, pipeline.layout)
        (reply,) = pipeline.run([request])
    finally:
        learner.close()
        pipeline.close()
    assert isinstance(reply.error, InvalidRequest)
    assert "does not take 'x' [1, 1, 3], where it has taken other sizes" in str(reply.error)


def positioned(folder, **settings):
    """Write a model of so many positions; return its configuration with these settings."""
    (folder / "model.onnx").write_bytes(with_positions())
    ids = {"name": "ids", "data_type": "TYPE_INT64", "dims": [-1], "allow_ragged_batch": True}
    given = {"executor": "inline", **settings}
    document = {
        "name": "m",
        "max_batch_size": 4,
        "input": [ids],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1, WIDTH]}],
        "parameters": {key: {"string_value": value} for key, value in given.items()},
    }
    return ModelConfig.read(document, directory=folder, version="1", environment={})


@pytest.mark.parametrize("warmup", ["off", "on"])
def test_a_length_that_the_graph_lacks_is_told_with_its_limit(tmp_path, warmup):
    """Found out at load, or when it fails where nothing has run before."""
    config = positioned(tmp_path, **{"warmup": warmup, "buckets.length": "8,64"})
    pipeline, learner = open_model(config, Recorder(), Store(None), on_restart=lambda _: None)

    def answer(length):
        ids = np.ones((1, length), np.int64)
        (reply,) = pipeline.run([check_request(0, {"ids": ids}, pipeline.layout)])
        if reply.error is not None:
            raise reply.error
        return reply.outputs["y"].shape

    assert answer(POSITIONS) == (1, POSITIONS, WIDTH)
    for length in (POSITIONS + 1, 60):
        with pytest.raises(InvalidRequest, match="the model takes at most 16"):
            answer(length)
    learner.close()
    pipeline.close()


def step(pipeline, value, *, slot=0, starting=False):
    """Run one step of one sequence; return its answer, or its error."""
    request = check_request(0, {"x": np.full((1, 2), value, np.float32)}, pipeline.layout)
    (reply,) = pipeline.run([replace(request, slot=slot, starting=starting)])
    return reply.error or float(reply.outputs["y"][0])


def test_states_get_their_memory_once_the_model_is_compiled(asked, opened):
    """A graph that is compiled for its shapes can say what stays on the device."""
    assert asked.kinds == ["Load", "Compile", "Prepare", "KeepStates"]
    assert asked.hidden == [("n", "extra")]  # what no client gets
    assert step(opened, 1, starting=True) == 2
    assert step(opened, 1) == 4


def test_so_they_do_after_the_executor_was_lost(asked, opened):
    """The states themselves are gone: who goes on is told so, who begins is served."""
    step(opened, 1, starting=True)
    asked.kinds.clear()
    (session,) = opened.fleet.sessions
    session.lose(ExecutorLost("gone"))
    assert isinstance(step(opened, 1), ExecutorLost)
    assert asked.kinds == ["Load", "Compile", "KeepStates", "Prepare"]
    assert step(opened, 5, starting=True) == 10


def test_states_are_kept_where_there_are_any():
    """One for each slot; what no client gets is hidden, and what tells lengths is not."""
    kept = []
    outputs = [SimpleNamespace(name=name) for name in ("y", "n", "y_lengths", "extra")]
    session = SimpleNamespace(
        keep_states=lambda *given, **named: kept.append((given, named)),
        signature=SimpleNamespace(outputs=outputs),
    )
    declared = SimpleNamespace(name="y", lengths=("", "y_lengths"))
    placed = replace(STATE, axis=1)
    layout = SimpleNamespace(outputs=[declared], states=(placed,))
    config = SimpleNamespace(sequence=BATCHING, max_batch_size=4, outputs=(declared,))
    model = SimpleNamespace(config=config, layout=layout, session=session)
    keep_states(model, print)
    model.config = SimpleNamespace(sequence=None)
    keep_states(model, print)
    named = {"batched": True, "hidden": ("n", "extra"), "on_lost": print}
    assert kept == [(((placed,), BATCHING.slots), named)]
