"""Rows end to end whose attention is told where they end; the kernel is a stand-in, on the CPU."""

import math
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from builders.checkpoints import as_sentence_encoder, write_checkpoint  # noqa: E402
from fakes.torch_vendor import FakeVendor  # noqa: E402
from ge_backend.device.base import GraphSource  # noqa: E402
from ge_backend.engines.kinds.cuda import CudaDevice  # noqa: E402
from ge_backend.engines.torch import encoder_accelerator, varlen  # noqa: E402
from ge_backend.engines.torch.masked_layers import masks  # noqa: E402


def kernel(query, key, value, ends, _, most, __, *, scale=None, window_size=(-1, -1)):
    """What flash attention computes, row by row; what no block is for stays as it was found."""
    assert ends.dtype == torch.int32
    found = torch.full_like(query, torch.nan)
    for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        if begin == end:
            continue
        places = torch.arange(end - begin)
        back, ahead = (math.inf if reach < 0 else reach for reach in window_size)
        apart = places - places[:, None]
        near = (-back <= apart) & (apart <= ahead)
        parts = (item[begin:end].transpose(0, 1) for item in (query, key, value))
        own = torch.nn.functional.scaled_dot_product_attention(*parts, attn_mask=near, scale=scale)
        found[begin : begin + min(most, end - begin)] = own.transpose(0, 1)[:most]
    return found


class Counted:
    """The kernel, and how often it was called."""

    def __init__(self):
        self.calls = 0

    def __call__(self, *given, **further):
        self.calls += 1
        return kernel(*given, **further)


@pytest.fixture
def load(monkeypatch, tmp_path):
    """Return what opens an encoder on the accelerator, with the kernel or without it."""
    folder = as_sentence_encoder(write_checkpoint(tmp_path))
    for most in ("MAX_TOKENS", "MAX_TOKENS_VARLEN"):
        monkeypatch.setattr(encoder_accelerator, most, 64)
    opened = []

    def loaded(found, precision="bf16"):
        monkeypatch.setattr(encoder_accelerator, "find_varlen", lambda *_: found)
        source = GraphSource.of(folder / "config.json", precision=precision)
        opened.append(CudaDevice(FakeVendor()).load(source))
        return opened[-1]

    yield loaded
    for graph in opened:
        graph.close()


@pytest.mark.parametrize(
    "lengths", [(3, 30, 1, 0, 17, 8), (1,) * 40, (30,) * 3, (1,), (30, 2, 2, 2, 2, 2, 2)]
)
def test_it_answers_as_masks_do(load, lengths):
    """Rows of all lengths, also many short ones, for which a run has room all the same."""
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    ids = np.random.default_rng(2).integers(3, 200, mask.shape)
    given = {"input_ids": ids, "attention_mask": mask}
    counted = Counted()
    graphs = [load(found) for found in (counted, None)]
    before = counted.calls
    answers = [graph.run(given, {}, exclusive=False)["sentence_embedding"] for graph in graphs]
    assert counted.calls > before
    np.testing.assert_allclose(*answers, atol=0.02)
    assert np.isfinite(answers[0]).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 3])
def test_windows_are_as_with_masks(window, causal):
    """A token sees what is less than a window away, a decoder's none behind it."""
    ends, size = torch.tensor([0, 4, 13, 16]), 16
    rows = torch.bucketize(torch.arange(size), ends[1:], right=True)
    positions = torch.arange(size) - ends[rows]
    generator = torch.Generator().manual_seed(1)
    query, key, value = torch.randn(3, 1, 4, size, 8, generator=generator)
    ours = varlen.varlen(kernel, 12)(ends, positions)
    theirs = masks(torch.float32)(rows, positions)
    found, expected = (
        apart.attend(query, key, value, scale=0.3, window=window, causal=causal)
        for apart in (ours, theirs)
    )
    torch.testing.assert_close(found, expected)


class Gpu(FakeVendor):
    """Whose name torch takes for the CPU."""

    device = "cuda:0"


@pytest.fixture
def find(monkeypatch):
    """Return what looks for a kernel that is this function, on a GPU that is not there."""

    def made(*what, device, dtype, _make):
        return _make(*what, dtype=dtype)

    def find(kernel, dtype=torch.bfloat16, vendor=None, head=64):
        monkeypatch.setattr(varlen, "_kernel", lambda: kernel)
        with monkeypatch.context() as patch:
            for name in ("zeros", "tensor"):
                patch.setattr(torch, name, partial(made, _make=getattr(torch, name)))
            return varlen.find_varlen(dtype, head, vendor or Gpu())

    return find


def test_a_kernel_that_works_is_taken(find):
    """It is tried once."""
    counted = Counted()
    assert find(counted) is counted
    assert counted.calls == 1


@pytest.mark.parametrize(
    ("dtype", "device"),
    [(torch.float32, "cuda:0"), (torch.bfloat16, "cpu"), (torch.bfloat16, "npu:0")],
)
def test_only_16_bits_on_a_gpu_are_tried(find, dtype, device):
    """No other device has the kernel, and it knows no FP32."""
    vendor = Gpu()
    vendor.device = device
    assert find(pytest.fail, dtype, vendor) is None


def test_heads_of_unknown_size_are_not_tried(find):
    """They might be refused later, in a run."""
    assert find(pytest.fail, head=0) is None


def refusing(text):
    def refuse(*_):
        raise RuntimeError(text)

    return refuse


def test_masks_do_it_where_the_kernel_does_not(find, caplog):
    """An older GPU, or a head that is too wide for it."""
    caplog.set_level("INFO")
    assert find(refusing("FlashAttention only supports Ampere GPUs or newer.")) is None
    assert "FlashAttention only supports Ampere GPUs or newer." in caplog.text


@pytest.mark.parametrize("text", ["fake out of memory", "fake fault"])
def test_what_is_wrong_with_the_device_is_no_lack_of_a_kernel(find, text):
    """With more memory, or another executor, it may be there."""
    with pytest.raises(RuntimeError, match=text):
        find(refusing(text))


def test_a_torch_whose_function_knows_less_is_not_used(monkeypatch):
    """Newer ones have all parameters that are used; the first one did not."""
    module = pytest.importorskip("torch.nn.attention.varlen")
    if varlen._kernel() is None:
        pytest.skip(f"that of torch {torch.__version__} knows less")
    assert varlen._kernel() is module.varlen_attn
    monkeypatch.setattr(module, "varlen_attn", lambda query, key, value, is_causal=False: None)
    assert varlen._kernel() is None
