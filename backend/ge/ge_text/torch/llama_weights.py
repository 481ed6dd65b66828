"""What a checkpoint of the Llama family has: its sizes, and its weights, stacked as they are used.

One skeleton with options: biases, norms of queries and keys, norms after attention and MLP,
sliding windows, tied embeddings, scaled rotary embeddings, which may differ by layer. Queries, keys
and values come out of one product, gate and up out of another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ge_backend.errors import ModelError
from ge_backend.model.files.checkpoint import Checkpoint
from ge_text.models.adapter import Product
from ge_text.torch.rotary import DEFAULT_THETA, ROTARY_KINDS, frequencies

__all__ = ["Dense", "LlamaLayer", "LlamaWeights", "Read", "not_covered"]

ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Gemma3ForCausalLM",
)
GEMMA = "gemma3_text"
# Settings whose defaults differ between the architectures: who leaves one out is not covered.
SAID: Mapping[str, tuple[str, ...]] = {
    "llama": (),
    "mistral": ("num_key_value_heads", "sliding_window"),
    "qwen2": ("num_key_value_heads", "max_window_layers"),
    "qwen3": ("num_key_value_heads", "max_window_layers", "head_dim"),
    GEMMA: (
        *("num_key_value_heads", "head_dim", "hidden_activation", "layer_types"),
        *("query_pre_attn_scalar", "sliding_window", "tie_word_embeddings"),
    ),
}
# What changes a Gemma's scores, or what a token sees, and is not computed here.
GEMMA_LACKS = (
    *("attn_logit_softcapping", "final_logit_softcapping"),
    *("attention_bias", "use_bidirectional_attention"),
)
# Under which name it is said how gate and up meet, and what of it there is.
ACTIVATION, ACTIVATIONS = (
    ("hidden_act", "silu"),
    {GEMMA: ("hidden_activation", "gelu_pytorch_tanh")},
)
# A layer's norms, and how the files call them.
NORMS = {"before_attention": "input", "before_mlp": "post_attention"}
GEMMA_NORMS = {
    "before_attention": "input",
    "after_attention": "post_attention",
    "before_mlp": "pre_feedforward",
    "after_mlp": "post_feedforward",
}
DEFAULT_WINDOW = 4096
GEMMA_THETA = 1_000_000.0
LAYER_TYPES = ("full_attention", "sliding_attention")
# Reads one tensor of the checkpoint by its name, in the type that is served, on the device.
Read = Callable[[str], torch.Tensor]


def not_covered(checkpoint: Checkpoint) -> str:
    """Return what of a checkpoint this decoder cannot do; "" where it can do all of it."""
    config = checkpoint.config
    kind, names = checkpoint.model_type, config.get("architectures") or ()
    missing = sorted(set(SAID.get(kind, ())) - config.keys())
    key, known = ACTIVATIONS.get(kind, ACTIVATION)
    activation = config.get(key, known)
    lacked = next((name for name in GEMMA_LACKS if kind == GEMMA and config.get(name)), "")
    reasons = (
        (not set(names) <= set(ARCHITECTURES), f"architecture {', '.join(names)}"),
        (kind not in SAID, f"model_type {kind}"),
        (bool(missing), f"config.json without {', '.join(missing)}"),
        (activation != known, f"{key} {activation}"),
        (bool(lacked), f"{lacked} {config.get(lacked)}"),
        (kind == GEMMA and not config.get("sliding_window"), "no sliding_window"),
        (not config.get("is_causal", True), "is_causal false"),
    )
    reason = next((reason for holds, reason in reasons if holds), "")
    return reason or next(filter(None, map(_rotary_not_covered, _rotaries(checkpoint))), "")


def _rotary_not_covered(rotary: Mapping[str, Any]) -> str:
    unset = sorted(set(ROTARY_KINDS.get(rotary["rope_type"], ())) - rotary.keys())
    partial = rotary.get("partial_rotary_factor", 1)
    reasons = (
        (rotary["rope_type"] not in ROTARY_KINDS, f"rope_type {rotary['rope_type']}"),
        (bool(unset), f"rope_type {rotary['rope_type']} without {', '.join(unset)}"),
        (
            any(isinstance(value, dict) for value in rotary.values()),
            "rotary embeddings that differ by layer",
        ),
        (partial != 1, f"partial_rotary_factor {partial}"),
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
        rotary: which of the model's rotary embeddings it has.
        before_attention, before_mlp: of the norms, [hidden].
        after_attention, after_mlp: of the norms of what each adds, [hidden]; None: it has none.
        head_norms: of the norms of queries and keys, [heads + key_heads, D]; None: it has none.
    """

    window: int
    rotary: int
    before_attention: torch.Tensor
    query_key_value: Dense
    head_norms: torch.Tensor | None
    output: Dense
    after_attention: torch.Tensor | None
    before_mlp: torch.Tensor
    gate_up: Dense
    down: Dense
    after_mlp: torch.Tensor | None


