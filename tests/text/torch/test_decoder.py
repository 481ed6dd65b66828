"""Transformers' modules over a paged cache; what cannot be served is refused at load."""

import json
import logging

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from builders.language import COMMON, CPU, make, opened, quiet
from ge_backend.errors import ModelError, Unsupported
from ge_backend.model.files.checkpoint import read_checkpoint
from ge_text.models.batch import padding_batch
from ge_text.torch import decoder as module
from ge_text.torch.decoder import TransformersDecoder

STATES = "layers of .* go through .* the others keep states"
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 16,
    "n_shared_experts": 1,
}


def load(folder, dtype=torch.float32):
    return TransformersDecoder(read_checkpoint(folder), dtype=dtype, device=CPU)


def save(folder, family, **settings):
    with quiet():
        config = getattr(transformers, f"{family}Config")(**COMMON | settings)
        getattr(transformers, f"{family}ForCausalLM")(config).save_pretrained(folder)


@pytest.mark.parametrize(
    ("family", "settings", "reason"),
    [
        ("Mamba", {}, f"0 of 3 {STATES}"),
        ("Lfm2", {"layer_types": ["conv", "full_attention", "conv"]}, f"1 of 3 {STATES}"),
        (
            "GptOss",
            {"num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 8},
            r"layer 0 \(GptOssAttention\) asks attention for s_aux",
        ),
        ("DiffLlama", {}, "attends twice"),
        ("Falcon", {}, "does not run 'falcon' through its attention interface"),
        ("BigBird", {"is_decoder": True}, f"0 of 3 {STATES}"),
        (
            "Roberta",
            {"is_decoder": True, "type_vocab_size": 1},
            "scores over a paged cache differ from those of RobertaForCausalLM",
        ),
    ],
)
def test_an_architecture_that_a_paged_cache_cannot_serve_is_refused(
    tmp_path, family, settings, reason
):
    """At load, with what is in the way: layers, or positions that do not begin at 0."""
    save(tmp_path, family, **settings)
    with pytest.raises(Unsupported, match=reason) as caught:
        load(tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("Mixtral", {"num_local_experts": 3}),
        ("DeepseekV3", LATENT),
        ("SmolLM3", {}),
        ("Afmoe", {"num_dense_layers": 3, "layer_types": ["full_attention"] * 3, "head_dim": 8}),
        ("Cohere2", {"sliding_window": 5}),
        ("GPTNeoX", {}),
    ],
)
def test_architectures_that_nobody_listed_are_served(tmp_path, family, settings):
    """Experts, keys and values of different sizes, layers without rotation: all by the probe."""
    save(tmp_path, family, **settings)
    assert len(load(tmp_path).shapes) == 3


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("DeepseekV3", LATENT),  # keys are longer than values, and neither is hidden / heads
        ("GPTBigCode", {"num_key_value_heads": None, "multi_query": True}),
        ("GPTBigCode", {"num_key_value_heads": None, "multi_query": False}),
        ("JetMoe", {"kv_channels": 12, "num_experts_per_tok": 3}),
    ],
)
def test_a_configuration_tells_how_large_the_cache_is(tmp_path, family, settings):
    """In each architecture's own words, so that a plan says what the loaded model takes."""
    save(tmp_path, family, **settings)
    told = read_checkpoint(tmp_path).cache_elements_per_token()
    assert told == sum(shape.elements for shape in load(tmp_path).shapes)


def test_an_unknown_architecture_is_refused(tmp_path):
    """One that a newer transformers may know."""
    make(tmp_path, "llama")
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": "llama99", "architectures": ["Llama99ForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(Unsupported, match=r"does not run 'llama99'"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("gpt2", {"activation_function": None}, "Field 'activation_function' expected str, got N"),
        ("gpt2", {"layer_types": ["full_attention"]}, r"`num_hidden_layers` \(2\) must be equal"),
    ],
)
def test_a_setting_that_transformers_refuses_is_named(tmp_path, name, settings, reason):
    """As a fault of the file, with transformers' own reason."""
    make(tmp_path, name)
    config = json.loads((tmp_path / "config.json").read_text()) | settings
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=rf"config\.json: transformers refuses it: {reason}"):
        load(tmp_path)


@pytest.mark.parametrize(("kind", "known"), [("phi3", True), ("llama99", False)])
def test_code_that_a_checkpoint_brings_is_never_run(tmp_path, kind, known):
    """Where transformers has the architecture itself nothing is missing; else the reason is said."""
    make(tmp_path, "phi3")
    config = json.loads((tmp_path / "config.json").read_text())
    places = {"AutoConfig": "brought.Config", "AutoModelForCausalLM": "brought.Model"}
    config |= {"model_type": kind, "auto_map": places}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "brought.py").write_text("raise SystemExit('it was run')")
    if known:
        assert load(tmp_path).shapes
    else:
        with pytest.raises(Unsupported, match=r"does not run 'llama99'.*; no such code is run"):
            load(tmp_path)


def test_a_layer_that_does_more_than_it_shows_is_found_by_its_scores(tmp_path, monkeypatch):
    """The last net: a short run is compared with the model's own attention."""
    make(tmp_path, "gpt2")
    paged = module.paged_attention

    def other(*given, **options):
        found, weights = paged(*given, **options)
        return found * 1.05, weights

    monkeypatch.setattr(module, "paged_attention", other)
    with pytest.raises(Unsupported, match="differ from those of GPT2LMHeadModel by 0"):
        load(tmp_path)


def test_a_missing_tensor_is_not_made_up(tmp_path):
    """Transformers would fill it with random numbers and warn."""
    make(tmp_path, "gpt2")
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    gone = next(name for name in tensors if name.endswith("h.0.mlp.c_fc.weight"))
    del tensors[gone]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"missing keys: .*h\.0\.mlp\.c_fc\.weight"):
        load(tmp_path)


@pytest.mark.parametrize("dtype", ["BF16", "FP16"])
@pytest.mark.parametrize("name", ["gpt2", "gemma2"])
def test_lower_precisions_pass_the_same_check(tmp_path, name, dtype):
    """Within what rounding makes."""
    make(tmp_path, name)
    model = opened(tmp_path, blocks=2, dtype=dtype)
    assert model.dtype == dtype
    assert not model.step(padding_batch((1, 1, 1))).failed


def test_what_transformers_tells_people_is_held_back(tmp_path, capfd):
    """Neither bars nor warnings in a server's log; its settings are as before."""
    make(tmp_path, "gpt2")
    logger = logging.getLogger("transformers")
    level = logger.level
    transformers.utils.logging.enable_progress_bar()
    capfd.readouterr()
    load(tmp_path)
    assert capfd.readouterr() == ("", "")
    assert logger.level == level
    assert transformers.utils.logging.is_progress_bar_enabled()
