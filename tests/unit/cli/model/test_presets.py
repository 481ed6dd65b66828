"""The table of presets."""

import pytest

from ge_backend.cli.model.applied import BATCHING_DELAY, INSTANCES
from ge_backend.cli.model.presets import DEFAULTS, KEYS, PRESETS
from ge_backend.config.model import ModelConfig


def test_all_presets_name_the_same_settings():
    """So that each undoes what another did."""
    assert tuple(PRESETS) == ("high_throughput", "low_latency", "memory_constrained")
    assert all(tuple(preset.choices) == KEYS for preset in PRESETS.values())
    assert KEYS[:2] == (INSTANCES, BATCHING_DELAY)
    assert DEFAULTS.keys() == set(KEYS)


def test_every_value_has_a_reason():
    """A preset without one is a guess."""
    choices = [choice for preset in PRESETS.values() for choice in preset.choices.values()]
    assert all(choice.why for choice in choices)


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