class LlamaWeights:
    """Sizes at once; weights when they are asked for, each read once.

    Args:
        checkpoint: one that `not_covered` has nothing against.
        read: returns a tensor of it by name.

    Attributes:
        dim: elements of a head.
        scale: of the products of queries and keys.
        gelu: gate and up meet by GELU's tangent form; else by SiLU.
        frequencies: of each rotary embedding, float32 [dim / 2], radians per position.

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
        self._gemma = self.gelu = checkpoint.model_type == GEMMA
        shared = checkpoint.number("query_pre_attn_scalar") if self._gemma else self.dim
        self.scale = shared**-0.5
        self.frequencies = tuple(
            frequencies(_checked(checkpoint, rotary), self.dim) for rotary in _rotaries(checkpoint)
        )
        self._biased = _biased(config)

    def embedding(self) -> torch.Tensor:
        """Return [vocabulary, hidden]."""
        return self._tensor("model.embed_tokens.weight", self._checkpoint.vocabulary, self.hidden)

    def embedding_factor(self, dtype: torch.dtype) -> float:
        """Return what a token's row of the embedding is multiplied by, as far as `dtype` has it.

        Source: transformers, modeling_gemma3.py, `Gemma3TextScaledWordEmbedding`.
        """
        return float(torch.tensor(self.hidden**0.5 if self._gemma else 1.0, dtype=dtype))

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
        return self._norm("model.norm", self.hidden)

    def layer(self, index: int) -> LlamaLayer:
        """Return what one layer has."""
        name = f"model.layers.{index}"
        query_key_value, output, gate_up, down = (
            self._dense(product, biased=biased)
            for product, biased in zip(self._products(index), self._biased, strict=True)
        )
        norms = {
            norm: self._norm(f"{name}.{said}_layernorm", self.hidden)
            for norm, said in (GEMMA_NORMS if self._gemma else NORMS).items()
        }
        window = _window(self._checkpoint, index)
        return LlamaLayer(
            window=window,
            rotary=int(self._gemma and window > 0),
            before_attention=norms["before_attention"],
            query_key_value=query_key_value,
            head_norms=self._head_norms(f"{name}.self_attn"),
            output=output,
            after_attention=norms.get("after_attention"),
            before_mlp=norms["before_mlp"],
            gate_up=gate_up,
            down=down,
            after_mlp=norms.get("after_mlp"),
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
        if self._checkpoint.model_type not in ("qwen3", GEMMA):
            return None
        norms = [
            self._norm(f"{attention}.{part}_norm", self.dim).expand(heads, -1)
            for part, heads in (("q", self.heads), ("k", self.key_heads))
        ]
        return torch.cat(norms)

    def _dense(self, product: Product, *, biased: bool) -> Dense:
        """Return one layer for several."""
        parts = product.layers.items()
        weights = [self._tensor(f"{name}.weight", out, product.inputs) for name, out in parts]
        biases = [self._tensor(f"{name}.bias", out) for name, out in parts if biased]
        return Dense(torch.cat(weights), torch.cat(biases) if biased else None)

    def _norm(self, name: str, size: int) -> torch.Tensor:
        """Return a norm's weights; a Gemma's files have them less one, so that it is FP32 here."""
        weights = self._tensor(f"{name}.weight", size)
        return weights.float() + 1 if self._gemma else weights

    def _tensor(self, name: str, *shape: int) -> torch.Tensor:
        stored = self._checkpoint.tensors.get(name)
        if stored is None or stored.shape != shape:
            found = "nothing" if stored is None else f"{list(stored.shape)}"
            raise ModelError(
                f"{self._checkpoint.folder}: tensor {name!r} of shape {list(shape)} expected by "
                f"config.json, found {found}"
            )
        return self._read(name)


def _rotaries(checkpoint: Checkpoint) -> tuple[Mapping[str, Any], ...]:
    """Return the settings of each rotary embedding; a Gemma's second is of layers with a window.

    Source: transformers, configuration_gemma3.py, `convert_rope_params_to_dict`.
    """
    config, one = checkpoint.config, checkpoint.rotary
    if checkpoint.model_type != GEMMA:
        return ({"partial_rotary_factor": config.get("partial_rotary_factor", 1), **one},)
    full, local = ({"rope_type": "default", **(one.get(kind) or {})} for kind in LAYER_TYPES)
    if not any(kind in one for kind in LAYER_TYPES):  # as it was said before transformers 5
        full = dict(one)
    full.setdefault("rope_theta", config.get("rope_theta", GEMMA_THETA))
    local.setdefault("rope_theta", config.get("rope_local_base_freq", DEFAULT_THETA))
    return full, local


def _checked(checkpoint: Checkpoint, rotary: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return settings of a rotary embedding whose numbers are some."""
    needed = ("rope_theta", *ROTARY_KINDS[rotary["rope_type"]])
    numbers = {
        name: checkpoint.above_0(f"{name} of the rotary embedding", rotary[name])
        for name in needed
        if name in rotary
    }
    return {**rotary, **numbers}


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
    says), configuration_gemma3.py (those that `layer_types` says), configuration_qwen2.py and
    configuration_qwen3.py (only with `use_sliding_window`: those that `layer_types` says, else
    those from `max_window_layers` on; 4096 where nothing is said).
    """
    config, kind = checkpoint.config, checkpoint.model_type
    always = ("mistral", GEMMA)
    if kind == "llama" or (kind not in always and not config.get("use_sliding_window", False)):
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
