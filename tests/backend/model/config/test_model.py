"""What is configured is what is read: precedence, unknown keys, bad values, the host's own fields."""

import contextlib
import dataclasses
import os
import pwd
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ge_backend.errors import ConfigError
from ge_backend.model.config.cpp_ge_keys import CPP_GE_KEYS
from ge_backend.model.config.model import BATCH_INPUT_KINDS, MachineConfig, ModelConfig, QueuePolicy
from ge_backend.model.config.settings import (
    FAMILIES,
    GENERATION_SETTINGS,
    HOST_KEYS,
    HOST_PREFIXES,
    MACHINE_SETTINGS,
    OF_GRAPHS,
    REMOVED,
    SETTINGS,
    without_effect,
)
from ge_backend.shapes.buckets.strategies import MAX_SIZE

DIRECTORY = Path("/models/m/1")


def read(*, environment=None, parameters=None, **fields):
    """Return the configuration of a model with these fields of config.pbtxt."""
    texts = {key: {"string_value": value} for key, value in (parameters or {}).items()}
    config = {"name": "m", "parameters": texts, **fields}
    return ModelConfig.read(config, directory=DIRECTORY, version="1", environment=environment or {})


def machine(**environment):
    return MachineConfig.read(environment, owner_pid=77)


def test_an_empty_configuration_is_all_defaults():
    """A model that says nothing is served on the CPU, padded, warmed up."""
    config = read()
    assert (config.device, config.executor, config.precision) == ("cpu", "auto", "origin")
    assert (config.warmup, config.concatenate) == (True, False)
    assert (config.inputs, config.buckets, config.instances) == ((), {}, 1)
    assert config.directory == DIRECTORY


def test_nothing_said_is_one_instance_on_the_cpu():
    """And nothing to note."""
    found = read()
    assert (found.options, found.placement.devices, found.instances) == ((), ("cpu",), 1)
    assert (found.declared_buckets, found.notes) == ((), ())


def test_instances_of_all_groups_count():
    """A group without a number is one."""
    assert read(instance_group=[{"count": 2}, {"kind": "KIND_CPU"}]).instances == 3


def test_devices_that_no_instance_with_sequences_takes_are_noted():
    """Else nobody sees that one of two cards is idle; without sequences batches are spread."""
    given = {"parameters": {"device_ids": "4,5"}, "instance_group": [{"count": 1}]}
    (note,) = read(**given, sequence_batching={}).notes
    assert note.startswith("npu:5: not used")
    assert "add up to 2" in note
    assert read(**given).notes == ()
    given["instance_group"] *= 2
    assert read(**given, sequence_batching={}).notes == ()


def test_what_is_a_danger_in_sequences_is_noted():
    """With what has no effect, so that it is in the log at load."""
    corrid = {"name": "I", "control": [{"kind": "CONTROL_SEQUENCE_CORRID"}]}
    (note,) = read(sequence_batching={"control_input": [corrid]}).notes
    assert note.startswith("control input 'I' takes the correlation id as a number")


def test_fields_of_the_host_that_mislead_are_noted():
    """A configuration brought along from a C++ backend says what this one does not do."""
    notes = read(
        optimization={"graph": {"level": 1}}, dynamic_batching={"priority_levels": 2}
    ).notes
    assert [note.partition(":")[0] for note in notes] == [
        "optimization.graph",
        "dynamic_batching has priority_levels",
    ]


def test_the_example_of_the_cpp_backend_runs_where_the_machine_says():
    """Its cards are NPUs by themselves, and GE_DEVICE sends it elsewhere."""
    given = {"device_ids": "4,5", "ge.aicoreNum": "12|10"}
    found = read(parameters=given)
    assert found.placement.devices == ("npu:4", "npu:5")
    assert (found.options, found.notes) == ((("ge.aicoreNum", "12|10"),), ())
    found = read(parameters=given, environment={"GE_DEVICE": "cpu"})
    assert found.placement.devices == ("cpu",)
    assert len(found.notes) == 2
    assert "device_ids '4,5' have no effect" in found.notes[0]
    assert "ge.aicoreNum: no effect on cpu" in found.notes[1]


