"""Scores of a fixed text are the model's own, and how far others are from them is one number."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from builders.language import VOCABULARY, make
from builders.writer import make_writer
from ge_backend.model.files.checkpoint import read_checkpoint
from ge_text.models.open import SCALE_BYTES
from ge_text.openvino.nearness import divergence, fixed_ids, log_probabilities
from ge_text.openvino.open import MAX_DIVERGENCE, load_openvino


def test_the_text_is_read_with_the_models_own_tokenizer(tmp_path):
    """As much of it as the model sees."""
    writer = make_writer(tmp_path, positions=64)
    ids = fixed_ids(read_checkpoint(tmp_path))
    assert (ids.dtype, len(ids)) == (np.int64, 64)
    assert writer.text(ids.tolist()).startswith("The river rises in the hills")


def test_without_a_tokenizer_ids_are_from_all_over_the_vocabulary(tmp_path):
    """They are tokens, and not always the same one."""
    make(tmp_path, "llama")
    ids = fixed_ids(read_checkpoint(tmp_path))
    assert len(ids) == 128
    assert set(ids.tolist()) == set(range(VOCABULARY))


@pytest.mark.parametrize("count", [1, 32, 33, 100])
def test_scores_are_those_of_transformers(tmp_path, count):
    """Each token sees those before it, over one block or several."""
    reference = make(tmp_path, "llama")
    checkpoint = read_checkpoint(tmp_path)
    ids = fixed_ids(checkpoint)[:count]
    decoder = load_openvino(checkpoint, dtype="FP32", threads=1)
    found = log_probabilities(decoder, ids)
    with torch.inference_mode():
        expected = reference(torch.from_numpy(ids)[None]).logits[0].log_softmax(-1)
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)
    assert abs(divergence(expected, found)) < 1e-5


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", ["llama", "llama-one-key-head", "gemma3", "qwen3"])
def test_keys_and_values_of_eight_bits_are_near(tmp_path, name, dim):
    """Read at once and token by token. A number takes a byte, and each head of a token eight more."""
    make(tmp_path, name, head_dim=dim)
    checkpoint = read_checkpoint(tmp_path)
    ids = fixed_ids(checkpoint)[:100]
    load = partial(load_openvino, checkpoint, dtype="FP32", threads=1)
    wide, narrow = load(), load(narrow_cache=True)
    assert (wide.cache_dtype, narrow.cache_dtype) == (torch.float32, torch.uint8)
    (shape,), (own,) = set(narrow.shapes), set(wide.shapes)
    assert (shape.heads, shape.key_dim, shape.value_dim) == (
        *(own.heads, own.key_dim + SCALE_BYTES, own.value_dim + SCALE_BYTES),
    )
    exact = log_probabilities(wide, ids)
    for singles in (0, 20):
        found = log_probabilities(narrow, ids, singles)
        assert found.shape == exact.shape
        assert 0 < divergence(exact, found) < MAX_DIVERGENCE
        assert abs(divergence(exact, log_probabilities(wide, ids, singles))) < 1e-5


def test_the_mean_divergence_is_that_of_its_definition():
    """Of two rows, one of which is the same; what is no number is infinitely far."""
    expected = torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log()
    found = torch.tensor([[0.5, 0.5], [0.1, 0.9]]).log()
    assert divergence(expected, found) == pytest.approx(0.8 * math.log(9) / 2)
    assert divergence(expected, torch.full((2, 2), torch.nan)) == math.inf
