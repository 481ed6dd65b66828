"""Our decoder holds its weights in what is served; what it computes is in test_model.py."""

import torch

from builders.language import CPU, make
from ge_backend.model.files.checkpoint import read_checkpoint
from ge_text.torch.loading import load_decoder


def test_weights_are_converted_to_what_is_served(tmp_path):
    """Whatever they are stored in."""
    make(tmp_path, "llama")
    decoder = load_decoder(read_checkpoint(tmp_path), dtype="BF16", device=CPU)
    assert decoder.dtype == torch.bfloat16
    assert decoder._embedding.dtype == torch.bfloat16
