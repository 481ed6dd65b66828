"""Where a model runs, from its own words and the machine's."""

import pytest

from ge_backend.device.base import DEVICE_KINDS
from ge_backend.errors import ConfigError
from ge_backend.model.config.placement import KINDS, place


def devices(device="", device_ids="", forced=""):
    return place(device=device, device_ids=device_ids, forced=forced).devices


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("cpu",)),
        ({"device": "npu"}, ("npu:0",)),
        ({"device": "cuda:1"}, ("cuda:1",)),
        ({"device": "cpu:0"}, ("cpu",)),
        ({"device": "null:0"}, ("null",)),
        ({"device": "null:1"}, ("null:1",)),
        ({"device": "npu", "device_ids": "0,1"}, ("npu:0", "npu:1")),
        ({"device": "null", "device_ids": " 1 , 0 "}, ("null:1", "null")),
        ({"device_ids": "4,5"}, ("npu:4", "npu:5")),
        ({"device_ids": "2"}, ("npu:2",)),
        ({"forced": "cuda"}, ("cuda:0",)),
        ({"forced": "npu:3"}, ("npu:3",)),
        ({"device": "null", "forced": "npu:3"}, ("null",)),
        ({"device_ids": "4,5", "forced": "null"}, ("null:4", "null:5")),
        ({"device": "npu", "device_ids": "4,5", "forced": "cpu"}, ("npu:4", "npu:5")),
    ],
)
def test_parameters_go_before_the_machine_and_ids_count_within_a_kind(given, expected):
    """One device has one name, whoever asks for it."""
    assert devices(**given) == expected
    assert place(**{"device": "", "device_ids": "", "forced": "", **given}).notes == ()


@pytest.mark.parametrize(
    ("given", "expected", "says"),
    [
        ({"device_ids": "4,5", "forced": "cpu"}, "cpu", "GE_DEVICE is 'cpu'"),
        ({"device_ids": "4,5", "forced": "cuda:0"}, "cuda:0", "GE_DEVICE is 'cuda:0'"),
        ({"device_ids": "4,5", "device": "cpu"}, "cpu", "parameter 'device' is 'cpu'"),
    ],
)
def test_ids_without_effect_are_noted(given, expected, says):
    """A repository for several cards runs where the machine says, and the log says so."""
    placement = place(**{"device": "", "forced": "", **given})
    assert placement.devices == (expected,)
    (note,) = placement.notes
    assert "'4,5' have no effect" in note
    assert says in note


@pytest.mark.parametrize("device_ids", ["a", "0,", "0,,1", "-1", "0;1", "1,1", "1, 01", "1" * 5000])
def test_ids_that_are_none_are_refused(device_ids):
    """The message says what they look like."""
    with pytest.raises(ConfigError, match="each once"):
        devices(device="npu", device_ids=device_ids)


def test_two_answers_to_one_question_are_refused():
    """A device with an index leaves nothing for a list to say."""
    with pytest.raises(ConfigError, match="both say which device"):
        devices(device="npu:0", device_ids="0,1")


@pytest.mark.parametrize(
    ("given", "origin"),
    [
        ({"device": "npu:x"}, "parameter 'device'"),
        ({"forced": "npu:0,1"}, "GE_DEVICE"),
        ({"device": "npu:" + "1" * 5000}, "parameter 'device'"),
    ],
)
def test_an_index_that_is_none_is_refused(given, origin):
    """Who has to change what is clear from the message."""
    with pytest.raises(ConfigError, match=origin):
        devices(**given)


def test_the_kinds_are_those_that_can_be_opened():
    """What a limit may be given for, and what a device is opened as, are one list."""
    assert tuple(DEVICE_KINDS) == KINDS


def test_all_devices_are_of_one_kind():
    """Costs are measured once per kind."""
    assert place(device="npu", device_ids="0,1", forced="").kind == "npu"


def test_instances_with_sequences_take_devices_in_turn():
    """All batches of one go to its device."""
    both = place(device="npu", device_ids="4,5", forced="")
    assert [both.of_instance(number).devices for number in range(3)] == [
        ("npu:4",),
        ("npu:5",),
        ("npu:4",),
    ]
