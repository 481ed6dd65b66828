"""A Llama's step as one OpenVINO graph: embedding, layers with paged attention, scores.

Tokens of all sequences stand behind one another, [T, 1, hidden]. What the graph is given beside
them says which are whose: `past_lens` and `subsequence_begins` cut them into sequences,
`block_indices` and `block_indices_begins` are their tables. Letters: T tokens, S of them sampled,
H heads of queries, K of keys, D elements of a head.

Weights are the constants that they were read as; OpenVINO packs them when it compiles the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import openvino
import torch
from openvino import Type
from openvino import opset13 as ops

from ge_backend.engines.ov.model import cause, shared
from ge_backend.errors import Unsupported
from ge_text.torch.llama_weights import Dense, LlamaLayer, LlamaWeights

__all__ = [
    "BLOCK_SIZE",
    "TYPES",
    "WHOSE",
    "adapter_names",
    "llama_graph",
    "rotation_names",
    "tensor_of",
]

# Tokens of a block: what OpenVINO's paged attention has on a CPU (its plugin sets the shape of the
# cache to [blocks, K, 32, D] by itself, and refuses another one).
BLOCK_SIZE = 32
# Marks what makes a weight wide, so that OpenVINO does not do it once and for all, which would be
# one more copy of all of them. Source: openvino/core/rt_info/decompression.hpp, `Decompression`.
AS_IT_IS = "decompression_0"
# The input that says which columns of adapters are a token's own.
WHOSE = "whose"
TYPES = {torch.float32: Type.f32, torch.bfloat16: Type.bf16, torch.uint8: Type.u8}
# The operator's inputs behind `max_context_len`, their types and shapes: none of them is used here.
# Source: openvino/op/paged_attention.hpp, 2026.4; it is not promised to stay as it is.
SCALAR, EMPTY = (), (0,)
UNUSED: Mapping[str, tuple[type[np.generic], tuple[int, ...]]] = {
    "score_aggregation_window": (np.int32, EMPTY),
    "rotated_block_indices": (np.int32, EMPTY),
    "rotation_deltas": (np.int32, EMPTY),
    "rotation_trig_lut": (np.float32, EMPTY),
    "xattention_threshold": (np.float32, EMPTY),
    "xattention_block_size": (np.int32, SCALAR),
    "xattention_stride": (np.int32, SCALAR),
    "sinks": (np.float32, EMPTY),
    "adaptive_rkv_start_size": (np.int32, SCALAR),
    "adaptive_rkv_evictable_sizes": (np.int32, EMPTY),
    "adaptive_rkv_diversity_block_set_indices": (np.int32, EMPTY),
    "adaptive_rkv_diversity_block_set_indices_begins": (np.int32, EMPTY),
    "token_type_ids": (np.int32, EMPTY),
    "qq_bias": (np.uint8, EMPTY),
    "qq_bias_begins": (np.int32, EMPTY),
}


def llama_graph(weights: LlamaWeights, dtype: torch.dtype, *, adapted: bool = False) -> Any:
    """Return the model, in float32 arithmetic; what compiles it may choose a lower one.

    Inputs, in this order: int64 `ids` [T]; float32 `cos` and `sin` [T, 1, 1, D] of each rotary
    embedding, see `rotation_names`; int64 `sampled` [S]; int32 `past_lens` [B],
    `subsequence_begins` [B + 1], `block_indices`, `block_indices_begins` [B + 1],
    `max_context_len` []; then for each layer keys and values [blocks, K, 32, D], which a step
    writes to; what compiles it chooses their type, and D by that. The one output is float32
    [S, vocabulary].

    One that is `adapted` takes more: float32 `whose` [T, R], R any number but 0, and [R, inputs]
    and [outputs, R] for each product of `LlamaWeights.products`, see `adapter_names`.

    Raises:
        ModelError: the checkpoint lacks a weight, or has another shape of it.
        Unsupported: this OpenVINO has no such operator.
    """
    return _Builder(weights, TYPES[dtype], adapted=adapted).model()


def rotation_names(index: int) -> tuple[str, str]:
    """Return what the graph's inputs for one of its rotary embeddings are called."""
    ending = f".{index}" if index else ""
    return f"cos{ending}", f"sin{ending}"


