"""`ge-backend preset`, on models that nobody loads."""

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from ge_tools.model.applied import BATCHING_DELAY, INSTANCES
from ge_tools.model.presets import DEFAULTS, KEYS, PRESETS, TEXT_PRESETS

HEAD = 'backend: "ge"  # ours\n'
BATCHED = """\
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
STYLES = {
    "nothing": HEAD,
    "no blocks": HEAD + BATCHED,
    "short": HEAD
    + BATCHED
    + "dynamic_batching {}\ninstance_group [{ count: 3 kind: KIND_CPU }]\n"
    + 'parameters { key: "threads" value { string_value: "4" } }  # measured\n',
    "long": HEAD
    + BATCHED
    + "dynamic_batching {\n  # why\n  preferred_batch_size: [ 4 ]\n"
    + "  max_queue_delay_microseconds: 100\n}\n"
    + "instance_group [\n  {\n    kind: KIND_CPU  # here\n  }\n]\n"
    + 'parameters: [\n  { key: "threads", value: { string_value: "4" } },\n'
    + '  { key: "TRITON_NOTE", value: { string_value: "{ # }" } }\n]\n',
    "angular": HEAD
    + BATCHED
    + "dynamic_batching: < max_queue_delay_microseconds: 100 >\n"
    + "instance_group: < count: 1, kind: KIND_CPU >\n"
    + "parameters: < key: 'max_elements'; value: < string_value: '64' > >\n",
}


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Return a function that writes a model's folder."""
    monkeypatch.delenv("GE_DEVICE", raising=False)

    def write(config, name="tiny"):
        folder = tmp_path / "models" / name
        (folder / "1").mkdir(parents=True)
        (folder / "config.pbtxt").write_text(config)
        return folder

    return write


def read(folder):
    text = (folder / "config.pbtxt").read_text()
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def values_in(message):
    """Return what the configuration says of the presets' settings, defaults where it is silent."""
    groups = [group.count or 1 for group in message.instance_group] or [1]
    found = {
        INSTANCES: str(sum(groups)),
        BATCHING_DELAY: str(message.dynamic_batching.max_queue_delay_microseconds),
    }
    given = {key: value.string_value for key, value in message.parameters.items()}
    return found | {key: given.get(key, DEFAULTS[key]) for key in KEYS if key not in found}


def of(preset):
    return {key: choice.value for key, choice in PRESETS[preset].choices.items()}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_what_the_model_has_afterwards(written, ge_backend, style, name):
    """Whatever was there; applied again, and after another, it is the same."""
    folder = written(STYLES[style])
    assert ge_backend("preset", folder, name)[0] == 0
    once = (folder / "config.pbtxt").read_text()
    assert values_in(read(folder)) == of(name)
    code, out, err = ge_backend("preset", folder, name)
    assert (code, err) == (0, "")
    assert f"tiny: {name}, nothing to change" in out
    assert (folder / "config.pbtxt").read_text() == once
    for other in PRESETS:
        ge_backend("preset", folder, other)
        assert values_in(read(folder)) == of(other)
    ge_backend("preset", folder, name)
    assert values_in(read(folder)) == of(name)


@pytest.mark.parametrize("style", STYLES)
def test_all_else_stays(written, ge_backend, style):
    """Comments, and every line that says nothing of the preset."""
    folder = written(STYLES[style])
    before = read(folder)
    ge_backend("preset", folder, "low_latency")
    text = (folder / "config.pbtxt").read_text()
    comments = [line.split("#")[1] for line in STYLES[style].splitlines() if "#" in line]
    assert all(f"#{comment}" in text for comment in comments)
    after = read(folder)
    for message in (before, after):
        for key in KEYS:
            message.parameters.pop(key, None)
        del message.instance_group[:]
        message.dynamic_batching.max_queue_delay_microseconds = 0
    assert after == before


def test_what_changes_is_told_with_the_reason(written, ge_backend):
    """Before, after, setting, why; then the difference of the file."""
    folder = written(STYLES["short"])
    code, out, err = ge_backend("preset", folder, "memory_constrained")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "tiny: memory_constrained, 3 changes"
    rows = [line.split(maxsplit=3) for line in lines[2:5]]
    choices = PRESETS["memory_constrained"].choices
    assert [row[:3] for row in rows] == [
        ["3", "1", INSTANCES],
        ["4", "1", "threads"],
        ["0", choices["max_elements"].value, "max_elements"],
    ]
    assert all(why == choices[key].why for _, _, key, why in rows)
    assert "hint: " in out
    assert "+instance_group [{ count: 1 kind: KIND_CPU }]" in lines


