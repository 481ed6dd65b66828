"""Finding adapters beside a checkpoint, and refusing what cannot be served of them."""

import json
import math
import os

import numpy as np
import pytest
from safetensors.numpy import save_file

from ge_backend.errors import InvalidRequest, ModelError
from ge_text.models.adapter import Product
from ge_text.models.adapter_folder import AdapterFolder, adapter_names, has_adapters

INPUTS, OUTPUTS, RANK = 6, 4, 2
QUERY, UP = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj"
PRODUCTS = (
    Product(inputs=INPUTS, layers={QUERY: OUTPUTS}),
    Product(inputs=INPUTS, layers={UP: OUTPUTS}),
)
CONFIG = {"peft_type": "LORA", "r": RANK, "lora_alpha": 8, "bias": "none"}


def tensors(*layers, rank=RANK, inputs=INPUTS, dtype=np.float32):
    down, up = np.zeros((rank, inputs), dtype), np.zeros((OUTPUTS, rank), dtype)
    named = {"lora_A": down, "lora_B": up}
    return {f"base_model.model.{x}.{n}.weight": t for x in layers for n, t in named.items()}


def write(checkpoint, name="pirate", held=None, folder="adapters", **settings):
    place = checkpoint / folder / name
    place.mkdir(parents=True, exist_ok=True)
    (place / "adapter_config.json").write_text(json.dumps({**CONFIG, **settings}))
    save_file(held or tensors(QUERY), place / "adapter_model.safetensors")
    return place


def find(checkpoint, name="pirate", dtype="FP32"):
    return AdapterFolder(checkpoint, PRODUCTS, dtype).find(name)


def refused(checkpoint, named, name="pirate"):
    """Expect an error that names this, and no folder of the server's."""
    with pytest.raises(ModelError, match=named) as caught:
        find(checkpoint, name)
    assert str(checkpoint) not in str(caught.value)


def test_an_adapter_is_found_by_its_folder(tmp_path):
    """With its changes and the bytes that it takes; nothing else in the folder is one."""
    place = write(tmp_path, held=tensors(QUERY, UP))
    (tmp_path / "adapters" / "notes").mkdir()
    found = find(tmp_path)
    assert (found.name, found.weights) == ("pirate", place / "adapter_model.safetensors")
    assert {layer: change.rank for layer, change in found.changes.items()} == {QUERY: 2, UP: 2}
    assert found.changes[QUERY].scaling == 8 / 2
    assert found.nbytes == 4 * 2 * RANK * (INPUTS + OUTPUTS)
    assert find(tmp_path, dtype="BF16").nbytes == found.nbytes / 2
    assert adapter_names(tmp_path) == ["pirate"]
    assert has_adapters(tmp_path)
    assert not has_adapters(place)


def test_an_adapter_of_a_compiled_model_changes_the_same_layers(tmp_path):
    """Its tensors are named after the wrapper, around the model or a layer."""
    whole = tensors(f"_orig_mod.{QUERY}")
    layer = tensors(UP.replace("mlp", "_orig_mod.mlp"))
    write(tmp_path, held={**whole, **layer}, alpha_pattern={"layers.0.self_attn.q_proj": 3})
    changes = find(tmp_path).changes
    assert {name: change.scaling for name, change in changes.items()} == {QUERY: 3 / 2, UP: 8 / 2}
    read = {tensor for change in changes.values() for tensor in (change.down, change.up)}
    assert read == {*whole, *layer}


@pytest.mark.parametrize(
    ("settings", "query", "up"),
    [
        ({"use_rslora": True}, 8 / math.sqrt(2), 8 / math.sqrt(2)),
        ({"alpha_pattern": {"q_proj": 3}}, 3 / 2, 8 / 2),
        ({"alpha_pattern": {r"layers\.1\..*": 5, "up_proj": 9}}, 8 / 2, 5 / 2),
        ({"r": 7, "rank_pattern": {"q_proj": 2, "mlp.up_proj": 2}}, 8 / 2, 8 / 2),
        ({"alpha_pattern": {"proj": 3}}, 8 / 2, 8 / 2),
    ],
)
def test_scaling_is_what_peft_makes_of_the_settings(tmp_path, settings, query, up):
    """A pattern counts where it matches the end of a layer's name from a dot on, the first one."""
    write(tmp_path, held=tensors(QUERY, UP), **settings)
    changes = find(tmp_path).changes
    assert (changes[QUERY].scaling, changes[UP].scaling) == pytest.approx((query, up))


def test_an_unknown_name_says_which_there_are(tmp_path):
    """A name is none of a path's, and without any adapter the message says where they go."""
    with pytest.raises(
        InvalidRequest, match=r"adapters of this model are none; they go into 'adapters'"
    ):
        find(tmp_path)
    write(tmp_path)
    write(tmp_path, "poet")
    for name in ("clerk", "../adapters/poet", "", "."):
        with pytest.raises(InvalidRequest, match=r"the adapters of this model are pirate, poet$"):
            find(tmp_path, name)


