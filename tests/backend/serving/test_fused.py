"""What a fused model takes over of its ensemble."""

import os
import shutil
from dataclasses import dataclass

import pytest

from builders.host_config import config_of, tensor
from ge_backend.errors import ConfigError, ModelError
from ge_backend.metrics import Recorder
from ge_backend.model.config.described import is_described
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.config.model_folder import read_folder
from ge_backend.serving import fused
from ge_backend.serving.fused import fused_document, open_fused
from ge_backend.serving.warmup.store import Store

STEP = 'backend: "ge" max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }'
OUTPUT = 'output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] label_filename: "labels.txt" }'
ENSEMBLE = f"""
platform: "ensemble" max_batch_size: 4
input {{ name: "x" data_type: TYPE_FP32 dims: [ 2 ] }} {OUTPUT}
ensemble_scheduling {{ step {{ model_name: "step" model_version: -1
  input_map {{ key: "x" value: "x" }} output_map {{ key: "y" value: "y" }} }} }}
"""
FUSED = 'backend: "ge" parameters { key: "fuse" value { string_value: "whole" } }'


BARE = 'output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }'


def completed(folder, *, whole=ENSEMBLE, step=f"{STEP} {OUTPUT}", own="", file="model.onnx"):
    """Return the fused model's configuration, completed from those beside it."""
    (folder / "step" / "1").mkdir(parents=True)
    (folder / "step" / "config.pbtxt").write_text(step)
    if file:
        (folder / "step" / "1" / file).touch()
    return completed_beside(folder, whole=whole, own=own)


def completed_beside(folder, *, whole, own=""):
    """Likewise, of steps that are there."""
    for name, config in {"whole": whole, "fused": f"{FUSED} {own}"}.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(config)
    fused = read_folder(folder / "fused")
    return fused_document(dict(fused.document), fused.config(os.environ))


def labels_of(document):
    return [output.get("label_filename") for output in document["output"]]


@pytest.mark.parametrize(
    ("own", "labels"),
    [("", "whole.labels.txt"), (BARE, "whole.labels.txt"), (OUTPUT, "labels.txt")],
    ids=["taken", "declared", "own"],
)
def test_labels_lie_in_the_fused_models_own_folder(tmp_path, own, labels):
    """The host takes them from nowhere else; copies say whose they are."""
    (tmp_path / "fused").mkdir()
    (tmp_path / "fused" / "whole.labels.txt").write_text("a\nb\n")
    assert labels_of(completed(tmp_path, own=own)) == [labels]


def test_labels_that_only_a_step_has_are_its_own(tmp_path):
    """The host's ensemble takes them from there, for outputs that it declares."""
    whole = ENSEMBLE.replace(OUTPUT, BARE)
    for name, own in {"a": "", "b": BARE}.items():
        (tmp_path / name / "fused").mkdir(parents=True)
        (tmp_path / name / "fused" / "step.labels.txt").write_text("a\nb\n")
        assert labels_of(completed(tmp_path / name, whole=whole, own=own)) == ["step.labels.txt"]
    document = completed(tmp_path / "c", whole=whole, step=f"{STEP} {BARE}")
    assert labels_of(document) == [None]


def test_labels_without_a_copy_are_left_out_with_a_warning(tmp_path, caplog):
    """The model is served; the warning says what to copy, and where."""
    assert labels_of(completed(tmp_path)) == [None]
    assert "copy ../whole/labels.txt to fused/whole.labels.txt" in caplog.text


@pytest.mark.parametrize(
    ("rows", "dims", "own", "ragged"),
    [
        (4, "-1", "", True),
        (4, "2", "", False),
        (0, "-1", "", False),
        (4, "-1", 'input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }', False),
    ],
    ids=["free", "fixed", "no batches", "own"],
)
def test_unequal_requests_share_batches_where_that_is_left_to_us(tmp_path, rows, dims, own, ragged):
    """Each step plans for itself, so the host may collect them; it refuses it without batches."""
    whole = ENSEMBLE.replace("max_batch_size: 4", f"max_batch_size: {rows}").replace(
        "dims: [ 2 ] }", f"dims: [ {dims} ] }}", 1
    )
    document = completed(tmp_path, whole=whole, own=own)
    assert document["input"][0].get("allow_ragged_batch", False) is ragged


@pytest.mark.parametrize("own", ["", "sequence_batching { oldest {} }"])
def test_batches_are_dynamic_unless_they_are_of_sequences(tmp_path, own):
    """The host takes one of the two, and of a configuration with both nothing that we filled in."""
    assert ("dynamic_batching" in completed(tmp_path, own=own)) is (not own)


