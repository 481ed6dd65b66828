"""Rows divided by their root mean square, in whichever form is the faster."""

import pytest
import torch

from ge_text.torch.norm import FEW_ROWS, RmsNorm


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
