"""What adapters add to a decoder, against peft; the engine's part is in test_against_peft.py."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from builders.adapters import ALL, make_adapter
from builders.generation import Serving
from builders.language import Text, batch_of, generated, make, opened
from fakes.torch_vendor import FakeVendor
from ge_backend.engines.torch.streams import Streams
from ge_backend.errors import GraphFailed, ModelError
from ge_text.models.adapter_folder import AdapterFolder

PROMPT = (5, 17, 3, 90, 41, 8, 8, 60, 22)
COUNT = 8


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A folder, and transformers' model of it."""
    folder = tmp_path_factory.mktemp("llama")
    return folder, make(folder, "llama")


def adapters_of(model, folder):
    return AdapterFolder(folder, model.products, model.dtype)


def drawn(folder, name, **settings):
    """Return what the engine draws with an adapter, beside the same prompt without one."""
    model = opened(folder)
    served = Serving(model, **settings)
    served.submit("plain", PROMPT, temperature=0, max_tokens=COUNT)
    found = adapters_of(model, folder).find(name)
    served.submit("adapted", PROMPT, adapter=found, temperature=0, max_tokens=COUNT)
    served.run()
    return served.tokens("adapted"), served.tokens("plain")


@pytest.mark.parametrize("family", ["llama-biases", "qwen3", "phi3", "olmo2", "granite", "gpt2"])
def test_every_family_draws_what_peft_draws(tmp_path, family):
    """With all of its linear layers changed, whatever they are called, and its biases as they are."""
    base = make(tmp_path, family)
    oracle = make_adapter(tmp_path, "all", base, target_modules="all-linear")
    expected = generated(oracle, PROMPT, COUNT), generated(base, PROMPT, COUNT)
    assert drawn(tmp_path, "all") == expected
    assert expected[0] != expected[1]


@pytest.mark.parametrize(
    "settings",
    [
        *({"target_modules": [module]} for module in ALL),
        {"target_modules": ["k_proj", "up_proj"]},
        {"target_modules": ["q_proj", "v_proj"], "layers_to_transform": [1]},
        {"use_rslora": True, "lora_alpha": 3},
        {"r": 1},
        {"rank_pattern": {"q_proj": 7, "layers.2.mlp.*": 3}, "alpha_pattern": {"v_proj": 20}},
    ],
)
def test_layers_ranks_and_scalings(llama, settings):
    """Of layers that are computed as one product each keeps what is its own."""
    folder, base = llama
    oracle = make_adapter(folder, "some", base, **settings)
    assert drawn(folder, "some")[0] == generated(oracle, PROMPT, COUNT)


def test_a_text_of_no_numbers_fails_alone(llama):
    """An adapter whose weights are no numbers hurts nobody else in its step."""
    folder, base = llama
    make_adapter(folder, "nan", base)
    path = folder / "adapters" / "nan" / "adapter_model.safetensors"
    broken = {name: torch.full_like(t, torch.nan) for name, t in load_file(path).items()}
    save_file(broken, path)
    tokens, plain = drawn(folder, "nan")
    assert (tokens, plain) == ([], generated(base, PROMPT, COUNT))


def test_what_has_changed_since_it_was_found_is_not_loaded(llama):
    """Neither with other files nor without any; the model holds nothing of it."""
    folder, base = llama
    make_adapter(folder, "new", base)
    model = opened(folder, blocks=9)
    found = adapters_of(model, folder).find("new")
    make_adapter(folder, "new", base, r=2)
    with pytest.raises(ModelError, match=r"'new' was being changed; ask again"):
        model.load_adapter(found)
    found.weights.unlink()
    with pytest.raises(ModelError, match=r"'new' cannot be read") as caught:
        model.load_adapter(found)
    assert str(folder) not in str(caught.value)
    batch = batch_of([(Text(prompt=np.array(PROMPT), table=np.arange(1, 9)), 9)], 4)
    with pytest.raises(KeyError):
        model.step(replace(batch, adapters={found.key: np.arange(9)}))


def test_a_captured_bucket_is_left_for_steps_with_an_adapter(llama):
    """They run operator by operator, and the same bucket is replayed again without one."""
    folder, base = llama
    oracle = make_adapter(folder, "some", base)
    vendor = FakeVendor()
    model = opened(folder)
    model._streams = Streams(vendor)
    model.open_cache(17)
    model.prepare((1, 9, 8))
    found = adapters_of(model, folder).find("some")
    model.load_adapter(found)
    batch = batch_of(
        [(Text(prompt=np.array(PROMPT), table=np.arange(1, 9)), 9)], 4, bucket=lambda *_: (1, 9, 8)
    )
    for adapters, model_of, replays in (
        ({}, base, 1),
        ({found.key: np.arange(9)}, oracle, 0),
        ({}, base, 1),
    ):
        before = vendor.counts["replay", "compute"]
        tokens = model.step(replace(batch, adapters=adapters)).tokens.tolist()
        assert tokens == generated(model_of, PROMPT, 1)
        assert vendor.counts["replay", "compute"] == before + replays


def test_a_dropped_adapter_is_gone(llama):
    """A step that names it then fails, and it can be loaded again."""
    folder, base = llama
    make_adapter(folder, "some", base)
    model = opened(folder, blocks=17)
    found = adapters_of(model, folder).find("some")
    batch = batch_of([(Text(prompt=np.array(PROMPT), table=np.arange(1, 9)), 9)], 4)
    batch = replace(batch, adapters={found.key: np.arange(9)})
    model.load_adapter(found)
    first = model.step(batch).tokens.tolist()
    model.drop_adapter(found.key)
    with pytest.raises((KeyError, GraphFailed)):
        model.step(batch)
    model.load_adapter(found)
    assert model.step(batch).tokens.tolist() == first