def test_options_of_engines_that_will_not_run_are_noted():
    """A misspelt one would be missed by nobody; those of an engine that may run are its affair."""
    given = {
        "npu.timeouts": "5", "torch.mode": "foo", "vllm.foo": "1",
        "tokenizer.strip": "true", "atc.x": "1",
    }  # fmt: skip
    (note,) = read(parameters=given).notes
    assert note.startswith("atc.x, npu.timeouts, torch.mode, vllm.foo: no effect on cpu")
    (note,) = read(parameters=given, environment={"GE_DEVICE": "npu"}).notes
    assert note.startswith("tokenizer.strip, vllm.foo: no effect on npu")
    (note,) = read(parameters={**given, "engine": "vllm"}, environment={"GE_DEVICE": "cuda"}).notes
    assert note.startswith("atc.x, npu.timeouts, tokenizer.strip: no effect on cuda")


def test_an_input_that_clients_have_to_send_is_not_made():
    """`generate.<input>` says nothing of it then, and the log says so."""
    tensor = {"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}
    given = {"parameters": {"generate.x": "zeros", "generate.y": "mask"}}
    (note,) = read(**given, input=[tensor]).notes
    assert note.startswith("generate.x: no effect")
    assert "optional: true" in note
    assert read(**given, input=[{**tensor, "optional": True}]).notes == ()


@pytest.mark.parametrize("fuse", ["", "whole"])
def test_a_parameter_that_was_removed_is_noted(fuse):
    """A model that still has it loads, whatever it says, and its log tells what became of it."""
    found = read(parameters={"warmup_repeats": "many", "early_reply": "never", "fuse": fuse})
    early, repeats = found.notes
    assert early.startswith("early_reply: there is no such parameter any more: requests whose")
    assert (
        repeats
        == f"warmup_repeats: there is no such parameter any more: {REMOVED['warmup_repeats']}"
    )


def test_what_was_removed_is_no_setting():
    """A name has one meaning: it works, or its model's log says what became of it."""
    assert REMOVED.keys().isdisjoint(setting.key for setting in (*SETTINGS, *GENERATION_SETTINGS))


def test_what_a_fused_model_leaves_to_its_steps_is_noted():
    """Device, precision and what is padded or made are each step's own; its queue is not."""
    tensor = {"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}
    own = {
        "fuse": "whole", "executor": "inline", "max_queue_size": "4",
        "default_timeout_microseconds": "5", "score_activation": "identity", "TRITON_X": "1", "EXECUTION_ENV_PATH": "x",
    }  # fmt: skip
    assert read(parameters=own, input=[tensor]).notes == ()
    others = {
        "device": "cuda:0", "precision": "bf16", "learn": "serve", "buckets.length": "4",
        "generate.x": "zeros", "npu.timeouts": "5", "lanes": "3", "static_model": "1",
        "graph.ge.inputShape": "x:-1",
    }  # fmt: skip
    (note,) = read(parameters={**own, **others}, input=[tensor]).notes
    assert note.startswith(f"{', '.join(sorted(others))}: no effect on a fused model")


def test_blocks_are_spread_over_the_devices():
    """By the number of instances, as in the C++ backend."""
    given = {"device_ids": "0,1", "instance_exec_blocks": "2"}
    assert read(parameters=given, instance_group=[{"count": 4}]).lanes == 4


def test_gears_are_found():
    """They are no options any more."""
    given = {"graph.ge.inputShape": "x:-1,3", "graph.ge.dynamicDims": "1;2"}
    found = read(parameters=given)
    assert (found.options, found.declared_buckets) == ((), ({"x": (1, 3)}, {"x": (2, 3)}))


def test_dynamic_batching_is_seen():
    """A block of the host's, for which `static_model` leaves no room."""
    assert read(parameters={"static_model": "1"}).buckets == {"rows": "1"}
    with pytest.raises(ConfigError, match="dynamic_batching"):
        read(parameters={"static_model": "1"}, dynamic_batching={})


def test_a_configuration_is_frozen():
    """Nobody changes it after it was read."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        read().executor = "inline"


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s.variable], ids=lambda s: s.key)
def test_parameters_go_before_the_environment_and_this_before_defaults(setting):
    """Each setting with a variable follows parameters, then GE_*, then its default."""
    examples = {"device": ("null", "cpu"), "lanes": ("3", "5")}
    first, second = setting.choices[:2] or examples[setting.key]
    environment = {setting.variable: first}
    given_parameters = {setting.key: second}

    def value(**changes):
        config = read(**changes)
        if setting.key == "warmup":
            when = "background" if config.warmup_background else "on"
            return when if config.warmup else "off"
        return str(getattr(config, setting.key))

    assert value() == setting.default
    assert value(environment=environment) == first
    assert value(parameters=given_parameters) == second
    assert value(environment=environment, parameters=given_parameters) == second
    assert value(environment={setting.variable: ""}) == setting.default


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s.choices], ids=lambda s: s.key)
def test_a_value_that_is_no_choice_is_refused_with_the_choices(setting):
    """The message names the model, the parameter, the value, and every choice."""
    with pytest.raises(ConfigError) as caught:
        read(parameters={setting.key: "sideways"})
    text = str(caught.value)
    assert all(word in text for word in ("'m'", setting.key, "sideways", *setting.choices))


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s.choices], ids=lambda s: s.key)
def test_every_choice_is_accepted_and_the_default_is_one(setting):
    """What the documentation lists can be written, also with spaces around it."""
    assert setting.default in setting.choices
    for choice in setting.choices:
        read(parameters={setting.key: f" {choice} "})


def test_a_bad_value_in_the_environment_names_the_variable():
    """Who has to change what is clear from the message."""
    with pytest.raises(ConfigError, match="GE_EXECUTOR"):
        read(environment={"GE_EXECUTOR": "sideways"})


def test_every_setting_and_family_can_be_written():
    """No key of the tables is refused as unknown, and each has a text for the documentation."""
    defaults = {setting.key: setting.default for setting in SETTINGS}
    read(parameters=defaults)
    assert all(row.help for row in (*SETTINGS, *FAMILIES, *MACHINE_SETTINGS))


@pytest.mark.parametrize("key", ["devise", "pad", "pad.", "buckets.", "pads.x", ".", "", "Device"])
def test_an_unknown_parameter_is_refused_with_the_known_ones(key):
    """A misspelt key does not pass in silence."""
    with pytest.raises(ConfigError) as caught:
        read(parameters={key: "1"})
    text = str(caught.value)
    assert repr(key) in text
    assert "device" in text
    assert "pad.<tensor>" in text


@pytest.mark.parametrize(
    ("key", "meant"),
    [("max_batch", "max_length"), ("bucket.rows", "buckets"), ("devise", "device")],
)
def test_of_the_known_parameters_those_of_similar_names_come_first(key, meant):
    """Of fifty names the one that was meant is not looked for."""
    with pytest.raises(ConfigError, match=f"unknown; known are {meant}"):
        read(parameters={key: "1"})


def test_all_unknown_parameters_are_named_at_once():
    """Whoever comes from another backend removes them in one go, not one for each start."""
    keys = ("intra_op_thread_count", "device", "execution_mode", "100%")
    expected = "'100%', 'execution_mode', 'intra_op_thread_count' are unknown; known are"
    with pytest.raises(ConfigError, match=expected) as raised:
        read(parameters=dict.fromkeys(keys, "1"))
    assert "docs/from_cpp_backends.md" in str(raised.value)


@pytest.mark.parametrize("key", [*HOST_KEYS, "TRITON_ANYTHING", "MAX_BATCH_DELAY"])
def test_the_hosts_own_parameters_are_left_to_it(key):
    """Keys that the host reads are no mistakes."""
    assert read(parameters={key: "1"}) == read()


@given(st.text(min_size=1, max_size=10))
@example("swap_bytes")
@example("device")
@example("npu.")
@example("dump_data")
def test_an_unknown_name_is_a_configuration_error_whatever_it_is(key):
    """No key crashes the reading: it is known or it is refused."""
    rows = (*SETTINGS, *GENERATION_SETTINGS, *CPP_GE_KEYS)
    known = {*HOST_KEYS, *REMOVED, *(row.key for row in rows)}
    families = tuple(family.prefix for family in FAMILIES)
    if key in known or key.startswith((*HOST_PREFIXES, *families)):
        with contextlib.suppress(ConfigError):
            read(parameters={key: "1"})
        return
    with pytest.raises(ConfigError, match="is unknown"):
        read(parameters={key: "1"})


def test_what_is_for_the_other_kind_of_model_is_known():
    """Whoever bounds the queue of a text generator by a graph's setting reads that in the log."""
    keys = ["precision", "max_queue_size", "max_elements", "block_size", "buckets.rows"]
    assert without_effect(keys, text=True) == ["max_elements", "max_queue_size"]
    assert without_effect(keys, text=False) == ["block_size"]
    of_graphs = {"overflow", "ragged", "max_length", "learn", "default_timeout_microseconds"}
    assert of_graphs | {"max_queue_size", "max_elements"} == OF_GRAPHS


NUMBERS = ("threads", "max_length", "max_elements", "max_graphs")
QUEUE = ("max_queue_size", "default_timeout_microseconds")


@pytest.mark.parametrize("key", [*NUMBERS, *QUEUE])
@pytest.mark.parametrize("value", ["-1", "1.5", "many", "", "1e3", "0x10", "1" * 19, "1" * 5000])
def test_a_count_must_be_a_whole_number(key, value):
    """The message names the key and the value."""
    with pytest.raises(ConfigError, match=f"{key}.*{value[:40]}"):
        read(parameters={key: value})


def test_a_count_of_a_variable_names_the_variable():
    """Nobody would find it in the model's parameters; those come first."""
    environment = {"GE_LANES": "abc"}
    with pytest.raises(ConfigError, match="GE_LANES is 'abc'; expected a whole number") as told:
        read(environment=environment)
    assert "parameter" not in str(told.value)
    assert read(environment=environment, parameters={"lanes": "3"}).lanes == 3
    with pytest.raises(ConfigError, match="parameter 'lanes' is 'x'"):
        read(environment=environment, parameters={"lanes": "x"})


@pytest.mark.parametrize(
    ("key", "most"),
    [("threads", 4096), ("lanes", 1024), ("max_length", MAX_SIZE)],
)
def test_what_a_machine_or_a_message_cannot_hold_is_refused(key, most):
    """The bound is named, and where the setting has one in its help it is there too."""
    assert getattr(read(parameters={key: f"{most}"}), key) == most
    with pytest.raises(ConfigError, match=rf"'{key}' is '{most + 1}'.* from [01] to {most}$"):
        read(parameters={key: f"{most + 1}"})
    help_of = {setting.key: setting.help for setting in SETTINGS}
    assert key == "max_length" or f"At most {most}" in help_of[key]


@pytest.mark.parametrize("key", NUMBERS)
def test_a_count_is_read(key):
    """What is written is what is read."""
    assert getattr(read(parameters={key: "7"}), key) == 7


def test_a_length_cannot_be_zero():
    """It would mean nothing."""
    with pytest.raises(ConfigError, match="from 1 to"):
        read(parameters={"max_length": "0"})


def test_families_are_read_by_the_name_after_the_dot():
    """Names with further dots belong to the tensor, not to the key."""
    config = read(
        parameters={
            "buckets.rows": "1,2,4",
            "pad.input.ids": "-1.5",
            "generate.attention_mask": "mask",
            "axes.y": "batch, length,384",
        }
    )
    assert config.buckets == {"rows": "1,2,4"}
    assert config.pad == {"input.ids": -1.5}
    assert config.generate == {"attention_mask": "mask"}
    assert config.axes == {"y": ("batch", "length", "384")}


def test_options_of_the_engine_keep_their_whole_keys():
    """As `atc` or the C++ GE backend calls them; whether it knows them is the engine's to say."""
    options = {
        "session.ge.exec.precision_mode_v2": "fp16",
        "ge.aicoreNum": "12|10",
        "atc.op_select_implmode": "high_precision",
    }
    assert read(parameters=options).options == tuple(sorted(options.items()))
    assert read().options == ()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("pad.x", "zero", "pad.x"),
        ("generate.x", "noise", "mask, lengths, positions, zeros, lengths:<axis>, or a number"),
        ("buckets", "sizes.json", "file:NAME"),
        ("buckets", "file:", "file:NAME"),
    ],
)
def test_a_bad_value_in_a_family_is_refused(key, value, words):
    """The message tells what can be written."""
    with pytest.raises(ConfigError, match=words):
        read(parameters={key: value})


