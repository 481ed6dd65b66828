"""OpenVINO's steps over the paged cache draw, token for token, what transformers' `generate` draws."""

import dataclasses
import functools

import numpy as np
import pytest
import torch

from builders.adapters import make_adapter
from builders.language import (
    LLAMAS,
    VOCABULARY,
    batch_of,
    generated,
    in_openvino,
    make,
    run,
    texts_for,
)
from ge_backend.engines.ov.signal_stack import signal_stack
from ge_backend.errors import GraphFailed, ModelError
from ge_text.engine.warmup import prepare_kinds
from ge_text.models.adapter_folder import AdapterFolder
from ge_text.models.batch import full_batch, padding_batch
from ge_text.models.sampling import Sampling
from ge_text.openvino.graph import BLOCK_SIZE

LENGTHS = (1, 3, 31, 32, 33, 17, 2, 70)
GROWTH = 10
LONGEST = max(LENGTHS) + GROWTH


@functools.cache
def prompts():
    rng = np.random.default_rng(3)
    return [rng.integers(1, VOCABULARY, length) for length in LENGTHS]


def grown(model, texts, **building):
    run(model, texts, GROWTH, np.random.default_rng(1), chunk=23, **building)
    return [text.output for text in texts]


@pytest.mark.parametrize("name", LLAMAS)
def test_every_family_draws_what_transformers_draws(tmp_path, name):
    """Prompts of mixed lengths, in chunks, joined by others between any two steps."""
    reference = make(tmp_path, name)
    texts, blocks = texts_for(prompts(), np.random.default_rng(5), BLOCK_SIZE, LONGEST)
    model = in_openvino(tmp_path, blocks=blocks)
    expected = [generated(reference, prompt, GROWTH) for prompt in prompts()]
    assert grown(model, texts) == expected
    again, _ = texts_for(prompts(), np.random.default_rng(6), BLOCK_SIZE, LONGEST)
    model.open_cache(blocks)  # another one: what was bound before is not written to
    assert grown(model, again, together=False) == expected


def test_several_threads_draw_the_same(tmp_path):
    """However many there are."""
    make(tmp_path, "llama")
    found = []
    for threads in (1, 3):
        texts, blocks = texts_for(prompts(), np.random.default_rng(5), BLOCK_SIZE, LONGEST)
        found.append(grown(in_openvino(tmp_path, blocks=blocks, threads=threads), texts))
    assert found[0] == found[1]


def test_half_precision_is_as_near_as_torchs(tmp_path):
    """Log-probabilities of one text, beside those of transformers' model in FP32 and in BF16."""
    reference = make(tmp_path, "llama")
    texts, blocks = texts_for([prompts()[-1]], np.random.default_rng(5), BLOCK_SIZE, LONGEST)
    texts[0].sampling = Sampling(temperature=0.0, logprobs=0)
    model = in_openvino(tmp_path, blocks=blocks, dtype="BF16")
    drawn = model.step
    seen = []

    def step(batch):
        found = drawn(batch)
        seen.extend(found.logprobs.tolist())
        return found

    model.step = step
    (tokens,) = grown(model, texts)
    ids = torch.tensor([[*prompts()[-1], *tokens]])

    def scores(oracle):
        with torch.inference_mode():
            found = oracle(ids).logits[0, LENGTHS[-1] - 1 : -1].float().log_softmax(-1)
        return found.gather(1, torch.tensor(tokens)[:, None])[:, 0].numpy()

    exact = scores(reference)
    theirs, ours = np.abs(scores(reference.bfloat16()) - exact), np.abs(np.array(seen) - exact)
    assert 0 < ours.mean() <= 1.5 * theirs.mean() + 0.01
    assert ours.max() <= 2 * theirs.max() + 0.05


def test_eight_bits_draw_the_same_whatever_runs_beside(tmp_path):
    """Activations are quantised row by row: a text alone, in chunks, or among others is the same."""
    make(tmp_path, "llama", hidden_size=64, intermediate_size=96)
    found = []
    for together in (True, False):
        texts, blocks = texts_for(prompts(), np.random.default_rng(5), BLOCK_SIZE, LONGEST)
        model = in_openvino(tmp_path, blocks=blocks, compressed=True)
        found.append(grown(model, texts, together=together))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", LLAMAS)
def test_keys_of_eight_bits_are_the_same_whatever_runs_beside(tmp_path, name):
    """Each token's have a scale of their own: a text alone, or among others, is the same."""
    make(tmp_path, name, head_dim=64)
    found = []
    for together in (True, False):
        texts, blocks = texts_for(prompts(), np.random.default_rng(5), BLOCK_SIZE, LONGEST)
        model = in_openvino(tmp_path, blocks=blocks, narrow_cache=True)
        found.append(grown(model, texts, together=together))
    assert found[0] == found[1]


