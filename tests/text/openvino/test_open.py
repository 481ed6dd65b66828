"""OpenVINO computes the checkpoints that it can; torch the others, unless somebody asked for it."""

import logging
import sys

import pytest
import torch

from builders.language import make
from ge_backend.device.base import MemoryInfo
from ge_backend.engines.ov.precision import computed_in
from ge_backend.errors import DeviceUnavailable, Unsupported
from ge_text.models.open import OpenLanguage, open_language
from ge_text.openvino import open as module
from ge_text.openvino.decoder import OpenVinoDecoder
from ge_text.torch.llama import LlamaDecoder
from ge_text.torch.loading import DTYPES, NAMES


def asked(folder, **given):
    defaults = {"device": "cpu", "precision": "origin", "threads": 1, "block_size": 32}
    memory = MemoryInfo(free_bytes=2**30, total_bytes=2**30)
    return OpenLanguage(folder=folder, memory=lambda: memory, **{**defaults, **given})


@pytest.fixture
def folder(tmp_path):
    make(tmp_path, "llama")
    return tmp_path


@pytest.mark.parametrize(
    ("precision", "dtype"), [("origin", "FP32"), ("bf16", "BF16"), ("fp16", "FP32")]
)
def test_it_comes_first_in_the_precisions_that_a_cpu_has(folder, caplog, precision, dtype):
    """Nobody has to ask for it, and the log says so."""
    computed = NAMES[computed_in(DTYPES[dtype])]
    with caplog.at_level(logging.INFO):
        model = open_language(asked(folder, precision=precision)).model
    assert f"{folder}: openvino computes it" in caplog.text
    assert isinstance(model._decoder, OpenVinoDecoder)
    assert (model.dtype, model.block_size) == (computed, 32)
    assert len(model.products) == 4 * 3


def test_who_asks_for_torch_gets_torch(folder):
    """And the same tokens."""
    model = open_language(asked(folder, engine="torch")).model
    assert isinstance(model._decoder, LlamaDecoder)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"block_size": 16}, "block_size 16, it has 32"),
        ({"cache_dtype": "bf16"}, "kv_cache_dtype bf16"),
        ({"padded": True}, "buckets"),
    ],
)
def test_what_it_cannot_do_is_torchs(folder, caplog, given, reason):
    """The log says why; who asked for it gets the reason as an error."""
    with caplog.at_level(logging.INFO):
        model = open_language(asked(folder, **given)).model
    assert isinstance(model._decoder, LlamaDecoder)
    assert f"torch computes it. {folder}: OpenVINO does not run it: {reason}" in caplog.text
    with pytest.raises(Unsupported, match=f"OpenVINO does not run it: {reason}"):
        open_language(asked(folder, engine="openvino", **given))


def test_no_engine_is_for_a_device_that_computes_none(folder):
    """Neither is imported for it."""
    with pytest.raises(DeviceUnavailable, match="no engine computes a text generator on 'moon:1'"):
        open_language(asked(folder, device="moon:1"))


def test_a_processor_without_bf16_computes_in_fp32(folder, monkeypatch, caplog):
    """Weights stay in BF16; OpenVINO would refuse a cache of it there. A cache in BF16 is torch's."""
    monkeypatch.setattr(module, "computed_in", lambda _: torch.float32)
    with caplog.at_level(logging.INFO):
        model = open_language(asked(folder, precision="bf16")).model
    assert isinstance(model._decoder, OpenVinoDecoder)
    assert (model.dtype, model._form.dtype) == ("FP32", torch.float32)
    assert "this processor has no BF16: weights of it are computed in FP32" in caplog.text
    kept = open_language(asked(folder, precision="bf16", cache_dtype="bf16")).model
    assert isinstance(kept._decoder, LlamaDecoder)


def test_other_architectures_are_torchs(tmp_path):
    """GPT-2 is run by transformers' modules."""
    make(tmp_path, "gpt2")
    open_language(asked(tmp_path)).model.close()
    with pytest.raises(Unsupported, match="architecture GPT2LMHeadModel"):
        open_language(asked(tmp_path, engine="openvino"))


PACKAGES = "ge_backend.engines.ov.", "ge_text.openvino."


def test_where_it_is_not_installed_torch_does_it(folder, monkeypatch):
    """Who asked for it is told what to type."""
    for name in [name for name in sys.modules if name.startswith(PACKAGES)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "openvino", None)
    assert isinstance(open_language(asked(folder)).model._decoder, LlamaDecoder)
    with pytest.raises(DeviceUnavailable, match=r"needs openvino; pip install .*\[openvino\]"):
        open_language(asked(folder, engine="openvino"))