def test_a_bucket_file_lies_beside_the_version_folders():
    """`file:NAME` is relative to the model's folder, so that every version finds it."""
    assert read(parameters={"buckets": "file:buckets.json"}).bucket_file == Path(
        "/models/m/buckets.json"
    )
    assert read().bucket_file is None


def test_tensors_are_read_as_the_host_gives_them():
    """Dims come as strings or numbers; reshape tells what the graph sees."""
    config = read(
        max_batch_size="8",
        input=[
            {"name": "x", "data_type": "TYPE_INT64", "dims": ["-1"], "allow_ragged_batch": True},
            {
                "name": "s",
                "data_type": "TYPE_STRING",
                "dims": ["1"],
                "reshape": {"shape": []},
                "optional": True,
            },
        ],
        output=[{"name": "y", "data_type": "TYPE_BF16", "dims": [-1, 384]}],
    )
    x, s = config.inputs
    assert (x.name, x.dtype.name, x.dims, x.graph_dims) == ("x", "INT64", (-1,), (-1,))
    assert (x.ragged, x.optional) == (True, False)
    assert (s.dtype.name, s.dims, s.graph_dims, s.optional) == ("BYTES", (1,), (), True)
    assert config.outputs[0].dims == (-1, 384)
    assert config.max_batch_size == 8


