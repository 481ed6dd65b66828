"""A checkpoint is opened in the asked precision, with buckets captured where that is possible."""

import numpy as np
import pytest
import torch

from builders.language import make
from fakes.torch_vendor import FakeVendor
from ge_backend.device.base import MemoryInfo
from ge_backend.device.language.open import OpenLanguage
from ge_backend.device.pytorch import slow_bf16
from ge_backend.device.pytorch.language.open import open_torch
from ge_backend.device.pytorch.streams import Streams
from ge_backend.errors import DeviceUnavailable


def asked(folder, device="cpu", precision="origin", threads=1, **given):
    return OpenLanguage(
        device=device,
        folder=folder,
        precision=precision,
        threads=threads,
        block_size=4,
        memory=lambda: MemoryInfo(free_bytes=2**30, total_bytes=2**30),
        **given,
    )


@pytest.fixture
def folder(tmp_path):
    make(tmp_path, "llama")
    return tmp_path


@pytest.mark.parametrize(
    ("precision", "dtype"), [("origin", "FP32"), ("bf16", "BF16"), ("fp16", "FP32")]
)
def test_a_cpu_serves_what_it_can_compute(folder, precision, dtype):
    """As stored, or in BF16; a CPU without FP16 arithmetic computes that in FP32."""
    opened = open_torch(asked(folder, precision=precision))
    assert opened.model.dtype == dtype
    assert opened.tokenizer is None
    assert dict(opened.sampling) == {}


def test_what_is_stored_in_less_is_served_in_fp32_where_that_is_asked_for(tmp_path):
    """`origin` is as stored; its cache may be the half of it."""
    make(tmp_path, "llama").to(torch.bfloat16).save_pretrained(tmp_path)
    stored, wide = (open_torch(asked(tmp_path, precision=one)).model for one in ("origin", "fp32"))
    assert (stored.dtype, wide.dtype) == ("BF16", "FP32")
    narrow = open_torch(asked(tmp_path, precision="fp32", cache_dtype="bf16")).model
    assert narrow.dtype == "FP32"
    assert (wide.cache_bytes_per_block(), narrow.cache_bytes_per_block()) == (
        2 * stored.cache_bytes_per_block(),
        stored.cache_bytes_per_block(),
    )


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("has_bf16", [True, False])
def test_bf16_on_a_processor_without_it_is_told(folder, monkeypatch, caplog, precision, has_bf16):
    """It is slow there; what else there is stands in the line."""
    monkeypatch.setattr(slow_bf16, "_has_bf16", lambda: has_bf16)
    open_torch(asked(folder, precision=precision))
    told = "set the parameter 'precision' to 'fp32'" in caplog.text
    assert told == (precision == "bf16" and not has_bf16)


def test_an_accelerator_captures_its_buckets(folder, monkeypatch):
    """Of whichever vendor; the index is that of the device's name."""
    for name in ("cuda:3", "npu:1"):
        streams = Streams(FakeVendor())
        model = open_torch(asked(folder, device=name, streams=lambda one=streams: one)).model
        model.open_cache(9)
        model.prepare((2, 1, 4))
        assert model._streams is streams  # the device's own: two would capture side by side
        assert streams.vendor.counts["capture", "compute"] == 1


def test_a_device_that_torch_does_not_know_is_named(folder):
    """Whatever came of a configuration."""
    with pytest.raises(DeviceUnavailable, match="no device 'moon:1'"):
        open_torch(asked(folder, device="moon:1"))


def test_numbers_of_the_model_follow_what_was_asked(folder):
    """Block size and threads come from the settings."""
    model = open_torch(asked(folder, threads=1)).model
    assert (model.block_size, model._threads) == (4, 1)
    assert model.memory_left() == 2**28
    assert np.isscalar(model.cache_bytes_per_block())
