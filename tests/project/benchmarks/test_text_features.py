"""The probe of what text features gain: what it asks, the model that it makes, its table."""

import json

import pytest
from safetensors.numpy import load_file
from tools.probes.text_features import ADAPTER, FEATURES, RANK, lines, sides, write_model

SHAPE = {
    "hidden_size": 12,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "num_hidden_layers": 2,
}


@pytest.mark.parametrize("feature", FEATURES)
def test_both_sides_ask_for_the_same_texts_and_lengths(feature):
    """They differ in the feature alone, and one round's prompts are not another's."""
    side = sides(feature, 1)
    assert [ask.text for ask in side.asked] == [ask.text for ask in side.without]
    assert len({ask.parameters["max_tokens"] for ask in (*side.asked, *side.without)}) == 1
    assert side.asked[0].parameters != side.without[0].parameters
    assert {ask.text for ask in side.asked}.isdisjoint(ask.text for ask in sides(feature, 2).asked)


def test_a_known_beginning_is_asked_for_before():
    side = sides("prefix", 1)
    (before,) = side.before
    assert all(ask.text.startswith(before.text) for ask in side.asked)


def test_a_model_has_the_checkpoint_and_an_adapter(tmp_path):
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text(json.dumps(SHAPE))
    write_model(tmp_path / "model", checkpoint, "int8")
    version = tmp_path / "model" / "1"
    assert (version / "config.json").resolve() == checkpoint / "config.json"
    assert '"int8"' in (tmp_path / "model" / "config.pbtxt").read_text()
    held = load_file(version / "adapters" / ADAPTER / "adapter_model.safetensors")
    value = "base_model.model.model.layers.1.self_attn.v_proj"
    assert held[f"{value}.lora_A.weight"].shape == (RANK, 12)
    assert held[f"{value}.lora_B.weight"].shape == (4, RANK)
    assert len(held) == 2 * 2 * 2


def test_the_table_has_medians():
    table = lines({("prefix", "int8"): [(10.0, 40.0), (20.0, 40.0), (10.0, 90.0)]})
    assert table[1].split() == ["prefix", "int8", "10.0", "40.0", "4.00"]