@pytest.mark.parametrize("key", ["name", "data_type"])
@pytest.mark.parametrize("kind", ["input", "output"])
def test_a_tensor_that_is_not_wholly_declared_is_refused(kind, key):
    """Before the host says so; other models of a repository are still read."""
    block = {"name": "x", "data_type": "TYPE_FP32", "dims": [4]}
    del block[key]
    with pytest.raises(ConfigError, match=rf"model 'm': an {kind} has no {key}; add it beside"):
        read(**{kind: [block]})


def test_an_unknown_data_type_names_the_model():
    """The error of a tensor is the error of its model."""
    with pytest.raises(ConfigError, match=r"'m'.*TYPE_FP8"):
        read(input=[{"name": "x", "data_type": "TYPE_FP8", "dims": [1]}])


def test_instances_are_counted_over_all_groups():
    """Several groups add up; none is one instance."""
    assert read(instance_group=[{"count": 2}, {"count": "3"}, {}]).instances == 6
    assert read(instance_group=[]).instances == 1


@pytest.mark.parametrize("kind", BATCH_INPUT_KINDS)
def test_every_kind_of_batch_input_is_read(kind):
    """All of the host's kinds are known."""
    block = {
        "kind": kind,
        "target_name": ["counts"],
        "data_type": "TYPE_INT32",
        "source_input": ["x"],
    }
    (batch_input,) = read(batch_input=[block]).batch_inputs
    assert (batch_input.kind, batch_input.names, batch_input.sources) == (kind, ("counts",), ("x",))
    assert batch_input.dtype.name == "INT32"


