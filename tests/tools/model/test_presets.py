"""The table of presets."""

import pytest

from ge_backend.model.config.model import ModelConfig
from ge_text.engine.settings import read_settings
from ge_text.stub.opening import generation_settings
from ge_tools.model.applied import BATCHING_DELAY, INSTANCES
from ge_tools.model.presets import DEFAULTS, KEYS, PRESETS, TEXT_KEYS, TEXT_PRESETS


def test_all_presets_name_the_same_settings():
    """So that each undoes what another did."""
    assert tuple(PRESETS) == ("high_throughput", "low_latency", "memory_constrained")
    assert all(tuple(preset.choices) == KEYS for preset in PRESETS.values())
    assert KEYS[:2] == (INSTANCES, BATCHING_DELAY)
    assert tuple(TEXT_PRESETS) == tuple(PRESETS)
    assert all(tuple(preset.choices) == TEXT_KEYS for preset in TEXT_PRESETS.values())
    assert DEFAULTS.keys() == {*KEYS, *TEXT_KEYS}


def test_every_value_has_a_reason():
    """A preset without one is a guess."""
    presets = (*PRESETS.values(), *TEXT_PRESETS.values())
    choices = [choice for preset in presets for choice in preset.choices.values()]
    assert all(choice.why for choice in choices)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_a_single_instance_has_no_queue_of_its_own(preset):
    """Requests in it are never answered when its stub dies; another instance would serve on."""
    single = preset.choices[INSTANCES].value == "1"
    assert not single or preset.choices["max_queue_size"].value == "0"


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_every_value_is_one_that_the_backend_takes(preset, tmp_path):
    """The backend reads them, and the host's two are whole numbers."""
    values = {key: choice.value for key, choice in preset.choices.items()}
    assert values.pop(INSTANCES).isdecimal()
    assert values.pop(BATCHING_DELAY).isdecimal()
    parameters = {key: {"string_value": value} for key, value in values.items()}
    document = {"name": "m", "max_batch_size": 8, "parameters": parameters}
    config = ModelConfig.read(document, directory=tmp_path, version="1", environment={})
    assert str(config.max_elements) == values["max_elements"]
    assert str(config.priority) == values["priority"]


@pytest.mark.parametrize("preset", TEXT_PRESETS.values(), ids=TEXT_PRESETS)
def test_every_value_is_one_that_an_engine_takes(preset, tmp_path):
    """They fit together, too: a step has room for a token of each text."""
    values = {key: choice.value for key, choice in preset.choices.items()}
    parameters = {key: {"string_value": value} for key, value in values.items()}
    document = {"name": "m", "parameters": parameters}
    config = ModelConfig.read(document, directory=tmp_path, version="1", environment={})
    settings = read_settings(generation_settings(config))
    assert str(settings.max_num_seqs) == values["max_num_seqs"]
    assert settings.itl_target_ms == float(values["itl_target_ms"])
    assert str(config.priority) == values["priority"]
