"""`engine: auto`: measured once, the fastest that answers right serves, and the choice is kept."""

from dataclasses import replace
from importlib.machinery import ModuleSpec
from importlib.util import find_spec

import numpy as np
import pytest

from ge_backend.errors import DeviceUnavailable, ExecutorLost, GraphFailed, OutOfMemory, Unsupported
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.layout.layout import Layout
from ge_backend.serving import engine_choice as choice
from ge_backend.serving.engine_choice import described_choice, remembered_engine, with_engine
from ge_backend.serving.warmup.store import Store

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402

from builders.graphs import TABLE, WIDTH, graph  # noqa: E402

SMALL, LARGE = (1, 16), (4, 16)
NO_LAYOUT = Layout(batched=True, axes=(), limits={}, inputs=(), outputs=())


def rectified():
    """Take x [batch, length] -> y [batch, length]."""
    return graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        [("x", TensorProto.FLOAT, ["batch", "length"])],
        [("y", TensorProto.FLOAT, ["batch", "length"])],
    )


def hashed():
    """Take x INT64 [batch, length] -> y [batch, length, WIDTH]: hashed in more than 32 bits."""
    return graph(
        [
            helper.make_node("Mul", ["x", "factor"], ["product"]),
            helper.make_node("Mod", ["product", "rows"], ["row"]),
            helper.make_node("Gather", ["table", "row"], ["y"]),
        ],
        [("x", TensorProto.INT64, ["batch", "length"])],
        [("y", TensorProto.FLOAT, ["batch", "length", WIDTH])],
        [("factor", np.array(1000003)), ("rows", np.array(97)), ("table", TABLE)],
    )


@pytest.fixture
def config(tmp_path):
    return configured(tmp_path, rectified())


