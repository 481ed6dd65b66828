"""What a checkpoint of the Llama family has: its sizes, and its weights, stacked as they are used.

One skeleton with options: biases, norms of queries and keys, sliding windows, tied embeddings,
scaled rotary embeddings. Queries, keys and values come out of one product, gate and up out of
another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ge_backend.errors import ModelError
from ge_backend.model.files.checkpoint import Checkpoint
from ge_text.models.adapter import Product
from ge_text.torch.rotary import ROTARY_KINDS, frequencies

__all__ = ["Dense", "LlamaLayer", "LlamaWeights", "Read", "not_covered"]

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
DEFAULT_WINDOW = 4096
LAYER_TYPES = ("full_attention", "sliding_attention")
# Reads one tensor of the checkpoint by its name, in the type that is served, on the device.
Read = Callable[[str], torch.Tensor]


def not_covered(checkpoint: Checkpoint) -> str:
    """Return what of a checkpoint this decoder cannot do; "" where it can do all of it."""
    config, rotary = checkpoint.config, checkpoint.rotary
    kind, names = checkpoint.model_type, config.get("architectures") or ()
    missing = sorted(set(SAID.get(kind, ())) - config.keys())
    unset = sorted(set(ROTARY_KINDS.get(rotary["rope_type"], ())) - rotary.keys())
    activation = config.get("hidden_act", "silu")
    partial = rotary.get("partial_rotary_factor", config.get("partial_rotary_factor", 1))
    by_layer = any(isinstance(value, dict) for value in rotary.values())
    reasons = (
        (not set(names) <= set(ARCHITECTURES), f"architecture {', '.join(names)}"),
        (kind not in SAID, f"model_type {kind}"),
        (bool(missing), f"config.json without {', '.join(missing)}"),
        (activation != "silu", f"hidden_act {activation}"),
        (rotary["rope_type"] not in ROTARY_KINDS, f"rope_type {rotary['rope_type']}"),
        (bool(unset), f"rope_type {rotary['rope_type']} without {', '.join(unset)}"),
        (by_layer, "rotary embeddings that differ by layer"),
        (partial != 1, f"partial_rotary_factor {partial}"),
        (not config.get("is_causal", True), "is_causal false"),
    )
    return next((reason for holds, reason in reasons if holds), "")


@dataclass(frozen=True, slots=True)
class Dense:
    """A linear layer, or several whose outputs lie side by side: weight [out, in], bias [out]."""

    weight: torch.Tensor
    bias: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaLayer:
    """The weights of one layer. Letters: D elements of a head.

    Attributes:
        window: how many tokens a token sees; 0 is all.
        before_attention, before_mlp: of the norms, [hidden].
        head_norms: of the norms of queries and keys, [heads + key_heads, D]; None: it has none.
    """

    window: int
    before_attention: torch.Tensor
    query_key_value: Dense
    head_norms: torch.Tensor | None
    output: Dense
    before_mlp: torch.Tensor
    gate_up: Dense
    down: Dense


class LlamaWeights:
    """Sizes at once; weights when they are asked for, each read once.

    Args:
        checkpoint: one that `not_covered` has nothing against.
        read: returns a tensor of it by name.

    Attributes:
        dim: elements of a head.
        frequencies: float32 [dim / 2], radians per position.

    Raises:
        ModelError: a tensor is missing or has another shape than the configuration says.
    """

    def __init__(self, checkpoint: Checkpoint, read: Read) -> None:
        config = checkpoint.config
        self._checkpoint, self._read = checkpoint, read
        self.heads = checkpoint.number("num_attention_heads")
        self.key_heads = checkpoint.number("num_key_value_heads", "num_attention_heads")
        self.hidden = checkpoint.number("hidden_size")
        self.dim = checkpoint.head_dim()
        self.inner = checkpoint.number("intermediate_size")
        self.epsilon = checkpoint.real("rms_norm_eps", 1e-6)
        self.num_layers = checkpoint.number("num_hidden_layers")
        rotary = checkpoint.rotary
        needed = ("rope_theta", *ROTARY_KINDS[rotary["rope_type"]])
        numbers = {name: checkpoint.of_rotary(name) for name in needed if name in rotary}
        self.frequencies = frequencies({**rotary, **numbers}, self.dim)
        self._biased = _biased(config)

    def embedding(self) -> torch.Tensor:
        """Return [vocabulary, hidden]."""
        return self._tensor("model.embed_tokens.weight", self._checkpoint.vocabulary, self.hidden)

    def head(self) -> torch.Tensor | None:
        """Return [vocabulary, hidden]; None where it is the embedding.

        A head that lies in the files counts, whatever `config.json` says: as in transformers 5.
        """
        name = "lm_head.weight"
        tied = self._checkpoint.config.get("tie_word_embeddings", False)
        if tied and name not in self._checkpoint.tensors:
            return None
        return self._tensor(name, self._checkpoint.vocabulary, self.hidden)

    def norm(self) -> torch.Tensor:
        """Return the last norm's weights, [hidden]."""
        return self._tensor("model.norm.weight", self.hidden)

    def layer(self, index: int) -> LlamaLayer:
        """Return what one layer has."""
        name = f"model.layers.{index}"
        query_key_value, output, gate_up, down = (
            self._dense(product, biased=biased)
            for product, biased in zip(self._products(index), self._biased, strict=True)
        )
        return LlamaLayer(
            window=_window(self._checkpoint, index),
            before_attention=self._tensor(f"{name}.input_layernorm.weight", self.hidden),
            query_key_value=query_key_value,
            head_norms=self._head_norms(f"{name}.self_attn"),
            output=output,
            before_mlp=self._tensor(f"{name}.post_attention_layernorm.weight", self.hidden),
            gate_up=gate_up,
            down=down,
        )

    def products(self) -> tuple[Product, ...]:
        """Return what adapters change, four of each layer: in and out of attention and MLP."""
        return tuple(product for n in range(self.num_layers) for product in self._products(n))

    def _products(self, index: int) -> Iterator[Product]:
        heads = {"q_proj": self.heads, "k_proj": self.key_heads, "v_proj": self.key_heads}
        for inputs, part, layers in (
            (self.hidden, "self_attn", {part: count * self.dim for part, count in heads.items()}),
            (self.heads * self.dim, "self_attn", {"o_proj": self.hidden}),
            (self.hidden, "mlp", {"gate_proj": self.inner, "up_proj": self.inner}),
            (self.inner, "mlp", {"down_proj": self.hidden}),
        ):
            prefix = f"model.layers.{index}.{part}"
            named = {f"{prefix}.{layer}": outputs for layer, outputs in layers.items()}
            yield Product(inputs=inputs, layers=named)

    def _head_norms(self, attention: str) -> torch.Tensor | None:
        if self._checkpoint.model_type != "qwen3":
            return None
        norms = [
            self._tensor(f"{attention}.{part}_norm.weight", self.dim).expand(heads, -1)
            for part, heads in (("q", self.heads), ("k", self.key_heads))
        ]
        return torch.cat(norms)

    def _dense(self, product: Product, *, biased: bool) -> Dense:
        """Return one layer for several."""
        parts = product.layers.items()
        weights = [self._tensor(f"{name}.weight", out, product.inputs) for name, out in parts]
        biases = [self._tensor(f"{name}.bias", out) for name, out in parts if biased]
        return Dense(torch.cat(weights), torch.cat(biases) if biased else None)

    def _tensor(self, name: str, *shape: int) -> torch.Tensor:
        stored = self._checkpoint.tensors.get(name)
        if stored is None or stored.shape != shape:
            found = "nothing" if stored is None else f"{list(stored.shape)}"
            raise ModelError(
                f"{self._checkpoint.folder}: tensor {name!r} of shape {list(shape)} expected by "
                f"config.json, found {found}"
            )
        return self._read(name)


