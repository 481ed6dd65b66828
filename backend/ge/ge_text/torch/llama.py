"""Our own decoder for the Llama skeleton: Llama, Mistral, Qwen 2 and 3, SmolLM and their kin.

Its weights are those of `LlamaWeights`; the sums around a layer are part of a product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from ge_backend.engines.torch.linear import Linear, linear
from ge_text.torch.attention import Attend
from ge_text.torch.cache import KeyValueShape
from ge_text.torch.llama_weights import Dense, LlamaWeights
from ge_text.torch.norm import RmsNorm
from ge_text.torch.rotary import Rotation
from ge_text.torch.step import StepTensors

__all__ = ["LlamaDecoder"]

# The products of one layer, in this order in the decoder's `products`.
QUERY_KEY_VALUE, OUTPUT, GATE_UP, DOWN = range(4)
PER_LAYER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    attend: Attend
    before_attention: RmsNorm
    query_key_value: Linear
    norms: torch.Tensor | None
    output: Linear
    before_mlp: RmsNorm
    gate_up: Linear
    down: Linear


class LlamaDecoder:
    """See the module; a `Decoder`. Its weights are in `dtype` and on `device` already.

    Raises:
        ModelError: as `LlamaWeights`.
    """

    def __init__(self, weights: LlamaWeights, *, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self._heads, self._key_heads = weights.heads, weights.key_heads
        self._dim, self._epsilon = weights.dim, weights.epsilon
        count = weights.num_layers
        shape = KeyValueShape(heads=self._key_heads, key_dim=self._dim, value_dim=self._dim)
        self.shapes = (shape,) * count
        self.products = weights.products()
        self._embedding = weights.embedding()
        self._layers = [self._layer(weights, index) for index in range(count)]
        self._norm = self._rms_norm(weights.norm())
        head = weights.head()
        self._head = linear(self._embedding if head is None else head)
        self._frequencies = weights.frequencies.to(device)

    def logits(self, step: StepTensors) -> torch.Tensor:
        """See `Decoder`."""
        rotate = Rotation(self._frequencies, step.positions, self.dtype)
        rows = functional.embedding(step.ids, self._embedding)
        for index, layer in enumerate(self._layers):
            rows = self._run(index, layer, rows, rotate, step)
        return self._head(self._norm(rows.index_select(0, step.sampled)))

    def close(self) -> None:
        """See `Decoder`."""
        del self._embedding, self._layers, self._head

    def _run(
        self,
        index: int,
        layer: _Layer,
        rows: torch.Tensor,
        rotate: Rotation,
        step: StepTensors,
    ) -> torch.Tensor:
        heads, keys, first = self._heads, self._key_heads, index * PER_LAYER
        normed = layer.before_attention(rows)
        mixed = layer.query_key_value(normed)
        step.adapt(first + QUERY_KEY_VALUE, normed, mixed)
        mixed = mixed.view(len(rows), heads + 2 * keys, self._dim)
        turned = mixed[:, : heads + keys]
        if layer.norms is not None:
            turned = functional.rms_norm(turned, (self._dim,), None, self._epsilon) * layer.norms
        turned = rotate(turned)
        found = step.attend(
            index, layer.attend, turned[:, :heads], turned[:, heads:], mixed[:, heads + keys :]
        )
        rows = layer.output.added_to(rows, found)
        step.adapt(first + OUTPUT, found, rows)
        normed = layer.before_mlp(rows)
        mixed = layer.gate_up(normed)
        step.adapt(first + GATE_UP, normed, mixed)
        gate, up = mixed.chunk(2, -1)
        inner = functional.silu(gate).mul_(up)
        rows = layer.down.added_to(rows, inner)
        step.adapt(first + DOWN, inner, rows)
        return rows

    def _layer(self, weights: LlamaWeights, index: int) -> _Layer:
        layer = weights.layer(index)
        return _Layer(
            attend=Attend(scale=self._dim**-0.5, window=layer.window),
            before_attention=self._rms_norm(layer.before_attention),
            query_key_value=_linear(layer.query_key_value),
            norms=layer.head_norms,
            output=_linear(layer.output),
            before_mlp=self._rms_norm(layer.before_mlp),
            gate_up=_linear(layer.gate_up),
            down=_linear(layer.down),
        )

    def _rms_norm(self, weight: torch.Tensor) -> RmsNorm:
        return RmsNorm(weight, self._epsilon)


def _linear(dense: Dense) -> Linear:
    return linear(dense.weight, dense.bias)