def test_an_unknown_kind_of_batch_input_is_refused():
    """The message lists the known ones."""
    with pytest.raises(ConfigError, match="BATCH_ITEM_SHAPE_FLATTEN"):
        read(batch_input=[{"kind": "BATCH_MOOD", "target_name": ["x"]}])


@pytest.mark.parametrize(
    ("ragged", "fields", "expected"),
    [
        ("auto", {}, False),
        ("auto", {"batch_input": [{"target_name": ["c"]}]}, True),
        ("auto", {"batch_output": [{"target_name": ["y"]}]}, True),
        ("pad", {"batch_input": [{"target_name": ["c"]}]}, False),
        ("concatenate", {}, True),
    ],
)
def test_ragged_inputs_are_concatenated_where_the_configuration_describes_the_batch(
    ragged, fields, expected
):
    """`auto` follows the host's own blocks; the other words decide themselves."""
    assert read(parameters={"ragged": ragged}, **fields).concatenate is expected


def test_a_machine_without_settings_has_defaults():
    """The sockets of each server lie in a folder of its own, and executors stay three seconds."""
    config = machine()
    assert config.runtime_dir == Path(tempfile.gettempdir()) / f"ge-backend-{os.getuid()}-77"
    assert config.python
    assert (config.library_path, config.linger_s) == ("", 3.0)


def test_a_machine_without_a_temporary_folder_needs_a_folder_for_sockets(monkeypatch):
    """As with a root that is mounted read-only; it is not looked for where the setting is given."""

    def nowhere():
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    assert machine(GE_RUNTIME_DIR="/run/ge").runtime_dir == Path("/run/ge")
    with pytest.raises(ConfigError, match=r"No usable temporary .*; set GE_RUNTIME_DIR"):
        machine()


def test_a_machine_is_set_by_variables():
    """Every machine-wide setting is a variable."""
    config = machine(
        GE_RUNTIME_DIR="/run/ge",
        GE_PYTHON="/opt/python",
        GE_LIBRARY_PATH="/opt/lib",
        GE_EXECUTOR_LINGER_S="0.5",
    )
    assert config.runtime_dir == Path("/run/ge")
    assert (config.python, config.library_path, config.linger_s) == ("/opt/python", "/opt/lib", 0.5)


def test_a_linger_time_that_is_no_number_is_refused():
    """The message names the variable."""
    with pytest.raises(ConfigError, match=r"GE_EXECUTOR_LINGER_S.*soon"):
        machine(GE_EXECUTOR_LINGER_S="soon")


