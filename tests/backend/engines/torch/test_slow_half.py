"""Who is told that BF16 or FP16 is slow here."""

import pytest
import torch

from ge_backend.engines.torch import slow_half
from ge_backend.engines.torch.slow_half import warn_of_slow_half

NAMES = {torch.bfloat16: "BF16", torch.float16: "FP16"}


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("here", [None, torch.float16, torch.bfloat16])
def test_the_line_names_the_model_and_what_to_set(monkeypatch, caplog, dtype, here):
    """Of the one of the two that the processor does not have."""
    monkeypatch.setattr(slow_half, "_has_bf16", lambda: here == torch.bfloat16)
    monkeypatch.setattr(slow_half, "_has_fp16", lambda: here == torch.float16)
    warn_of_slow_half("models/a/1/model.pt2", dtype)
    if dtype in NAMES and dtype != here:
        assert f"models/a/1/model.pt2: torch computes {NAMES[dtype]} slowly" in caplog.text
        assert "'precision'" in caplog.text
    else:
        assert not caplog.text


def test_this_torch_says_whether_the_processor_has_it():
    """A new torch may have renamed what is asked."""
    assert slow_half._has_bf16() in {True, False}
    assert slow_half._has_fp16() in {True, False}


def test_a_torch_without_onednn_has_none(monkeypatch):
    """There the operator is missing, and a model is loaded all the same."""
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    monkeypatch.setattr(torch.ops, "mkldnn", object())
    assert not slow_half._has_bf16()
    assert not slow_half._has_fp16()


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
    assert slow_half._has_bf16() is has