def configured(tmp_path, model, dtype="TYPE_FP32", dims=(-1,), **more):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(model)
    given = {"engine": "auto", "executor": "inline", "device": "cpu", "max_length": "32", **more}
    return ModelConfig.read(
        {
            "name": "m",
            "max_batch_size": 4,
            "input": [{"name": "x", "allow_ragged_batch": True, "data_type": dtype, "dims": [-1]}],
            "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [*dims]}],
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

    def __call__(self, config, store, first):
        buckets = () if first is None else first.buckets
        self.asked.append((config.engine, tuple(buckets)))
        found = self.costs[config.engine]
        if isinstance(found, Exception):
            raise found
        return choice._Measured(layout=NO_LAYOUT, buckets=buckets or (SMALL, LARGE), costs=found)


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
    monkeypatch.setattr(
        choice, "find_spec", lambda name: None if name == "openvino" else find_spec(name)
    )
    measured.costs["openvino"] = DeviceUnavailable("not installed")
    assert with_engine(config, store).engine == "onnxruntime"
    assert with_engine(config, store).engine == "onnxruntime"
    assert len(measured.asked) == 4


def test_an_engine_that_was_left_out_is_tried_again_in_another_release(
    config, tmp_path, monkeypatch
):
    """What killed its executor, or was not computed, may be mended there; others may be faster."""
    measured = Measured(monkeypatch, onnxruntime={SMALL: 2.0}, openvino=ExecutorLost("died twice"))
    store, release = Store(tmp_path / "cache"), tmp_path / "__init__.py"
    release.write_text("__version__ = '1'")
    specs = {"openvino": ModuleSpec("openvino", None, origin=str(release))}
    monkeypatch.setattr(choice, "find_spec", lambda name: specs.get(name) or find_spec(name))
    for _ in range(2):
        assert with_engine(config, store).engine == "onnxruntime"
    assert len(measured.asked) == 2
    release.write_text("__version__ = '2'")
    measured.costs["openvino"] = {SMALL: 1.0}
    assert with_engine(config, store).engine == "openvino"


def test_concatenated_inputs_have_the_first_engine(config, monkeypatch, tmp_path):
    """They come in no buckets, so there is nothing to measure on."""
    measured = Measured(monkeypatch)
    flat = replace(config, ragged="concatenate")
    assert with_engine(flat, Store(tmp_path)).engine == "onnxruntime"
    assert measured.asked == []


@pytest.mark.parametrize("kind", [DeviceUnavailable, ExecutorLost, OutOfMemory])
def test_an_engine_that_cannot_run_the_model_is_left_out(config, monkeypatch, caplog, kind):
    """Not installed, or it breaks its process, or wants more memory than there is."""
    Measured(monkeypatch, onnxruntime={SMALL: 9.0}, openvino=kind("not here"))
    with caplog.at_level("INFO"):
        assert with_engine(config, Store(None)).engine == "onnxruntime"
    assert "engine openvino is left out: not here" in caplog.text


def test_an_engine_that_lacked_memory_is_tried_again_at_the_next_start(
    config, tmp_path, monkeypatch
):
    """There may be more then; one that cannot run the model at all is left out for good."""
    store, costs = Store(tmp_path / "cache"), {"onnxruntime": {SMALL: 9.0}}
    for error in (OutOfMemory("no room"), Unsupported("not this file")):
        measured = Measured(monkeypatch, **costs, openvino=error)
        assert with_engine(config, store).engine == "onnxruntime"
        assert len(measured.asked) == 2
    measured = Measured(monkeypatch, **costs, openvino={SMALL: 1.0})
    assert with_engine(config, store).engine == "onnxruntime"
    assert measured.asked == []


def test_an_engine_for_which_the_pool_is_too_small_is_left_out(config, monkeypatch, caplog):
    """Of the others one may have scratch that is not in the pool, as OpenVINO has."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("openvino")
    monkeypatch.setenv("GE_WORKSPACE_POOL", "64")
    caplog.set_level("INFO")
    assert with_engine(config, Store(None)).engine == "openvino"
    assert "engine onnxruntime is left out: " in caplog.text
    assert "more than the pool's 64 B" in caplog.text


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


class Engines:
    """Two real engines, of which OpenVINO is told to be the faster, and may answer its own way."""

    def __init__(self, monkeypatch, answer):
        pytest.importorskip("onnxruntime")
        pytest.importorskip("openvino")
        self.answer, self.run_once = answer, choice.run_once
        monkeypatch.setattr(choice, "warm_up", self.warm_up)
        monkeypatch.setattr(choice, "run_once", self.run)

    def warm_up(self, session, layout, buckets, effort):
        return dict.fromkeys(buckets, 1.0 if session.source.engine == "openvino" else 2.0)

    def run(self, session, inputs):
        assert session.source.engine == "openvino"  # the other one has answered the sample before
        return {"y": self.answer(self.run_once(session, inputs)["y"])}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda y: y * 0.9, "output 'y' differs by 0.1 of its largest number"),
        (lambda y: np.where(y == y.max(), np.nan, y), "output 'y' is finite in other places"),
        (lambda y: y[:, :-1], "output 'y' has the shape"),
    ],
)
def test_a_fast_engine_that_answers_otherwise_is_left_out(
    config, tmp_path, monkeypatch, caplog, answer, told
):
    """With a warning that names both, and the choice is kept without it."""
    Engines(monkeypatch, answer)
    store = Store(tmp_path / "cache")
    assert with_engine(config, store).engine == "onnxruntime"
    warning = "engine openvino is left out, since it answers otherwise than onnxruntime: "
    assert warning + told in caplog.text
    assert described_choice(config, store).startswith("engine onnxruntime is chosen")
    assert "openvino" not in described_choice(config, store)


def test_an_engine_that_refuses_the_sample_is_left_out(config, monkeypatch, caplog):
    """The first takes it, and so may clients send it."""

    def refuse(y):
        raise GraphFailed("too large for me")

    Engines(monkeypatch, refuse)
    assert with_engine(config, Store(None)).engine == "onnxruntime"
    assert "it refuses what that takes: too large for me" in caplog.text


def test_engines_may_round_otherwise(config, monkeypatch, caplog):
    """The faster one serves."""
    Engines(monkeypatch, lambda y: y * 1.001)
    assert with_engine(config, Store(None)).engine == "openvino"
    assert caplog.text == ""


def test_where_the_first_refuses_any_sample_the_fastest_serves(config, monkeypatch, caplog):
    """Its answers are not known then, which the log says."""

    def refuse(*_):
        raise GraphFailed("not this")

    Engines(monkeypatch, None)
    monkeypatch.setattr(choice, "sample_of", refuse)
    assert with_engine(config, Store(None)).engine == "openvino"
    assert "engines are not compared by their answers: onnxruntime refuses" in caplog.text


def test_a_choice_that_was_kept_before_answers_were_compared_is_made_anew(
    config, tmp_path, monkeypatch
):
    """It may be of an engine that answers wrong."""
    Measured(monkeypatch, onnxruntime={SMALL: 1.0}, openvino={SMALL: 2.0})
    store = Store(tmp_path / "cache")
    key = choice._key(config, choice._candidates(config))
    store.keep_engines([part for part in key if part != choice.RULE], {"openvino": {SMALL: 1.0}})
    assert with_engine(config, store).engine == "onnxruntime"


@pytest.mark.parametrize("assumed", ["", "axes"])
def test_an_engine_that_cannot_tell_which_axes_are_one_is_left_out(tmp_path, caplog, assumed):
    """ONNX Runtime infers what a file does not say of an output; of OpenVINO a run has to show it."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("openvino")
    model = graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        [("x", TensorProto.FLOAT, ["batch", "length"])],
        [("y", TensorProto.FLOAT, [None, None])],
    )
    caplog.set_level("INFO")
    chosen = with_engine(configured(tmp_path, model, assume=assumed), Store(None)).engine
    if not assumed:
        assert "is left out" not in caplog.text
        return
    assert chosen == "onnxruntime"
    assert "engine openvino is left out: it would pad no axis, where the first" in caplog.text
    assert "pads length; name them with the parameters 'axes.<tensor>'" in caplog.text


def test_ids_that_are_hashed_in_64_bits(tmp_path, monkeypatch, caplog):
    """OpenVINO computes them in 32, whatever the file says."""
    Engines(monkeypatch, lambda y: y)
    config = configured(tmp_path, hashed(), "TYPE_INT64", (-1, WIDTH))
    assert with_engine(config, Store(None)).engine == "onnxruntime"
    assert "engine openvino is left out, since it answers otherwise" in caplog.text
