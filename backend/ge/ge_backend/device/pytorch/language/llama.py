"""Our own decoder for the Llama skeleton: Llama, Mistral, Qwen 2 and 3, SmolLM and their kin.

One skeleton with options: biases, norms of queries and keys, sliding windows, tied embeddings,
scaled rotary embeddings. Queries, keys and values come out of one product, gate and up out of
another, and the sums around a layer are part of a product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from ge_backend.device.files.checkpoint import Checkpoint
from ge_backend.device.language.adapter import Product
from ge_backend.device.pytorch.language.attention import Attend
from ge_backend.device.pytorch.language.cache import KeyValueShape
from ge_backend.device.pytorch.language.linear import Linear, linear
from ge_backend.device.pytorch.language.norm import RmsNorm
from ge_backend.device.pytorch.language.rotary import ROTARY_KINDS, Rotation, frequencies
from ge_backend.device.pytorch.language.step import StepTensors
from ge_backend.errors import ModelError

__all__ = ["LlamaDecoder", "not_covered"]

ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)
# Settings whose defaults differ between the architectures: who leaves one out is not covered.
SAID: Mapping[str, tuple[str, ...]] = {
    "llama": (),
    "mistral": ("num_key_value_heads", "sliding_window"),
    "qwen2": ("num_key_value_heads", "max_window_layers"),
    "qwen3": ("num_key_value_heads", "max_window_layers", "head_dim"),
}
# The products of one layer, in this order in the decoder's `products`.
QUERY_KEY_VALUE, OUTPUT, GATE_UP, DOWN = range(4)
PER_LAYER = 4
# Reads one tensor of the checkpoint by its name, in the type that is served, on the device.
Read = Callable[[str], torch.Tensor]


def not_covered(checkpoint: Checkpoint) -> str:
    """Return what of a checkpoint this decoder cannot do; "" where it can do all of it."""
    config, rotary = checkpoint.config, checkpoint.rotary
    kind, names = checkpoint.model_type, config.get("architectures") or ()
    missing = sorted(set(SAID.get(kind, ())) - config.keys())
    activation, partial = config.get("hidden_act", "silu"), rotary.get("partial_rotary_factor", 1)
    reasons = (
        (not set(names) <= set(ARCHITECTURES), f"architecture {', '.join(names)}"),
        (kind not in SAID, f"model_type {kind}"),
        (bool(missing), f"config.json without {', '.join(missing)}"),
        (activation != "silu", f"hidden_act {activation}"),
        (rotary["rope_type"] not in ROTARY_KINDS, f"rope_type {rotary['rope_type']}"),
        (partial != 1, f"partial_rotary_factor {partial}"),
    )
    return next((reason for holds, reason in reasons if holds), "")


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
    """See the module; a `Decoder`.

    Args:
        checkpoint: one that `not_covered` has nothing against.
        read: returns a tensor of it by name.

    Raises:
        ModelError: a tensor is missing or has another shape than the configuration says.
    """

    def __init__(
        self, checkpoint: Checkpoint, read: Read, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        config = checkpoint.config
        self.dtype, self.device = dtype, device
        self._heads = checkpoint.number("num_attention_heads")
        self._key_heads = checkpoint.number("num_key_value_heads", "num_attention_heads")
        self._hidden = checkpoint.number("hidden_size")
        self._dim = int(config.get("head_dim") or self._hidden // self._heads)
        self._inner = checkpoint.number("intermediate_size")
        self._epsilon = float(config.get("rms_norm_eps", 1e-6))
        heads = {"q_proj": self._heads, "k_proj": self._key_heads, "v_proj": self._key_heads}
        self._across = {part: number * self._dim for part, number in heads.items()}
        count = checkpoint.number("num_hidden_layers")
        shape = KeyValueShape(heads=self._key_heads, key_dim=self._dim, value_dim=self._dim)
        self.shapes = (shape,) * count
        self._weights = _Weights(checkpoint, read)
        self._embedding = self._weights(
            "model.embed_tokens.weight", checkpoint.vocabulary, self._hidden
        )
        self._layers = [self._layer(index, _window(config, index)) for index in range(count)]
        self.products = tuple(p for index in range(count) for p in self._products(index))
        self._norm = self._rms_norm("model.norm.weight")
        tied = config.get("tie_word_embeddings", False) or not self._weights.has("lm_head.weight")
        self._head = linear(
            self._embedding
            if tied
            else self._weights("lm_head.weight", checkpoint.vocabulary, self._hidden)
        )
        self._frequencies = frequencies(checkpoint.rotary, self._dim).to(device)
        del self._weights

    def logits(self, step: StepTensors) -> torch.Tensor:
        """See `Decoder`."""
        rotate = Rotation(self._frequencies, step.positions, self.dtype)
        rows = functional.embedding(step.ids, self._embedding)
        for index, layer in enumerate(self._layers):
            rows = self._run(index, layer, rows, rotate, step)
        return self._head(self._norm(rows.index_select(0, step.sampled)))

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

    def _rms_norm(self, name: str) -> RmsNorm:
        return RmsNorm(self._weights(name, self._hidden), self._epsilon)

    def _layer(self, index: int, window: int) -> _Layer:
        name = f"model.layers.{index}"
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"
        across, weights = self._across, self._weights
        return _Layer(
            attend=Attend(scale=self._dim**-0.5, window=window),
            before_attention=self._rms_norm(f"{name}.input_layernorm.weight"),
            query_key_value=weights.linear(attention, across, self._hidden),
            norms=self._head_norms(attention),
            output=weights.linear(attention, {"o_proj": self._hidden}, self._heads * self._dim),
            before_mlp=self._rms_norm(f"{name}.post_attention_layernorm.weight"),
            gate_up=weights.linear(
                mlp, {"gate_proj": self._inner, "up_proj": self._inner}, self._hidden
            ),
            down=weights.linear(mlp, {"down_proj": self._hidden}, self._inner),
        )

    def _products(self, index: int) -> Iterator[Product]:
        """Yield the products of one layer, in their order."""
        hidden, inner = self._hidden, self._inner
        for inputs, part, layers in (
            (hidden, "self_attn", self._across),
            (self._heads * self._dim, "self_attn", {"o_proj": hidden}),
            (hidden, "mlp", {"gate_proj": inner, "up_proj": inner}),
            (inner, "mlp", {"down_proj": hidden}),
        ):
            prefix = f"model.layers.{index}.{part}"
            named = {f"{prefix}.{layer}": outputs for layer, outputs in layers.items()}
            yield Product(inputs=inputs, layers=named)

    def _head_norms(self, attention: str) -> torch.Tensor | None:
        """Return the weights of the norms of queries and keys, one row for each head, or None."""
        if not self._weights.has(f"{attention}.q_norm.weight"):
            return None
        norms = [
            self._weights(f"{attention}.{part}_norm.weight", self._dim).expand(heads, -1)
            for part, heads in (("q", self._heads), ("k", self._key_heads))
        ]
        return torch.cat(norms)


class _Weights:
    """The tensors of a checkpoint, checked against the shapes that the configuration asks for."""

    def __init__(self, checkpoint: Checkpoint, read: Read) -> None:
        self._checkpoint, self._read = checkpoint, read

    def has(self, name: str) -> bool:
        return name in self._checkpoint.tensors

    def __call__(self, name: str, *shape: int) -> torch.Tensor:
        stored = self._checkpoint.tensors.get(name)
        if stored is None or stored.shape != shape:
            found = "nothing" if stored is None else f"{list(stored.shape)}"
            raise ModelError(
                f"{self._checkpoint.folder}: tensor {name!r} of shape {list(shape)} expected by "
                f"config.json, found {found}"
            )
        return self._read(name)

    def linear(self, prefix: str, parts: Mapping[str, int], inputs: int) -> Linear:
        """Return one layer for several whose outputs lie side by side, with what biases exist."""
        weight = torch.cat(
            [self(f"{prefix}.{part}.weight", outputs, inputs) for part, outputs in parts.items()]
        )
        if not any(self.has(f"{prefix}.{part}.bias") for part in parts):
            return linear(weight)
        biases = [self(f"{prefix}.{part}.bias", outputs) for part, outputs in parts.items()]
        return linear(weight, torch.cat(biases))


def _window(config: Mapping[str, Any], index: int) -> int:
    """Return how many tokens a layer's tokens see; 0 is all.

    Source: transformers, configuration_mistral.py (all layers have it) and
    configuration_qwen2.py, configuration_qwen3.py (those that `layer_types` says, else those from
    `max_window_layers` on, and only with `use_sliding_window`).
    """
    window = int(config.get("sliding_window") or 0)
    if not window or not config.get("use_sliding_window", config["model_type"] == "mistral"):
        return 0
    kinds = config.get("layer_types")
    if kinds:
        return window if kinds[index] == "sliding_attention" else 0
    return window if index >= int(config.get("max_window_layers", 0)) else 0
