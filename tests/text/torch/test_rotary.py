"""Frequencies and rotations are those of transformers' Llama."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from builders.language import COMMON, LLAMA3, rotary
from ge_text.torch.rotary import ROTARY_KINDS, Rotation, frequencies

KINDS = {
    "default": rotary("default"),
    "linear": rotary("linear", factor=4.0),
    "llama3": LLAMA3,
}


@pytest.mark.parametrize("kind", ROTARY_KINDS)
def test_heads_are_rotated_as_transformers_does(kind):
    """Every kind that is covered, over positions near and far."""
    config = LlamaConfig(**COMMON, head_dim=32, **KINDS[kind])
    positions = torch.tensor([0, 1, 7, 100, 100_000])
    heads = torch.randn(5, 3, 32, generator=torch.Generator().manual_seed(3))
    embedding = LlamaRotaryEmbedding(config)
    per_position = frequencies(config.rope_parameters, 32)
    torch.testing.assert_close(per_position, embedding.inv_freq, rtol=1e-6, atol=0)
    cos, sin = embedding(heads, positions.unsqueeze(0))
    expected, _ = apply_rotary_pos_emb(heads.transpose(0, 1), heads.transpose(0, 1), cos, sin)
    found = Rotation(embedding.inv_freq, positions, torch.float32)(heads)
    torch.testing.assert_close(found, expected[0].transpose(0, 1), rtol=1e-5, atol=1e-6)


def test_no_theta_is_the_usual_one():
    """The papers' 10,000."""
    plain = frequencies({"rope_type": "default"}, 8)
    assert torch.equal(plain, frequencies({"rope_type": "default", "rope_theta": 10_000.0}, 8))
    assert plain[0] == 1.0