def adapter_names(product: int) -> tuple[str, str]:
    """Return what the graph's inputs are called that adapt the product of this number."""
    return f"down.{product}", f"up.{product}"


class _Builder:
    def __init__(self, weights: LlamaWeights, kind: Any, *, adapted: bool) -> None:
        self._weights, self._kind, self._adapted = weights, kind, adapted
        self._inputs: list[Any] = []
        self._products = enumerate(weights.products())  # in the order in which they are made
        self._whose: Any = None

    def model(self) -> Any:
        weights = self._weights
        ids = self._input("ids", Type.i64, [-1])
        around = [
            [self._input(name, Type.f32, [-1, 1, 1, weights.dim]) for name in rotation_names(index)]
            for index in range(len(weights.frequencies))
        ]
        sampled = self._input("sampled", Type.i64, [-1])
        tables = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")
        whose = [self._input(name, Type.i32, [-1]) for name in tables]
        whose.append(self._input("max_context_len", Type.i32, []))
        if self._adapted:
            self._whose = self._input(WHOSE, Type.f32, [-1, -1])
        read = weights.embedding()
        embedding, factor = _constant(read), weights.embedding_factor(read.dtype)
        rows = ops.unsqueeze(ops.gather(embedding, ids, _whole(0)), _whole(1))
        if factor != 1:
            rows = ops.multiply(rows, _number(factor))
        for index in range(weights.num_layers):
            layer = weights.layer(index)
            rows = ops.add(rows, self._attention(index, layer, rows, around[layer.rotary], whose))
            rows = ops.add(rows, self._mlp(layer, rows))
        rows = self._normed(ops.gather(rows, sampled, _whole(0)), weights.norm())
        head = weights.head()
        scores = ops.matmul(rows, embedding if head is None else _constant(head), False, True)
        return openvino.Model([ops.result(ops.squeeze(scores, _whole(1)))], self._inputs, "llama")

    def _attention(
        self, index: int, layer: LlamaLayer, rows: Any, around: list[Any], whose: list[Any]
    ) -> Any:
        weights = self._weights
        heads, keys, dim = weights.heads, weights.key_heads, weights.dim
        mixed = self._product(self._normed(rows, layer.before_attention), layer.query_key_value)
        parts = ops.variadic_split(mixed, _whole(2), _whole([heads * dim, keys * dim, keys * dim]))
        norms = (None, None) if layer.head_norms is None else layer.head_norms.split((heads, keys))
        query, key = (
            self._rotated(parts.output(part), number, norms[part], around)
            for part, number in enumerate((heads, keys))
        )
        caches = [
            self._input(f"{part}_cache.{index}", Type.dynamic, [-1, keys, BLOCK_SIZE, -1])
            for part in ("key", "value")
        ]
        *tables, longest = whose
        operator = _paged_attention(
            *(query, key, ops.reshape(parts.output(2), _whole([-1, keys * dim]), False), *caches),
            *(*tables, _number(weights.scale)),
            *(ops.constant(np.int32(layer.window)), ops.constant(np.zeros(0, np.float32)), longest),
            *(ops.constant(np.zeros(shape, kind)) for kind, shape in UNUSED.values()),
        )
        for name, size in (("k_head_size", dim), ("v_head_size", dim)):
            operator.get_rt_info()[name] = size
        for name in ("num_k_heads", "num_v_heads"):
            operator.get_rt_info()[name] = keys
        mixed = self._product(ops.unsqueeze(operator.output(0), _whole(1)), layer.output)
        return self._normed(mixed, layer.after_attention)

    def _mlp(self, layer: LlamaLayer, rows: Any) -> Any:
        mixed = self._product(self._normed(rows, layer.before_mlp), layer.gate_up)
        halves = ops.variadic_split(mixed, _whole(2), _whole([self._weights.inner] * 2))
        gate = halves.output(0)
        gate = ops.gelu(gate, "tanh") if self._weights.gelu else ops.swish(gate)
        mixed = self._product(ops.multiply(gate, halves.output(1)), layer.down)
        return self._normed(mixed, layer.after_mlp)

    def _product(self, rows: Any, dense: Dense) -> Any:
        number, product = next(self._products)
        found = ops.matmul(rows, _constant(dense.weight), False, True)
        if dense.bias is not None:
            found = ops.add(found, _constant(dense.bias.float()))
        if not self._adapted:
            return found
        names, outputs = adapter_names(number), sum(product.layers.values())
        down = self._input(names[0], self._kind, [-1, product.inputs])
        up = self._input(names[1], self._kind, [outputs, -1])
        low = ops.matmul(ops.squeeze(rows, _whole(1)), _wide(down), False, True)
        added = ops.matmul(ops.multiply(low, self._whose), _wide(up), False, True)
        return ops.add(found, ops.unsqueeze(added, _whole(1)))

    def _rotated(self, rows: Any, heads: int, norms: torch.Tensor | None, around: list[Any]) -> Any:
        """Return [T, heads * D] rotated by their tokens' positions, normed before if so wished."""
        dim, half = self._weights.dim, self._weights.dim // 2
        rows = ops.reshape(rows, _whole([-1, heads, 1, dim]), False)
        rows = self._normed(rows, None if norms is None else norms[0])  # the same for all heads
        first, second = ops.variadic_split(rows, _whole(3), _whole([half, half])).outputs()
        turned = ops.concat([ops.multiply(second, _number(-1.0)), first], -1)
        rows = ops.add(ops.multiply(rows, around[0]), ops.multiply(turned, around[1]))
        return ops.reshape(rows, _whole([-1, heads * dim]), False)

    def _normed(self, rows: Any, weight: torch.Tensor | None) -> Any:
        """Return rows divided by their root mean square, times weights; OpenVINO fuses this.

        Without weights there is no norm.
        """
        if weight is None:
            return rows
        mean = ops.reduce_mean(ops.power(rows, _number(2.0)), _whole([-1]), True)
        root = ops.sqrt(ops.add(mean, _number(self._weights.epsilon)))
        scaled = ops.multiply(rows, ops.divide(_number(1.0), root))
        return ops.multiply(scaled, _constant(weight.float()))

    def _input(self, name: str, kind: Any, shape: list[int]) -> Any:
        made = ops.parameter(openvino.PartialShape(shape), kind, name=name)
        self._inputs.append(made)
        return made


