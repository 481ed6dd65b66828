"""What of a checkpoint is covered, and what is wrong with one that should be."""

import json

import pytest
from safetensors.torch import load_file, save_file

from builders.language import CPU, LLAMAS, OTHERS, make
from ge_backend.device.files.checkpoint import read_checkpoint
from ge_backend.device.pytorch.language.llama_weights import not_covered
from ge_backend.device.pytorch.language.loading import load_decoder
from ge_backend.errors import ModelError


def changed(folder, **settings):
    config = json.loads((folder / "config.json").read_text()) | settings
    config = {name: value for name, value in config.items() if value != "left out"}
    (folder / "config.json").write_text(json.dumps(config))
    return read_checkpoint(folder)


@pytest.fixture
def llama(tmp_path):
    make(tmp_path, "llama")
    return tmp_path


@pytest.mark.parametrize("name", LLAMAS)
def test_the_whole_family_is_covered(tmp_path, name):
    """Each of its options, as transformers saves it."""
    make(tmp_path, name)
    assert not_covered(read_checkpoint(tmp_path)) == ""


@pytest.mark.parametrize("name", OTHERS)
def test_other_architectures_are_not(tmp_path, name):
    """The reason names what is in the way."""
    make(tmp_path, name)
    reason = "rope_type yarn" if name == "llama-yarn" else f"architecture {OTHERS[name][0]}"
    assert not_covered(read_checkpoint(tmp_path)).startswith(reason)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"hidden_act": "gelu"}, "hidden_act gelu"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type dynamic"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"architectures": ["LlamaForCausalLM", "MyLlamaForCausalLM"]}, "architecture"),
        ({"model_type": "llama4_text"}, "model_type llama4_text"),
    ],
)
def test_what_the_skeleton_has_not_is_not_covered(llama, settings, reason):
    """Such checkpoints go to transformers, never to a decoder that would guess."""
    assert reason in not_covered(changed(llama, **settings))


def test_a_setting_with_many_defaults_has_to_be_said(tmp_path):
    """Transformers knows what Mistral means when it says nothing; we do not guess."""
    make(tmp_path, "mistral")
    found = changed(tmp_path, sliding_window="left out")
    assert not_covered(found) == "config.json without sliding_window"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"intermediate_size": 64}, r"gate_proj.weight' of shape \[64, 32\].*found \[48, 32\]"),
        ({"num_hidden_layers": 4}, r"model.layers.3.*found nothing"),
        ({"vocab_size": 98}, r"embed_tokens.weight' of shape \[98, 32\]"),
    ],
)
def test_weights_of_another_shape_are_refused_by_name(llama, settings, named):
    """A checkpoint whose files do not belong together shows at load, not in its texts."""
    with pytest.raises(ModelError, match=named):
        load_decoder(changed(llama, **settings), dtype="FP32", device=CPU)


def test_a_missing_tensor_is_named(llama):
    """Half a checkpoint is none."""
    tensors = load_file(llama / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, llama / "model.safetensors")
    with pytest.raises(ModelError, match=r"model\.norm\.weight.*found nothing"):
        load_decoder(read_checkpoint(llama), dtype="FP32", device=CPU)