def _biased(config: Mapping[str, Any]) -> tuple[bool, bool, bool, bool]:
    """Return which of a layer's four products have biases; others in the files are left alone.

    Source: transformers, modeling_llama.py, modeling_mistral.py, modeling_qwen2.py,
    modeling_qwen3.py.
    """
    kind = config["model_type"]
    attention = kind in ("llama", "qwen3") and bool(config.get("attention_bias"))
    mlp = kind == "llama" and bool(config.get("mlp_bias"))
    return attention or kind == "qwen2", attention, mlp, mlp


def _window(checkpoint: Checkpoint, index: int) -> int:
    """Return how many tokens a layer's tokens see; 0 is all.

    Source: transformers, configuration_mistral.py (all layers have it, or those that `layer_types`
    says) and configuration_qwen2.py, configuration_qwen3.py (only with `use_sliding_window`: those
    that `layer_types` says, else those from `max_window_layers` on; 4096 where nothing is said).
    """
    config, kind = checkpoint.config, checkpoint.model_type
    if kind == "llama" or (kind != "mistral" and not config.get("use_sliding_window", False)):
        return 0
    if not config.get("sliding_window", DEFAULT_WINDOW):
        return 0
    window = checkpoint.number("sliding_window") if "sliding_window" in config else DEFAULT_WINDOW
    kinds = config.get("layer_types")
    if kinds:
        layers = checkpoint.number("num_hidden_layers")
        known = isinstance(kinds, list) and all(each in LAYER_TYPES for each in kinds)
        if not known or len(kinds) != layers:
            raise checkpoint.refused("layer_types", kinds, f"{layers} of {', '.join(LAYER_TYPES)}")
        return window if kinds[index] == "sliding_attention" else 0
    if kind == "mistral":
        return window
    first = config["max_window_layers"]
    if type(first) is not int:
        raise checkpoint.refused("max_window_layers", first, "a number of layers")
    return window if index >= first else 0
