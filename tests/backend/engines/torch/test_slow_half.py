"""Who is told that BF16 is slow here."""

import pytest
import torch

from ge_backend.engines.torch import slow_bf16
from ge_backend.engines.torch.slow_bf16 import warn_of_slow_bf16


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("has_bf16", [True, False])
def test_the_line_names_the_model_and_what_to_set(monkeypatch, caplog, dtype, has_bf16):
    monkeypatch.setattr(slow_bf16, "_has_bf16", lambda: has_bf16)
    warn_of_slow_bf16("models/a/1/model.pt2", dtype)
    if dtype == torch.bfloat16 and not has_bf16:
        assert "models/a/1/model.pt2: torch computes BF16 slowly" in caplog.text
        assert "'precision'" in caplog.text
    else:
        assert not caplog.text


def test_this_torch_says_whether_the_processor_has_it():
    """A new torch may have renamed what is asked."""
    assert slow_bf16._has_bf16() in {True, False}


def test_a_torch_without_onednn_has_none(monkeypatch):
    """There the operator is missing, and a model is loaded all the same."""
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    monkeypatch.setattr(torch.ops, "mkldnn", object())
    assert not slow_bf16._has_bf16()


@pytest.mark.parametrize(
    ("avx512", "instructions", "has"),
    [(True, True, True), (True, False, False), (False, False, True)],
)
def test_avx512_without_the_instructions_has_none(monkeypatch, avx512, instructions, has):
    """There oneDNN computes in BF16, too; others that it knows have AMX, or are no x86."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: instructions)
    known = type("Known", (), {"_is_mkldnn_bf16_supported": staticmethod(lambda: True)})
    monkeypatch.setattr(torch.ops, "mkldnn", known)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert slow_bf16._has_bf16() is has
