"""Packed weights give the products of plain ones."""

import pytest
import torch

from ge_backend.engines.torch import linear as module
from ge_backend.engines.torch.linear import linear

TYPES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", [0, 1, 5, 40])
def test_a_layer_is_a_product_with_a_bias_and_a_sum(monkeypatch, packs, bias, dtype, rows):
    """Whether weights are packed shows in the time alone."""
    if packs and not module._packs(dtype):
        pytest.skip("this torch or processor cannot pack")
    monkeypatch.setattr(module, "_packs", lambda _: packs)
    generator = torch.Generator().manual_seed(2)

    def numbers(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    weight, given, other = numbers(24, 16), numbers(rows, 16), numbers(rows, 24)
    offset = numbers(24) if bias else None
    expected = given.float() @ weight.float().t() + (offset.float() if bias else 0)
    with torch.inference_mode():
        layer = linear(weight.clone(), offset)
        close = {"rtol": TYPES[dtype], "atol": 10 * TYPES[dtype]}
        torch.testing.assert_close(layer(given).float(), expected, **close)
        added = layer.added_to(other, given).float()
        torch.testing.assert_close(added, expected + other.float(), **close)


def test_this_torch_packs_on_cpus():
    """Else everything works and nothing is gained: a new torch may have renamed the operators."""
    assert module._packs(torch.float32)


def test_where_torch_cannot_pack_it_multiplies(monkeypatch):
    """Half precision on a CPU, a build without oneDNN, other devices."""
    assert type(linear(torch.ones(2, 2, dtype=torch.float16))).__name__ == "_Plain"
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert type(linear(torch.ones(2, 2))).__name__ == "_Plain"
    monkeypatch.undo()
    monkeypatch.setattr(torch.ops, "mkldnn", object())
    assert not module._packs(torch.float32)