@pytest.mark.parametrize("step", [STEP, f"{STEP} {OUTPUT}"], ids=["completed", "declared"])
def test_a_step_that_cannot_be_opened_is_named(tmp_path, step):
    """With the ensemble that it is in: its file's path alone would not tell whose step it is."""
    document = completed(tmp_path, step=step, file="")
    config = ModelConfig.read(
        document, directory=tmp_path / "fused" / "1", version="1", environment={}
    )
    with pytest.raises(ModelError, match=r"^ensemble 'whole', step 'step': no model file in "):
        open_fused(config, Recorder(), Store(None), on_restart=print)


@pytest.mark.parametrize("opens", [1, 2])
def test_steps_that_were_opened_are_left_where_the_whole_cannot_be(tmp_path, monkeypatch, opens):
    """Whatever the reason, in a later step or between them; who learns a step's buckets first."""
    twice = """step { model_name: "step" model_version: -1
      input_map { key: "x" value: "y" } output_map { key: "y" value: "z" } }"""
    whole = ENSEMBLE.replace("ensemble_scheduling {", f"ensemble_scheduling {{ {twice}")
    whole = whole.replace('output { name: "y"', 'output { name: "z"')
    document = completed(tmp_path, whole=whole)
    config = ModelConfig.read(
        document, directory=tmp_path / "fused" / "1", version="1", environment={}
    )
    left, places = [], iter(range(opens))

    def opened(*_, **__):
        place = next(places, None)
        if place is None:
            raise RuntimeError("unforeseen")
        return tuple(Part(f"{what} {place}", left) for what in ("pipeline", "learner"))

    monkeypatch.setattr(fused, "open_model", opened)
    with pytest.raises(RuntimeError, match="unforeseen"):
        open_fused(config, Recorder(), Store(None), on_restart=print)
    assert left == ["learner 1", "pipeline 1", "learner 0", "pipeline 0"][-2 * opens :]


def test_each_step_counts_under_its_own_devices(tmp_path, monkeypatch):
    """They may be others than the whole model's, which are those of all steps."""
    own = f'{STEP} {OUTPUT} parameters {{ key: "device" value {{ string_value: "null:1" }} }}'
    document = completed(tmp_path, step=own, file="model.null")
    config = ModelConfig.read(
        document, directory=tmp_path / "fused" / "1", version="1", environment={}
    )
    recorder = Recorder()

    def opened(_, of_step, *__, **___):
        of_step.add("ge_batches_total")
        of_step.set("ge_device_up", 1.0, device="null:1")
        raise RuntimeError("enough")

    monkeypatch.setattr(fused, "open_model", opened)
    with pytest.raises(RuntimeError, match="enough"):
        open_fused(config, recorder, Store(None), on_restart=print)
    labels = (("device", "null:1"), ("model", f"{config.name}/step"))
    assert recorder.drain().keys() == {("ge_batches_total", labels), ("ge_device_up", labels)}


PLACED = 'parameters {{ key: "{}" value {{ string_value: "{}" }} }}'


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    ("file", "step", "own", "environment", "executor"),
    [
        ("tokenizer.json", "", "", {}, "inline"),
        ("image.json", "", "", {}, "inline"),
        ("model.onnx", "", "", {}, "auto"),
        ("tokenizer.json", PLACED.format("priority", "1"), "", {}, "auto"),
        ("tokenizer.json", PLACED.format("executor", "process"), "", {}, "process"),
        ("tokenizer.json", "", PLACED.format("executor", "process"), {}, "process"),
        ("tokenizer.json", "", "", {"GE_EXECUTOR": "process"}, "process"),
        ("tokenizer.json", "", "", {"GE_WORKSPACE_POOL": "1GiB"}, "auto"),
        ("model.onnx", "", PLACED.format("executor", "inline"), {}, "inline"),
    ],
)
def test_texts_and_images_are_prepared_in_each_instance(
    tmp_path, monkeypatch, count, file, step, own, environment, executor
):
    """As by a model of one instance, however many there are; what is said counts."""
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    group = f"instance_group {{ count: {count} kind: KIND_CPU }}"
    document = completed(tmp_path, step=f"{STEP} {OUTPUT} {step}", own=f"{own} {group}", file=file)
    config = ModelConfig.read(
        document, directory=tmp_path / "fused" / "1", version="1", environment=os.environ
    )
    opened = []

    def note(step, *_, **__):
        opened.append((step.executor, step.instances))
        raise RuntimeError("enough")

    monkeypatch.setattr(fused, "open_model", note)
    with pytest.raises(RuntimeError, match="enough"):
        open_fused(config, Recorder(), Store(None), on_restart=print)
    assert opened == [(executor, count)]


