"""What a configuration's parameters come to, once keys of other backends are translated."""

import pytest

from ge_backend.config.parameters import ModelParameters
from ge_backend.errors import ConfigError


def read(environment=None, instance_group=(), **parameters):
    texts = {key.replace("__", "."): {"string_value": v} for key, v in parameters.items()}
    config = {"name": "m", "parameters": texts, "instance_group": list(instance_group)}
    return ModelParameters.read(config, environment or {})


def test_nothing_said_is_one_instance_on_the_cpu():
    """And nothing to note."""
    found = read()
    assert (found.values, found.placement.devices, found.instances) == ({}, ("cpu",), 1)
    assert (found.declared_buckets, found.notes) == ((), ())


def test_instances_of_all_groups_count():
    """A group without a number is one."""
    assert read(instance_group=[{"count": 2}, {"kind": "KIND_CPU"}]).instances == 3


def test_the_example_of_the_cpp_backend_runs_where_the_machine_says():
    """Its cards are NPUs by themselves, and GE_DEVICE sends it elsewhere."""
    given = {"device_ids": "4,5", "ge__aicoreNum": "12|10"}
    found = read(**given)
    assert found.placement.devices == ("npu:4", "npu:5")
    assert (found.values["ge.aicoreNum"], found.notes) == ("12|10", ())
    found = read({"GE_DEVICE": "cpu"}, **given)
    assert found.placement.devices == ("cpu",)
    assert len(found.notes) == 2
    assert "device_ids '4,5' have no effect" in found.notes[0]
    assert "ge.aicoreNum: no effect on cpu" in found.notes[1]


def test_blocks_are_spread_over_the_devices():
    """By the number of instances, as there."""
    found = read(device_ids="0,1", instance_exec_blocks="2", instance_group=[{"count": 4}])
    assert found.values["lanes"] == "4"


def test_gears_are_found():
    """They are no parameters any more."""
    found = read(graph__ge__inputShape="x:-1,3", graph__ge__dynamicDims="1;2")
    assert (dict(found.values), found.declared_buckets) == ({}, ({"x": (1, 3)}, {"x": (2, 3)}))


def test_dynamic_batching_is_seen():
    """A block of the host's, for which `static_model` leaves no room."""
    config = {"name": "m", "parameters": {"static_model": {"string_value": "1"}}}
    assert ModelParameters.read(config, {}).values == {"buckets.rows": "1"}
    with pytest.raises(ConfigError, match="dynamic_batching"):
        ModelParameters.read({**config, "dynamic_batching": {}}, {})