def test_rows_of_padding_touch_nobodys_keys(tmp_path):
    """They write to block 0, however many there are, and so do those that make a model ready."""
    make(tmp_path, "llama")
    model = in_openvino(tmp_path, blocks=9)
    with torch.inference_mode():
        for cache in (*model._cache.keys, *model._cache.values):
            cache.fill_(3)
    drawn = model.step(padding_batch((3, 5, 2)))
    assert drawn.tokens.shape == (3,)
    prepare_kinds(model)
    for cache in (*model._cache.keys, *model._cache.values):
        assert (cache[0] != 3).any()
        assert (cache[1:] == 3).all()


def test_a_step_may_draw_nothing(tmp_path):
    """A piece of a prompt that goes on."""
    make(tmp_path, "llama")
    model = in_openvino(tmp_path, blocks=6)
    (text,), _ = texts_for([prompts()[-1]], np.random.default_rng(5), BLOCK_SIZE, LONGEST)
    drawn = model.step(batch_of([(text, 40)], BLOCK_SIZE))
    assert drawn.tokens.shape == (0,)


def test_a_run_that_fails_says_what_was_wrong(tmp_path):
    """Not in which of OpenVINO's files."""
    make(tmp_path, "llama")
    model = in_openvino(tmp_path, blocks=6)
    batch = padding_batch((1, 1, 1))
    outside = dataclasses.replace(batch, sampled=np.array([[0]]))
    with pytest.raises(GraphFailed, match=r"(?i)shape|rank|dim") as raised:
        model.step(outside)
    assert "Exception from" not in str(raised.value)
    assert model.step(batch).tokens.shape == (1,)


def test_a_step_of_the_largest_size_is_one_that_can_be_run(tmp_path):
    """As memory is measured by it."""
    make(tmp_path, "llama")
    model = in_openvino(tmp_path, blocks=6)
    assert model.scratch_bytes([(2, 40, 3), (4, 1, 2)]) > 0
    batch = full_batch([(2, 1, 2)], block_size=BLOCK_SIZE, num_blocks=6, sampling=Sampling())
    assert model.step(batch).tokens.shape == (2,)


def test_a_step_with_adapters_has_a_graph_of_its_own_on_the_same_cache(tmp_path):
    """A text without one, in turns with it, does not notice."""
    base = make(tmp_path, "llama")
    adapted = make_adapter(tmp_path, "pirate", base)
    model = in_openvino(tmp_path, blocks=40)
    stored = AdapterFolder(tmp_path, model.products, model.dtype).find("pirate")
    model.load_adapter(stored)
    asked = prompts()[4:6]
    texts, _ = texts_for(asked, np.random.default_rng(5), BLOCK_SIZE, LONGEST)
    plain = [generated(base, prompt, GROWTH) for prompt in asked]
    pirate = generated(adapted, asked[1], GROWTH)
    assert pirate != plain[1]
    for _ in range(GROWTH):
        counts = [len(text.known) - text.computed for text in texts]
        for text, count, adapted in zip(texts, counts, (False, True), strict=True):
            batch = batch_of([(text, count)], BLOCK_SIZE)
            adapters = {stored.key: np.arange(count)} if adapted else {}
            drawn = model.step(dataclasses.replace(batch, adapters=adapters))
            text.computed += count
            text.output.append(int(drawn.tokens[0]))
    assert [text.output for text in texts] == [plain[0], pirate]


@pytest.mark.parametrize("there", [True, False])
def test_no_step_mixes_weights_of_two_checkpoints(tmp_path, there):
    """Those for adapters are read when the first one comes: other files may lie there by then."""
    base = make(tmp_path, "llama")
    make_adapter(tmp_path, "pirate", base)
    model = in_openvino(tmp_path, blocks=10)
    stored = AdapterFolder(tmp_path, model.products, model.dtype).find("pirate")
    model.load_adapter(stored)
    make(tmp_path / "new", "llama", seed=9)
    if there:
        (tmp_path / "new" / "model.safetensors").replace(tmp_path / "model.safetensors")
    else:
        (tmp_path / "model.safetensors").unlink()
    prompt = prompts()[1]
    (text,), _ = texts_for([prompt], np.random.default_rng(5), BLOCK_SIZE, LONGEST)
    batch = batch_of([(text, len(prompt))], BLOCK_SIZE)
    adapted = dataclasses.replace(batch, adapters={stored.key: np.arange(len(prompt))})
    with pytest.raises(ModelError, match="are others than those that are served"):
        model.step(adapted)
    assert model.step(batch).tokens.tolist() == generated(base, prompt, 1)


def test_closing_leaves_the_threads_signals_as_they_were(tmp_path):
    """OpenVINO changes the stack for them, and a Ctrl-C would end the process."""
    make(tmp_path, "llama")
    before = signal_stack()
    model = in_openvino(tmp_path, blocks=6)
    model.prepare((1, 1, 1))
    model.close()
    after = signal_stack()
    assert (after.place, after.nbytes) == (before.place, before.nbytes)