@pytest.mark.parametrize("name", TEXT_PRESETS)
def test_a_checkpoint_gets_the_settings_of_text(written, ge_backend, name):
    """The three names mean something else there; applied again, and after another, they hold."""
    folder = written(HEAD)
    (folder / "1" / "config.json").write_text('{"model_type": "llama"}')
    for other in (name, *TEXT_PRESETS, name, name):
        code, out, err = ge_backend("preset", folder, other)
        assert (code, err) == (0, "")
    assert f"tiny: {name}, nothing to change" in out
    given = {key: value.string_value for key, value in read(folder).parameters.items()}
    choices = {key: choice.value for key, choice in TEXT_PRESETS[name].choices.items()}
    assert {**{key: DEFAULTS[key] for key in choices}, **given} == choices
    assert not read(folder).instance_group


def test_a_checkpoint_of_vllm_has_no_presets(written, ge_backend):
    """Its settings are vLLM's arguments, which no preset knows."""
    folder = written(HEAD + 'parameters { key: "engine" value { string_value: "vllm" } }\n')
    (folder / "1" / "config.json").write_text('{"model_type": "llama"}')
    code, _, err = ge_backend("preset", folder, "low_latency")
    assert code == 2
    assert "run by vLLM, which has settings of its own" in err


def test_a_dry_run_writes_nothing(written, ge_backend):
    """It says the same."""
    folder = written(STYLES["long"])
    dry = ge_backend("preset", folder, "high_throughput", "--dry-run")
    assert (folder / "config.pbtxt").read_text() == STYLES["long"]
    assert ge_backend("preset", folder, "high_throughput") == dry


def test_a_model_that_did_not_batch_does(written, ge_backend):
    """Without `dynamic_batching` every request is a batch of its own."""
    folder = written(STYLES["no blocks"])
    assert not read(folder).HasField("dynamic_batching")
    out = ge_backend("preset", folder, "high_throughput")[1]
    assert read(folder).HasField("dynamic_batching")
    assert "-      0  dynamic_batching" in out


SEQUENCES = HEAD + BATCHED + "sequence_batching { direct { } }\n"
FUSED = HEAD + 'parameters { key: "fuse" value { string_value: "whole" } }\n'
TWO_GROUPS = HEAD + "instance_group [ { count: 1 gpus: 0 }, { count: 3 gpus: 1 } ]\n"
LONG_ROWS = HEAD + 'parameters { key: "buckets.length" value { string_value: "16,4096" } }\n'
LONG_TEXTS = HEAD + 'parameters { key: "max_length" value { string_value: "2048" } }\n'
TWO_AXES = HEAD + (
    'input { name: "x" data_type: TYPE_FP32 dims: [ -1, -1, 3 ] allow_ragged_batch: true }\n'
    'parameters { key: "buckets.height" value { string_value: "16" } }\n'
)
DECLARED = 'input { name: "x" data_type: TYPE_FP32 dims: [ %s ] }\n'
DECLARED += 'output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }\n'
FIXED = HEAD + "max_batch_size: 8\ndynamic_batching { }\n" + DECLARED % "3, 224, 224"
UNPADDED = HEAD + "max_batch_size: 8\ndynamic_batching { }\n" + DECLARED % "3, -1, -1"
ALONE = HEAD + DECLARED % "3, -1, -1"
LISTED = HEAD + 'parameters { key: "buckets" value { string_value: "file:b.txt" } }\n'


@pytest.mark.parametrize(
    ("config", "left_out", "why"),
    [
        (SEQUENCES, {INSTANCES, "max_queue_size"}, "sequence_batching"),
        (
            FUSED,
            {INSTANCES, "max_queue_size", "max_elements", "priority"},
            "each step of the ensemble 'whole'",
        ),
        (TWO_GROUPS, {INSTANCES}, "several groups"),
        (LONG_ROWS, {"max_elements"}, "4096 elements, more than 1024"),
        (LONG_TEXTS, {"max_elements"}, "2048 elements, more than 1024"),
        (TWO_AXES, {"max_elements"}, "8192 elements, more than 1024"),
        (LISTED, {"max_elements"}, "listed whole"),
        (FIXED, {"max_elements"}, "no size of the model is padded"),
        (UNPADDED, {"max_elements"}, "no size of the model is padded"),
        (ALONE, {"max_elements"}, "max_batch_size is 0"),
    ],
)
def test_what_does_not_apply_is_left_out_and_said(written, ge_backend, config, left_out, why):
    """The rest is applied."""
    folder = written(config)
    code, out, err = ge_backend("preset", folder, "low_latency")
    assert (code, err) == (0, "")
    lines = [line for line in out.splitlines() if line.startswith("left out: ")]
    assert {line.split(": ")[1] for line in lines} == left_out
    assert all(why in line for line in lines)
    before = values_in(text_format.Parse(config, model_config_pb2.ModelConfig()))
    expected = {key: before[key] if key in left_out else of("low_latency")[key] for key in KEYS}
    assert values_in(read(folder)) == expected


