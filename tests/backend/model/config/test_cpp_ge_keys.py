"""Configurations of the C++ GE backend mean here what they mean there, or are refused with a reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_backend.errors import ConfigError
from ge_backend.model.config.cpp_ge_keys import CPP_GE_KEYS, translate

CIRCUMSTANCES = {"kind": "npu", "devices": 1, "instances": 1, "dynamic_batching": False}


def translated(parameters, **circumstances):
    return translate(parameters, **{**CIRCUMSTANCES, **circumstances})


def test_other_keys_are_left_alone():
    """Ours, and options of the compiler, which goes by the same names."""
    own = {
        "device": "npu",
        "device_ids": "4,5",
        "buckets.rows": "1,2",
        "ge.aicoreNum": "12|10",
        "session.ge.exec.precision_mode_v2": "fp16",
        "global.ge.opSelectImplmode": "high_precision",
    }
    assert translated(own).parameters == own
    assert (translated(own).declared_buckets, translated(own).notes) == ((), ())


# Streams


@pytest.mark.parametrize(
    ("parameters", "circumstances", "lanes"),
    [
        ({"device_exec_blocks": "8"}, {}, "8"),
        ({"device_exec_blocks": "8", "instance_exec_blocks": "3"}, {"instances": 64}, "8"),
        ({"instance_exec_blocks": "1"}, {"instances": 8, "devices": 2}, "4"),
        ({"instance_exec_blocks": "2"}, {"instances": 3, "devices": 4}, "2"),
    ],
)
def test_blocks_become_lanes(parameters, circumstances, lanes):
    """So many runs at once on each card: what is said for cards, else what instances need."""
    assert translated(parameters, **circumstances).parameters == {"lanes": lanes}


def test_blocks_say_nothing_to_a_cpu():
    """It has no streams; the log says so."""
    found = translated({"device_exec_blocks": "8", "instance_exec_blocks": "2"}, kind="cpu")
    assert found.parameters == {}
    assert "no effect on a cpu" in found.notes[0]


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "1025", "1" * 5000])
@pytest.mark.parametrize("key", ["device_exec_blocks", "instance_exec_blocks"])
def test_blocks_are_numbers(key, value):
    """Up to what a device may have: each is a thread, and a stream of the card."""
    with pytest.raises(ConfigError, match=f"{key}.* from 1 to 1024"):
        translated({key: value})


def test_blocks_of_all_instances_are_bounded_together():
    """The message names the key that is there, and not what becomes of it."""
    with pytest.raises(ConfigError, match=r"'instance_exec_blocks' is 600.* 1200 .*at most 1024"):
        translated({"instance_exec_blocks": "600"}, instances=2)


def test_lanes_are_said_once():
    """In our word or in theirs."""
    with pytest.raises(ConfigError, match="keep one"):
        translated({"device_exec_blocks": "2", "lanes": "3"})


# One fixed shape


@pytest.mark.parametrize("own", [{}, {"buckets.sequence": "8,16"}])
def test_a_static_model_runs_row_by_row(own):
    """Whatever is said of other axes."""
    found = translated({"static_model": "1", **own})
    assert (found.parameters, found.notes) == ({"buckets.rows": "1", **own}, ())
    assert translated({"static_model": "0", **own}).parameters == own


@pytest.mark.parametrize(
    "own",
    [
        {"buckets.rows": "4"},
        {"buckets": "file:b.txt"},
        {"ge.inputShape": "x:-1", "ge.dynamicDims": "2"},
    ],
)
def test_a_static_model_whose_rows_are_said_has_these(own):
    """The log says that it has no effect; gears are fixed shapes, too."""
    found, alone = translated({"static_model": "1", **own}), translated(own)
    assert found.parameters == alone.parameters
    assert found.declared_buckets == alone.declared_buckets
    (note,) = found.notes
    assert note.startswith(f"static_model has no effect beside {[*own][-1]}")


def test_a_static_model_and_dynamic_batching_exclude_each_other():
    """There too; the message says that nothing is lost without it."""
    with pytest.raises(ConfigError, match="remove static_model"):
        translated({"static_model": "1"}, dynamic_batching=True)
    assert translated({"static_model": "0"}, dynamic_batching=True).parameters == {}
    with pytest.raises(ConfigError, match="expected 0 or 1"):
        translated({"static_model": "yes"})


# Gears


@pytest.mark.parametrize("level", ["", "graph.", "session.", "global."])
def test_gears_of_the_batch(level):
    """The values fill the -1, whatever level the keys were given for."""
    found = translated(
        {
            f"{level}ge.inputShape": "image:-1,3,224,224",
            f"{level}ge.dynamicDims": "1;2;4",
            f"{level}ge.dynamicNodeType": "1",
        }
    )
    assert found.parameters == {}
    assert found.declared_buckets == tuple({"image": (rows, 3, 224, 224)} for rows in (1, 2, 4))


def test_gears_of_several_inputs():
    """In the order of the inputs, each as many values as it has -1. Source: GE's manual."""
    found = translated(
        {
            "graph.ge.inputShape": "data:1,1,40,-1;label:1,-1;mask:-1,-1;scale:",
            "graph.ge.dynamicDims": "20,20,1,1;40,40,2,2;80,60,4,4",
        }
    )
    assert [
        (gear["data"], gear["label"], gear["mask"], gear["scale"])
        for gear in found.declared_buckets
    ] == [
        ((1, 1, 40, 20), (1, 20), (1, 1), ()),
        ((1, 1, 40, 40), (1, 40), (2, 2), ()),
        ((1, 1, 40, 80), (1, 60), (4, 4), ()),
    ]


