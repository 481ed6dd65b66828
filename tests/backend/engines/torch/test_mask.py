"""What hides a token from another one, as a fused kernel takes it."""

import pytest

torch = pytest.importorskip("torch")

from ge_backend.engines.torch.mask import fused_mask_type, mask_of  # noqa: E402

SEEN = torch.tensor([[True, False], [True, True]])


def test_an_npu_takes_booleans_alone():
    """Of any other mask single operators compute there."""
    assert fused_mask_type(torch.bfloat16, torch.device("cpu")) == torch.bfloat16
    assert fused_mask_type(torch.bfloat16, torch.device("cuda", 1)) == torch.bfloat16
    npu = type("Device", (), {"type": "npu"})()
    assert fused_mask_type(torch.bfloat16, npu) == torch.bool


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("hidden", [-torch.inf, -1e9])
def test_all_types_hide_the_same(dtype, hidden):
    """Booleans say what is seen; numbers are added to scores."""
    query = torch.randn(1, 2, 4).to(dtype)
    found = [
        torch.nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=mask)
        for mask in (mask_of(SEEN, torch.bool, hidden), mask_of(SEEN, dtype, hidden))
    ]
    assert mask_of(SEEN, dtype, hidden).dtype == dtype
    torch.testing.assert_close(*found)