@pytest.mark.parametrize(("device", "count"), [("cpu", "1"), ("npu:0", "2")])
def test_a_fused_ensemble_on_a_cpu_keeps_its_one_instance(
    written, ge_backend, monkeypatch, device, count
):
    """Which runs the steps itself; a preset of one instance goes back to that."""
    folder = written(FUSED)
    monkeypatch.setenv("GE_DEVICE", device)
    ge_backend("preset", folder, "high_throughput")
    assert values_in(read(folder))[INSTANCES] == count
    (folder / "config.pbtxt").write_text(f"{FUSED}instance_group [ {{ count: 3 }} ]\n")
    ge_backend("preset", folder, "memory_constrained")
    assert values_in(read(folder))[INSTANCES] == "1"


WORDS = HEAD + BATCHED.replace("FP32 dims: [ -1 ]", "INT64 dims: [ -1 ]")
SOUND = HEAD + BATCHED + 'parameters { key: "max_length" value { string_value: "512" } }\n'


@pytest.mark.parametrize(
    ("config", "noted"),
    [(HEAD + BATCHED, True), (HEAD, True), (WORDS, False), (SOUND, False)],
)
def test_what_a_limit_on_elements_means_for_wide_inputs_is_said(written, ge_backend, config, noted):
    """Where config.pbtxt does not tell how long rows of real numbers are, or that they are words."""
    out = ge_backend("preset", written(config), "low_latency")[1]
    note = "note: max_elements: rows of more than 1024 elements, as images and sounds have, run one"
    assert (note in out) == noted


def test_a_queue_policy_of_the_host_is_pointed_out(written, ge_backend):
    """It is the user's own, and makes the server stall."""
    policy = "dynamic_batching { default_queue_policy { max_queue_size: 8 } }\n"
    folder = written(HEAD + BATCHED + policy)
    out = ge_backend("preset", folder, "low_latency")[1]
    assert "note: dynamic_batching has default_queue_policy" in out
    assert read(folder).dynamic_batching.default_queue_policy.max_queue_size == 8


def test_an_ensemble_is_refused(written, ge_backend):
    """The steps have the settings."""
    steps = "".join(f'step [ {{ model_name: "{name}" model_version: -1 }} ] ' for name in "abab")
    folder = written(f'platform: "ensemble"\nensemble_scheduling {{ {steps} }}\n')
    code, out, err = ge_backend("preset", folder, "low_latency")
    assert (code, out) == (2, "")
    assert err.endswith(
        "is an ensemble and has no settings of its own; apply the preset to its steps: a, b\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fast",), "preset 'fast' is unknown; known are high_throughput, low_latency, memory_"),
        ((), "expected a model's folder and the name of a preset, or --list"),
    ],
)
def test_a_name_that_is_none(written, ge_backend, arguments, message):
    """The known ones are listed."""
    code, _, err = ge_backend("preset", written(HEAD), *arguments)
    assert code == 2
    assert message in err


def test_a_folder_that_is_no_model_and_another_backend(written, tmp_path, ge_backend):
    """As every command says it."""
    assert "expected the folder of one model" in ge_backend("preset", tmp_path, "low_latency")[2]
    other = written('backend: "python"\n')
    assert "backend is 'python', expected 'ge'" in ge_backend("preset", other, "low_latency")[2]


def test_the_list_names_every_value_and_reason(ge_backend):
    """A table of all presets, then why."""
    code, out, _ = ge_backend("preset", "--list")
    assert code == 0
    header, *rows = out.split("\n\n")[0].splitlines()
    assert header.split() == [*PRESETS, "default", "setting"]
    assert [row.split() for row in rows] == [
        [*(preset.choices[key].value for preset in PRESETS.values()), DEFAULTS[key], key]
        for key in KEYS
    ]
    for preset in (*PRESETS.values(), *TEXT_PRESETS.values()):
        assert f"{preset.name}: {preset.whom}" in out
        assert all(choice.why in out for choice in preset.choices.values())