def test_the_list_of_tritons_vllm_backend_names_more(tmp_path):
    """With folders from the checkpoint on, or from the root; none leaves the version folder."""
    write(tmp_path, "poet")
    write(tmp_path, "b", folder="elsewhere")
    far = write(tmp_path / "far", "c")
    places = {"one": "elsewhere/b", "two": str(far)}
    for place in ("../b", "/b"):
        (tmp_path / "multi_lora.json").write_text(json.dumps({"out": place}))
        refused(tmp_path, "multi_lora.json: 'out' is .* leaves the model's folder$", "out")
    (tmp_path / "multi_lora.json").write_text(json.dumps(places))
    assert adapter_names(tmp_path) == ["one", "poet", "two"]
    assert find(tmp_path, "one").weights.parent == tmp_path / "elsewhere" / "b"
    assert find(tmp_path, "two").weights.parent == far
    (tmp_path / "multi_lora.json").write_text("[]")
    assert has_adapters(tmp_path)
    refused(tmp_path, "multi_lora", "one")


@pytest.mark.parametrize("listed", ['{"out": "/b", "one": "elsewhere/b"}', "no JSON", "[]"])
def test_what_is_wrong_with_the_list_fails_nobody_else(tmp_path, listed):
    """A folder of adapters goes before it, and each of its entries stands for itself."""
    write(tmp_path)
    write(tmp_path, "b", folder="elsewhere")
    (tmp_path / "multi_lora.json").write_text(listed)
    assert find(tmp_path).name == "pirate"
    named = ["one", "out"] if listed.startswith("{") else []
    assert adapter_names(tmp_path) == [*named, "pirate"]
    if named:
        assert find(tmp_path, "one").name == "one"
        with pytest.raises(InvalidRequest, match=r"are one, out, pirate$"):
            find(tmp_path, "clerk")


def test_files_are_read_again_when_they_have_changed(tmp_path):
    """Adapters come, go and change while their model is served."""
    folder = AdapterFolder(tmp_path, PRODUCTS, "FP32")
    place = write(tmp_path)
    first = folder.find("pirate")
    assert folder.find("pirate") is first
    write(tmp_path, lora_alpha=2)
    os.utime(place / "adapter_config.json", ns=(1, 1))
    second = folder.find("pirate")
    assert (second.key != first.key, second.changes[QUERY].scaling) == (True, 1.0)
    (place / "adapter_model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"an adapter has .* adapter_model.safetensors"):
        folder.find("pirate")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"use_dora": True}, "use_dora is True"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"lora_bias": True}, "lora_bias"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4'"),
        ({"alora_invocation_tokens": [5]}, "alora_invocation_tokens"),
        ({"r": 0}, f"r of {QUERY} is 0"),
        ({"r": 2.5}, "r of"),
        ({"lora_alpha": None}, "lora_alpha of"),
        ({"lora_alpha": True}, "lora_alpha of"),
        ({"alpha_pattern": {"(": 3}}, "alpha_pattern cannot be read"),
        ({"rank_pattern": 3}, "rank_pattern cannot be read"),
        ({"r": 3}, r"lora_A.weight' of floats \[3, 6\] expected .*, found F32 \[2, 6\]"),
    ],
)
def test_settings_that_cannot_be_served_are_named(tmp_path, settings, named):
    """Whatever would make the text another one than peft's is refused, not left out."""
    write(tmp_path, **settings)
    refused(tmp_path, named)


def without(given, part):
    return {name: tensor for name, tensor in given.items() if part not in name}


@pytest.mark.parametrize(
    ("held", "named"),
    [
        (tensors("lm_head"), "changes 'lm_head'.* embeddings and lm_head are not"),
        (tensors("model.layers.9.self_attn.q_proj"), "is it of another model"),
        (tensors(QUERY, inputs=5), r"floats \[2, 6\] .* found F32 \[2, 5\]"),
        (tensors(QUERY, dtype=np.int32), "found I32"),
        (without(tensors(QUERY), "lora_B"), "lora_B.weight' .* found none"),
        (
            {**tensors(QUERY), "base_model.model.lm_head.weight": np.zeros(3)},
            "whole layers are not",
        ),
        (
            {**tensors(QUERY), f"base_model.model.{QUERY}.lora_magnitude_vector": np.zeros(3)},
            "lora_magnitude_vector' .* DoRA",
        ),
        ({"x": np.zeros(3)}, "tensor 'x'"),
    ],
)
def test_tensors_that_are_not_those_of_the_model_are_named(tmp_path, held, named):
    """Of another model, of another shape, or more than two small matrices of a layer."""
    write(tmp_path, held=held)
    refused(tmp_path, named)


def test_damaged_files_are_named(tmp_path):
    """Cut short, no JSON, or too large."""
    place = write(tmp_path)
    weights, config = place / "adapter_model.safetensors", place / "adapter_config.json"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-4])
    refused(tmp_path, "cut short")
    weights.write_bytes(whole)
    for text in ("{", "[]", " " * (2**20 + 1)):
        config.write_text(text)
        refused(tmp_path, "adapters/pirate/adapter_config")
