"""The graph has the inputs that are given to it, and says where an OpenVINO has another operator."""

import openvino
import pytest
import torch

from builders.language import VOCABULARY, make
from ge_backend.errors import ModelError, Unsupported
from ge_backend.model.files.checkpoint import read_checkpoint
from ge_text.openvino.graph import llama_graph, tensor_of
from ge_text.torch.llama_weights import LlamaWeights
from ge_text.torch.loading import reading


def graph(folder, dtype=torch.float32):
    checkpoint = read_checkpoint(folder)
    with reading(checkpoint, torch.float32) as read:
        return llama_graph(LlamaWeights(checkpoint, read), dtype)


def test_inputs_and_output_are_those_that_are_documented(tmp_path):
    """Names, types and shapes: three layers, two heads of keys of eight elements."""
    make(tmp_path, "llama")
    model = graph(tmp_path, torch.bfloat16)
    inputs = {p.get_friendly_name(): p for p in model.get_parameters()}
    assert list(inputs)[:9] == [
        *("ids", "cos", "sin", "sampled", "past_lens", "subsequence_begins"),
        *("block_indices", "block_indices_begins", "max_context_len"),
    ]
    caches = [inputs[f"{part}_cache.{index}"] for index in range(3) for part in ("key", "value")]
    assert list(inputs.values())[9:] == caches
    for cache in caches:
        assert cache.get_element_type() == openvino.Type.dynamic
        assert str(cache.get_partial_shape()) == "[?,2,32,?]"
    (out,) = model.outputs
    assert out.get_element_type() == openvino.Type.f32
    assert out.get_partial_shape()[1].get_length() == VOCABULARY


def test_weights_in_half_precision_stay_as_they_are(tmp_path):
    """OpenVINO would hold a wide copy of each for good."""
    make(tmp_path, "llama")
    checkpoint = read_checkpoint(tmp_path)
    with reading(checkpoint, torch.bfloat16) as read:
        model = llama_graph(LlamaWeights(checkpoint, read), torch.bfloat16)
    weights = [op for op in model.get_ordered_ops() if op.get_type_name() == "Convert"]
    assert len(weights) == 2 + 4 * 3
    assert all("decompression_0" in op.get_rt_info() for op in weights)


def test_another_paged_attention_is_told_with_the_version(tmp_path, monkeypatch):
    """The operator is not promised to stay as it is; torch serves the model then."""
    make(tmp_path, "llama")

    def refuse(_):
        raise RuntimeError("expects 31 inputs, but it has 28")

    monkeypatch.setattr(openvino.op, "_PagedAttentionExtension", refuse)
    with pytest.raises(Unsupported, match=r"OpenVINO \d+.*another paged attention.*31 inputs"):
        graph(tmp_path)
    monkeypatch.delattr(openvino.op, "_PagedAttentionExtension")
    with pytest.raises(Unsupported, match="another paged attention"):
        graph(tmp_path)


def test_a_missing_weight_is_named(tmp_path):
    """As with torch."""
    make(tmp_path, "llama")
    checkpoint = read_checkpoint(tmp_path)
    del checkpoint.tensors["model.norm.weight"]
    with (
        reading(checkpoint, torch.float32) as read,
        pytest.raises(ModelError, match=r"model\.norm\.weight.*found nothing"),
    ):
        llama_graph(LlamaWeights(checkpoint, read), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_shared_tensor_is_the_same_memory(dtype):
    """A cache is written to where it is."""
    tensor = torch.arange(6, dtype=dtype).view(2, 3)
    seen = tensor_of(tensor)
    assert list(seen.shape) == [2, 3]
    tensor[1, 2] = 40
    bits = torch.from_numpy(seen.data).view(dtype)
    assert float(bits[1, 2]) == 40