@given(st.lists(st.tuples(st.integers(1, 999), st.integers(1, 999)), min_size=1, max_size=9))
def test_every_gear_is_there_in_its_order(values):
    """Spaces and a last semicolon do no harm."""
    dims = " ; ".join(f"{rows}, {size}" for rows, size in values) + ";"
    found = translated({"ge.inputShape": "x: -1, 7, -1", "ge.dynamicDims": dims})
    assert [gear["x"] for gear in found.declared_buckets] == [
        (rows, 7, size) for rows, size in values
    ]


def test_inputs_out_of_order_are_refused():
    """GE would fill the -1 of other inputs than it seems."""
    with pytest.raises(ConfigError, match="alphabetical order"):
        translated({"ge.inputShape": "label:-1;data:-1", "ge.dynamicDims": "1,2"})
    with pytest.raises(ConfigError, match="each once"):
        translated({"ge.inputShape": "data:-1;data:-1", "ge.dynamicDims": "1,2"})


@pytest.mark.parametrize("dims", ["1,2;3", "1,2,3", "1,x", "0,1", "-1,2"])
def test_gears_that_do_not_fit_are_refused(dims):
    """The message names the gear and how many values it needs."""
    with pytest.raises(ConfigError, match="each of the 2 -1"):
        translated({"ge.inputShape": "x:-1,-1", "ge.dynamicDims": dims})


@pytest.mark.parametrize("shapes", ["x", "x:a,b", "x:1,,2", ";"])
def test_shapes_that_are_none_are_refused(shapes):
    """With what they look like."""
    with pytest.raises(ConfigError, match="expected name:dim"):
        translated({"ge.inputShape": shapes, "ge.dynamicDims": "1"})


def test_halves_of_gears():
    """Shapes alone have no effect, as there; values alone mean nothing."""
    found = translated({"ge.inputShape": "x:-1,3"})
    assert (found.parameters, found.declared_buckets) == ({}, ())
    assert "ge.inputShape has no effect without ge.dynamicDims" in found.notes[0]
    found = translated({"graph.ge.dynamicNodeType": "1"})
    assert found.parameters == {}
    assert "ge.dynamicNodeType has no effect without ge.dynamicDims" in found.notes[0]
    with pytest.raises(ConfigError, match="must say of what"):
        translated({"ge.dynamicDims": "1;2"})


def test_two_levels_may_not_differ():
    """Which one counts would be a guess."""
    same = {"ge.inputShape": "x:-1", "graph.ge.inputShape": "x:-1", "ge.dynamicDims": "1"}
    assert len(translated(same).declared_buckets) == 1
    with pytest.raises(ConfigError, match="several values"):
        translated({**same, "graph.ge.inputShape": "y:-1"})


def test_gears_of_data_sets_are_refused():
    """There is none in a server."""
    with pytest.raises(ConfigError, match="reads no data set"):
        translated({"graph.ge.dynamicNodeType": "0"})


# What would concern every model of the device


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("profiling", "dynamic", "PROFILING_MODE"),
        ("profiling", "true", "PROFILING_MODE"),
        ("dump_graph", "1", "DUMP_GE_GRAPH"),
        ("dump_data", "1", "every model of the device"),
    ],
)
def test_tools_for_whole_processes_are_refused(key, value, says):
    """With what to do instead; switched off they are accepted."""
    with pytest.raises(ConfigError, match=says):
        translated({key: value})
    for off in ("0", "false", ""):
        assert translated({key: off}).parameters == {}


def test_every_key_of_the_table_says_both_sides():
    """It is the documentation."""
    for key in CPP_GE_KEYS:
        assert key.there.endswith((".", "…"))
        assert key.here.endswith(".")
    assert len({key.key for key in CPP_GE_KEYS}) == len(CPP_GE_KEYS)
