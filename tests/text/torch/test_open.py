"""A checkpoint is opened in the asked precision, with buckets captured where that is possible."""

import numpy as np
import pytest
import torch

from builders.language import make
from fakes.torch_vendor import FakeVendor
from ge_backend.device.base import MemoryInfo
from ge_backend.engines.torch import slow_half
from ge_backend.engines.torch.streams import Streams
from ge_backend.errors import (
    DeviceFault,
    DeviceUnavailable,
    GraphFailed,
    ModelError,
    OutOfMemory,
    Unsupported,
)
from ge_text.models.open import OpenLanguage
from ge_text.torch import open as module
from ge_text.torch.decoder import TransformersDecoder
from ge_text.torch.open import open_torch


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
    monkeypatch.setattr(slow_half, "_has_bf16", lambda: has_bf16)
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


SAID = [
    ("fake out of memory: 7", OutOfMemory),
    ("fake fault: gone", DeviceFault),
    ("no kernel", GraphFailed),
]


class Held:
    """What an opening that fails has on the device."""

    def __init__(self, vendor):
        self.block = vendor.empty(1000)


@pytest.mark.parametrize(("text", "kind"), SAID)
def test_weights_that_do_not_reach_an_accelerator(folder, monkeypatch, text, kind):
    """It tells why as one of our errors, and what was there already is given back."""
    vendor = FakeVendor()

    def load(checkpoint, **given):
        held = Held(vendor)
        assert held.block.numel()
        raise RuntimeError(text)

    monkeypatch.setattr(module, "load_decoder", load)
    with pytest.raises(kind, match=text) as raised:
        open_torch(asked(folder, device="cuda:0", streams=lambda: Streams(vendor)))
    assert raised.value.__cause__ is not None
    assert vendor.memory().free_bytes == vendor.total_bytes


@pytest.mark.parametrize(("text", "kind"), SAID)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_an_accelerator_that_fails_once_weights_are_there(tmp_path, monkeypatch, name, text, kind):
    """They are freed, in either form of a decoder."""
    make(tmp_path, name)
    vendor, loaded = FakeVendor(), module.load_decoder

    def load(checkpoint, **given):
        decoder = loaded(checkpoint, **given)
        weights = "_model" if isinstance(decoder, TransformersDecoder) else "_embedding"
        setattr(decoder, weights, vendor.empty(1000))
        return decoder

    def wait():
        raise RuntimeError(text)

    monkeypatch.setattr(module, "load_decoder", load)
    streams = Streams(vendor)
    monkeypatch.setattr(streams, "settle", wait)
    with pytest.raises(kind, match=text):
        open_torch(asked(tmp_path, device="cuda:0", streams=lambda: streams))
    assert vendor.memory().free_bytes == vendor.total_bytes


def test_what_stands_beside_the_weights_and_is_broken(folder):
    """A tokenizer that cannot be read leaves no weights on the device."""
    vendor = FakeVendor()
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="tokenizer"):
        open_torch(asked(folder, device="cuda:0", streams=lambda: Streams(vendor)))
    assert vendor.counts["give_back", ""] == 1


def test_lack_of_memory_found_by_the_check_of_a_decoder(tmp_path, monkeypatch):
    """It is not the architecture's fault."""
    make(tmp_path, "gpt2")

    def full(*given):
        raise RuntimeError("fake out of memory: 7")

    monkeypatch.setattr(TransformersDecoder, "_check", full)
    with pytest.raises(OutOfMemory, match="out of memory: 7"):
        open_torch(asked(tmp_path, device="cuda:0", streams=lambda: Streams(FakeVendor())))
    with pytest.raises(Unsupported, match="does not run 'gpt2'"):
        open_torch(asked(tmp_path))


def test_weights_that_do_not_fit_in_host_memory(folder, monkeypatch):
    """A CPU has lack of memory, too."""

    def load(checkpoint, **given):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 7 bytes")

    monkeypatch.setattr(module, "load_decoder", load)
    with pytest.raises(OutOfMemory, match="can't allocate memory"):
        open_torch(asked(folder))


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
