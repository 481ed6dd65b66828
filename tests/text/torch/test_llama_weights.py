"""What of a checkpoint is covered, and what is wrong with one that should be."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from builders.language import (
    CPU,
    LLAMAS,
    OTHERS,
    generated,
    make,
    opened,
    quiet,
    run,
    texts_for,
)
from ge_backend.errors import ModelError
from ge_backend.model.files.checkpoint import read_checkpoint
from ge_text.torch.llama import LlamaDecoder
from ge_text.torch.llama_weights import LlamaWeights, not_covered
from ge_text.torch.loading import load_decoder


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
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"is_causal": False}, "is_causal false"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope_type linear without factor"),
        (
            {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}},
            "rope_type llama3 without high_freq_factor, low_freq_factor, original_max_position",
        ),
        ({"rope_parameters": {"full_attention": {"rope_theta": 9.0}}}, "differ by layer"),
    ],
)
def test_what_the_skeleton_has_not_is_not_covered(llama, settings, reason):
    """Such checkpoints go to transformers, never to a decoder that would guess."""
    assert reason in not_covered(changed(llama, **settings))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping 30.0"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention True"),
        ({"hidden_activation": "gelu"}, "hidden_activation gelu"),
        ({"sliding_window": None}, "no sliding_window"),
        ({"layer_types": "left out"}, "config.json without layer_types"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 2.0}}},
            "rope_type yarn",
        ),
    ],
)
def test_what_a_gemma_may_have_and_the_skeleton_has_not_is_not_covered(tmp_path, settings, reason):
    """It goes to transformers."""
    make(tmp_path, "gemma3")
    assert not_covered(changed(tmp_path, **settings)) == reason


# As files have it that were written before transformers 5.
OLD_GEMMA = {"rope_parameters": "left out", "rope_theta": 500.0, "rope_local_base_freq": 20.0}
LINEAR = {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 100.0}
WINDOW = {"sliding_window": 5, "use_sliding_window": True, "max_window_layers": 1}


@pytest.mark.parametrize(
    ("name", "made", "settings"),
    [
        ("llama", {"attention_bias": True}, {"attention_bias": False}),
        ("llama", {"mlp_bias": True}, {"mlp_bias": "left out"}),
        ("qwen3", {"attention_bias": True}, {"attention_bias": False}),
        ("llama", {}, {"tie_word_embeddings": True}),
        ("llama", {}, LINEAR),
        ("llama", {}, WINDOW),
        ("mistral", {}, WINDOW),
        ("mistral", {}, {**WINDOW, "use_sliding_window": False}),
        ("gemma3", {}, OLD_GEMMA),
        ("gemma3", {}, {**OLD_GEMMA, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
        ("gemma3", {}, {"rope_parameters": "left out"}),
        (
            "mistral",
            {},
            {"sliding_window": 5, "layer_types": ["sliding_attention", *["full_attention"] * 2]},
        ),
    ],
)
def test_what_config_says_is_read_as_transformers_reads_it(tmp_path, name, made, settings):
    """Also where it and the files, or two of its settings, contradict each other."""
    make(tmp_path, name, **made)
    changed(tmp_path, **settings)
    with quiet():
        reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="float32").eval()
    prompt = np.arange(3, 20)
    texts, blocks = texts_for([prompt], np.random.default_rng(5), 4, 24)
    model = opened(tmp_path, blocks=blocks)
    assert isinstance(model._decoder, LlamaDecoder)
    run(model, texts, 7, np.random.default_rng(1))
    assert texts[0].output == generated(reference, prompt, 7, use_cache=False)


@pytest.mark.parametrize(
    ("made", "settings", "missing"),
    [
        ({}, {"attention_bias": True}, r"q_proj\.bias"),
        ({"tie_word_embeddings": True}, {"tie_word_embeddings": False}, r"lm_head\.weight"),
    ],
)
def test_a_weight_that_config_speaks_of_is_not_done_without(tmp_path, made, settings, missing):
    """Transformers would fill it with random numbers and warn."""
    make(tmp_path, "llama", **made)
    with pytest.raises(ModelError, match=f"{missing}.*found nothing"):
        load_decoder(changed(tmp_path, **settings), dtype="FP32", device=CPU)


@pytest.mark.parametrize("window", ["left out", None, 7])
@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_a_window_that_is_on_has_transformers_size(tmp_path, name, window):
    """It has one where nothing says how wide it is; only null is none."""
    make(tmp_path, name)
    said = {"use_sliding_window": True, "max_window_layers": 1, "layer_types": "left out"}
    found = changed(tmp_path, sliding_window=window, **said)
    assert not_covered(found) == ""
    width = AutoConfig.from_pretrained(tmp_path).sliding_window or 0
    weights = LlamaWeights(found, lambda name: torch.zeros(found.tensors[name].shape))
    assert [weights.layer(index).window for index in range(2)] == [0, width]


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


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("llama", {"rms_norm_eps": None}, "rms_norm_eps is None, expected a number above 0"),
        (
            "llama",
            {"rope_parameters": {"rope_theta": [1]}},
            r"rope_theta .* is \[1\], expected a n",
        ),
        ("llama", {"rope_parameters": {"rope_theta": -1}}, r"rope_theta .* is -1, expected a n"),
        ("llama-llama3", {"low_freq_factor": 0}, r"low_freq_factor .* is 0, expected a number"),
        ("llama-llama3", {"factor": None}, r"factor .* is None, expected a number above 0"),
        ("mistral", {"sliding_window": -1}, "sliding_window is -1, expected a whole number above"),
        ("mistral-window", {"layer_types": ["full_attention"]}, "layer_types is .* expected 3 of"),
        ("mistral-window", {"layer_types": 7}, "layer_types is 7, expected 3 of full_attention"),
        ("mistral-window", {"layer_types": ["other"] * 3}, "layer_types is .* expected 3 of"),
        ("qwen2-window", {"layer_types": None, "max_window_layers": None}, "max_window_layers is"),
    ],
)
def test_a_setting_of_another_kind_is_named(tmp_path, name, settings, reason):
    """With what it is and what was expected, before transformers would stumble over it."""
    make(tmp_path, name)
    rotary = json.loads((tmp_path / "config.json").read_text())["rope_parameters"]
    own = {key: value for key, value in settings.items() if name == "llama-llama3"}
    checkpoint = changed(tmp_path, **({"rope_parameters": rotary | own} if own else settings))
    assert not_covered(checkpoint) == ""
    with pytest.raises(ModelError, match=rf"config\.json: {reason}"):
        load_decoder(checkpoint, dtype="FP32", device=CPU)


def test_a_missing_tensor_is_named(llama):
    """Half a checkpoint is none."""
    tensors = load_file(llama / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, llama / "model.safetensors")
    with pytest.raises(ModelError, match=r"model\.norm\.weight.*found nothing"):
        load_decoder(read_checkpoint(llama), dtype="FP32", device=CPU)
