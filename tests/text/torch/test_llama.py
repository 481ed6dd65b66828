"""Our decoder holds its weights in what is served; what it computes is in test_model.py."""

import pytest
import torch

from builders.language import CPU, make
from ge_backend.model.files.checkpoint import read_checkpoint
from ge_text.torch.llama import FEW_ROWS, RmsNorm
from ge_text.torch.loading import load_decoder


def test_weights_are_converted_to_what_is_served(tmp_path):
    """Whatever they are stored in."""
    make(tmp_path, "llama")
    decoder = load_decoder(read_checkpoint(tmp_path), dtype="BF16", device=CPU)
    assert decoder.dtype == torch.bfloat16
    assert decoder._embedding.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, FEW_ROWS, FEW_ROWS + 1])
@pytest.mark.parametrize("size", [1e-3, 1.0, 300.0])
def test_a_row_is_divided_by_its_root_mean_square(dtype, rows, size):
    """Few rows and many give what the definition says, as exactly as their type holds it."""
    generator = torch.Generator().manual_seed(3)
    given = (size * torch.randn(rows, 48, generator=generator) + size).to(dtype)
    weight = torch.randn(48, generator=generator).to(dtype)
    exact = given.double()
    expected = exact / (exact.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    with torch.inference_mode():
        found = RmsNorm(weight, 1e-5)(given)
    assert found.dtype == dtype
    rtol, atol = (1e-5, 1e-6) if dtype == torch.float32 else (2e-2, 1e-3)
    torch.testing.assert_close(found.double(), expected, rtol=rtol, atol=atol)