def _paged_attention(*inputs: Any) -> Any:
    nodes = [part.output(0) if isinstance(part, openvino.Node) else part for part in inputs]
    try:
        return openvino.op._PagedAttentionExtension(nodes)  # noqa: SLF001 - it has no public name
    except (AttributeError, RuntimeError, TypeError) as error:
        raise Unsupported(
            f"OpenVINO {openvino.__version__} has another paged attention: {cause(error)}"
        ) from error


def _constant(tensor: torch.Tensor) -> Any:
    """Return a copy of a weight, in float32 as the graph sees it.

    A copy, since a constant on others' memory does not keep it alive.
    """
    wide = _wide(openvino.op.Constant(tensor_of(tensor.contiguous()), shared_memory=False))
    if tensor.dtype != torch.float32:
        wide.get_rt_info()[AS_IT_IS] = ""
    return wide


def _wide(narrow: Any) -> Any:
    return narrow if narrow.get_element_type() == Type.f32 else ops.convert(narrow, Type.f32)


def tensor_of(tensor: torch.Tensor) -> Any:
    """Return a tensor's own memory as one of OpenVINO's; see `shared`."""
    array = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
    return shared(array.numpy(), TYPES[tensor.dtype])


def _whole(value: int | list[int]) -> Any:
    return ops.constant(np.array(value, np.int64))


def _number(value: float) -> Any:
    return ops.constant(np.float32(value))