@dataclass
class Part:
    """Stands for a pipeline and for a learner; as the former it keeps no tensors."""

    name: str
    left: list
    layout: None = None

    def retain_tensors(self, _):
        raise RuntimeError("unforeseen")

    def close(self):
        self.left.append(self.name)


def test_sequences_of_a_fused_model_are_refused(tmp_path):
    """Its steps would get neither states nor controls; without any, sequences are the host's."""
    state = {"input_name": "h", "output_name": "n", "data_type": "TYPE_FP32", "dims": [1]}
    control = {"name": "START", "control": [{"kind": "CONTROL_SEQUENCE_START"}]}
    for block in ({"state": [state]}, {"control_input": [control]}):
        config = config_of(
            inputs=[tensor("x")], parameters={"fuse": "whole"}, sequence_batching=block
        )
        with pytest.raises(ConfigError, match=r"sequence_batching .* no step of 'whole' gets"):
            open_fused(config, Recorder(), Store(None), on_restart=print)


def bounded(folder, *, limit, count):
    """Return the configuration of a fused model whose ensemble says `max_inflight_requests`."""
    whole = ENSEMBLE.replace(
        "ensemble_scheduling {", f"ensemble_scheduling {{ max_inflight_requests: {limit}"
    )
    own = f"instance_group {{ count: {count} kind: KIND_CPU }}"
    return ModelConfig.read(
        completed(folder, whole=whole, own=own),
        directory=folder / "fused" / "1",
        version="1",
        environment={},
    )


@pytest.mark.parametrize(("limit", "count", "most"), [(0, 2, 0), (5, 1, 5), (5, 2, 2), (2, 2, 1)])
def test_instances_share_the_requests_that_may_be_at_a_step(
    tmp_path, monkeypatch, limit, count, most
):
    """All together they have no more there than the ensemble allows."""
    config = bounded(tmp_path, limit=limit, count=count)
    left = []
    monkeypatch.setattr(fused, "open_model", lambda *_, **__: (Part("p", left), Part("l", left)))
    monkeypatch.setattr(fused, "_ensemble_steps", lambda *_: [])
    runner, _ = open_fused(config, Recorder(), Store(None), on_restart=print)
    assert runner.most == most


def test_more_instances_than_requests_at_a_step_are_refused(tmp_path):
    """Each has one at least: the limit could not be kept. Both numbers are named."""
    config = bounded(tmp_path, limit=2, count=3)
    with pytest.raises(
        ConfigError,
        match=r"has 3 instances, and max_inflight_requests of ensemble "
        r"'whole' lets 2 requests .* lower count in instance_group",
    ):
        open_fused(config, Recorder(), Store(None), on_restart=print)


TEXTS = f"""
platform: "ensemble" max_batch_size: 4
input {{ name: "words" data_type: TYPE_STRING dims: [ 1 ] }} {BARE}
ensemble_scheduling {{
  step {{ model_name: "graph" model_version: -1
    input_map {{ key: "x" value: "ids" }} output_map {{ key: "y" value: "y" }} }}
  step {{ model_name: "step" model_version: -1
    input_map {{ key: "text" value: "words" }} output_map {{ key: "input_ids" value: "ids" }} }} }}
"""


@pytest.mark.parametrize(
    "own", ["", f'input {{ name: "words" data_type: TYPE_STRING dims: [ 1 ] }} {BARE}']
)
def test_a_step_that_tokenizes_speaks_for_the_whole(tmp_path, own):
    """It says how, unless the fused model names its tensors itself; of no tokenizer nothing is said."""
    for name in ("step", "graph"):
        (tmp_path / name / "1").mkdir(parents=True)
    (tmp_path / "graph" / "config.pbtxt").write_text('backend: "ge"')
    (tmp_path / "graph" / "1" / "model.onnx").touch()
    for file, says in (("model.onnx", False), ("tokenizer.json", True)):
        for folder in ("step", "whole", "fused"):
            shutil.rmtree(tmp_path / folder, ignore_errors=True)
        (tmp_path / "step" / "1").mkdir(parents=True)
        (tmp_path / "step" / "1" / file).touch()
        (tmp_path / "step" / "config.pbtxt").write_text('backend: "ge"')
        document = completed_beside(tmp_path, whole=TEXTS, own=own)
        assert is_described(document) is (says and not own)
        config = read_folder(tmp_path / "fused").config(os.environ)
        found = fused.tokenizing_step(config)
        assert (None if found is None else found.name) == ("step" if says else None)