def test_the_pool_has_a_size_per_device():
    """Without the variable there is no pool; what is no size is refused with its name."""
    assert machine().workspace_pool == {"": 0}
    pool = machine(GE_WORKSPACE_POOL="npu:0=12GiB,512MiB").workspace_pool
    assert pool == {"npu:0": 12 << 30, "": 512 << 20}
    with pytest.raises(ConfigError, match=r"GE_WORKSPACE_POOL.*much"):
        machine(GE_WORKSPACE_POOL="much")


def test_priorities_are_tritons():
    """1 is the highest; the default is between, so that a model can be put before all others."""
    assert [read(parameters={"priority": text}).priority for text in "123"] == [1, 2, 3]
    assert read().priority == 2
    with pytest.raises(ConfigError, match="expected one of 1, 2, 3"):
        read(parameters={"priority": "0"})


def test_a_queue_with_bounds_is_read():
    """Either bound makes one; a model with sequences may have none."""
    assert read().queue is None
    assert read(parameters={"max_queue_size": "9"}).queue.max_size == 9
    with pytest.raises(ConfigError, match="do not go with sequence_batching"):
        read(parameters={"max_queue_size": "9"}, sequence_batching={"direct": {}})


def test_the_cache_can_be_moved_and_turned_off():
    """The cache follows GE_CACHE_DIR, then XDG_CACHE_HOME, then the home folder."""
    assert machine(GE_CACHE_DIR="off").cache_dir is None
    assert machine(GE_CACHE_DIR="/c").cache_dir == Path("/c")
    assert machine(XDG_CACHE_HOME="/x").cache_dir == Path("/x/ge-backend")
    assert machine().cache_dir == Path.home() / ".cache" / "ge-backend"
    # https://specifications.freedesktop.org/basedir-spec/latest/: a relative path is to be ignored.
    assert machine(XDG_CACHE_HOME="x").cache_dir == machine().cache_dir


@pytest.mark.parametrize("home", ["/", None])
def test_a_user_without_a_home_keeps_nothing(monkeypatch, home):
    """Containers run as any user id, with no name and HOME unset or /: that is no error."""

    def nobody(uid):
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.delenv("HOME", raising=False)
    if home is not None:
        monkeypatch.setenv("HOME", home)
    assert machine().cache_dir is None
    assert machine(XDG_CACHE_HOME="/x").cache_dir == Path("/x/ge-backend")


def test_every_variable_begins_alike_and_is_used_once():
    """Names of variables are GE_*, and no two settings share one."""
    variables = [s.variable for s in (*SETTINGS, *MACHINE_SETTINGS) if s.variable]
    assert all(variable.startswith("GE_") for variable in variables)
    assert len(set(variables)) == len(variables)


def test_the_example_of_the_cpp_ge_backend_is_read():
    """`device_ids` alone are NPUs; GE_DEVICE, trimmed, sends it elsewhere, and the log says so."""
    config = read(parameters={"device_ids": "4,5"}, max_batch_size=64)
    assert (config.device, config.placement.devices) == ("npu:4", ("npu:4", "npu:5"))
    config = read(parameters={"device_ids": "4,5"}, environment={"GE_DEVICE": " cpu "})
    assert (config.device, len(config.notes)) == ("cpu", 1)


def test_gears_and_lanes_of_the_cpp_ge_backend_are_read():
    """In our words; what is for the compiler stays an option."""
    config = read(
        parameters={
            "device_ids": "0",
            "device_exec_blocks": "4",
            "graph.ge.inputShape": "x:-1,3",
            "graph.ge.dynamicDims": "1;2",
            "ge.aicoreNum": "12|10",
        }
    )
    assert (config.lanes, config.options) == (4, (("ge.aicoreNum", "12|10"),))
    assert config.declared_buckets == ({"x": (1, 3)}, {"x": (2, 3)})


def test_without_bounds_there_is_no_queue():
    """Requests wait in the host then; a model with sequences says nothing of it."""
    assert QueuePolicy.of(0, 0, sequences=False) is None
    assert QueuePolicy.of(0, 0, sequences=True) is None


@pytest.mark.parametrize(("size", "timeout"), [(8, 0), (0, 250), (3, 9)])
def test_either_bound_makes_a_queue(size, timeout):
    """0 leaves the other alone."""
    assert QueuePolicy.of(size, timeout, sequences=False) == QueuePolicy(
        max_size=size, timeout_us=timeout
    )


def test_sequences_keep_the_hosts_order():
    """The steps of a sequence must not be overtaken, so they do not wait here."""
    with pytest.raises(ConfigError, match="sequence_batching"):
        QueuePolicy.of(8, 0, sequences=True)
