"""The LoRA adapters beside a checkpoint, as peft saves them: found by name, read to their header.

    adapters/<name>/adapter_config.json
    adapters/<name>/adapter_model.safetensors

`multi_lora.json` may name more of them, with their folders within the version folder, as for
Triton's vLLM backend. Nothing of an adapter is run, and nothing of it is left out: what is not a
plain change of linear layers is refused with the reason. Clients read that, so it has no folder of
the server's.

Source: huggingface/peft 0.21, tuners/lora/config.py (settings, scaling), utils/save_and_load.py
(names of tensors), utils/other.py (`get_pattern_key`: how patterns match).
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ge_backend.errors import ConfigError, InvalidRequest, ModelError
from ge_backend.model.config.inside import inside
from ge_backend.model.files.json_file import read_json
from ge_backend.model.files.model_file import stamp_of
from ge_backend.model.files.safetensors_header import StoredTensor, read_header
from ge_text.models.adapter import LayerChange, Product, StoredAdapter

__all__ = ["ITEM_BYTES", "AdapterFolder", "adapter_names", "has_adapters"]

log = logging.getLogger(__name__)

FOLDER = "adapters"
LISTED = "multi_lora.json"
CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
MAX_JSON_BYTES = 2**20
ITEM_BYTES = {"FP32": 4, "BF16": 2, "FP16": 2}
FLOATS = ("F32", "BF16", "F16")
TENSOR = re.compile(r"base_model\.model\.(?P<layer>.+)\.lora_(?P<side>[AB])\.weight")
# Of names of layers, where the adapter was made on a model behind `torch.compile`.
COMPILED = "_orig_mod."
# Settings that change more than linear layers by a product of two matrices.
REFUSED = (
    *("use_dora", "modules_to_save", "trainable_token_indices", "target_parameters", "lora_bias"),
    *("layer_replication", "alora_invocation_tokens", "use_qalora", "use_bdlora", "arrow_config"),
    *("kasa_config", "monteclora_config", "megatron_config"),
)
# Beginnings of training that leave the checkpoint's own weights as they are; others change them.
KEPT_WEIGHTS = (True, False, "gaussian", "eva", "orthogonal")


def has_adapters(checkpoint: Path) -> bool:
    """Return whether there is anything that is meant to be an adapter beside a checkpoint."""
    return (checkpoint / LISTED).is_file() or any((checkpoint / FOLDER).glob(f"*/{CONFIG}"))


def adapter_names(checkpoint: Path) -> list[str]:
    """Return the names of the adapters beside a checkpoint; they may be broken.

    Those of a `multi_lora.json` that cannot be read are left out: who asks for one is told.
    """
    try:
        listed = _listed(checkpoint)
    except ModelError as error:
        log.warning("adapters that are listed cannot be served: %s", error)
        listed = {}
    return sorted({*_beside(checkpoint), *listed})


def _beside(checkpoint: Path) -> dict[str, Path]:
    """Return the folders among those of adapters, by name."""
    beside = checkpoint / FOLDER
    there = beside.iterdir() if beside.is_dir() else ()
    return {path.name: path for path in there if (path / CONFIG).is_file()}


def _listed(checkpoint: Path) -> dict[str, Any]:
    """Return what `multi_lora.json` has by name, unchecked."""
    path = checkpoint / LISTED
    return read_json(path, MAX_JSON_BYTES) if path.is_file() else {}


class AdapterFolder:
    """The adapters of one model, held in FP32, BF16 or FP16. Any thread.

    They may come and go while it is served.
    """

    def __init__(self, checkpoint: Path, products: Sequence[Product], dtype: str) -> None:
        self._checkpoint, self._products = checkpoint, products
        self._item = ITEM_BYTES[dtype]
        self._layers = {
            layer: (product.inputs, outputs)
            for product in products
            for layer, outputs in product.layers.items()
        }
        self._read: dict[str, StoredAdapter] = {}

    def find(self, name: str) -> StoredAdapter:
        """Return an adapter as it is now.

        Raises:
            InvalidRequest: there is none of that name; says which there are.
            ModelError: it cannot be served; says why.
        """
        try:
            return self._found(name)
        except (ModelError, ConfigError) as error:
            log.warning("adapter %r cannot be served: %s", name, error)
            text = str(error).replace(f"{self._checkpoint}/", "")
            raise ModelError(text.replace(f" {self._checkpoint}", "")) from error

    def _found(self, name: str) -> StoredAdapter:
        folder = self._folder(name)
        config, weights = folder / CONFIG, folder / WEIGHTS
        if not weights.is_file() or not config.is_file():
            raise ModelError(f"{folder}: an adapter has {CONFIG} and {WEIGHTS}")
        stamp = stamp_of((config, weights))
        known = self._read.get(name)
        if known is None or (known.stamp, known.weights) != (stamp, weights):
            known = self._read[name] = self._opened(name, stamp, config, weights)
        return known

    def _folder(self, name: str) -> Path:
        if found := _beside(self._checkpoint).get(name):
            return found
        listed = _listed(self._checkpoint)
        if name in listed:
            return inside(self._checkpoint, str(listed[name]), f"{LISTED}: {name!r}")
        names = ", ".join(adapter_names(self._checkpoint))
        there = names or f"none; they go into {FOLDER!r} beside its weights"
        raise InvalidRequest(f"lora_name is {name!r}; the adapters of this model are {there}")

    def _opened(self, name: str, stamp: str, config: Path, weights: Path) -> StoredAdapter:
        settings = read_json(config, MAX_JSON_BYTES)
        _check_settings(config, settings)
        changes: dict[str, LayerChange] = {}
        tensors = read_header(weights)
        plain = {tensor.replace(COMPILED, ""): tensor for tensor in tensors}
        for tensor in plain:
            layer = self._layer_of(weights, tensor)
            if layer not in changes:
                changes[layer] = self._change(config, settings, tensors, plain, layer)
        if not changes:
            raise ModelError(f"{weights}: it changes nothing: it has no tensor")
        return StoredAdapter(
            name=name,
            stamp=stamp,
            config=config,
            weights=weights,
            changes=changes,
            nbytes=self._item * sum(product.elements(changes) for product in self._products),
        )

    def _layer_of(self, path: Path, tensor: str) -> str:
        """Return the layer that a tensor of an adapter changes."""
        named = TENSOR.fullmatch(tensor)
        if named is None:
            raise ModelError(
                f"{path}: tensor {tensor!r} is neither lora_A.weight nor lora_B.weight of a layer; "
                "DoRA, biases, embeddings and whole layers are not served: merge the adapter into "
                "the checkpoint"
            )
        layer = named["layer"]
        if layer not in self._layers:
            raise ModelError(
                f"{path}: it changes {layer!r}, which is none of the {len(self._layers)} linear "
                "layers of this model that an adapter can change (its embeddings and lm_head are "
                "not); is it of another model?"
            )
        return layer

    def _change(
        self,
        config: Path,
        settings: Mapping[str, Any],
        tensors: Mapping[str, StoredTensor],
        plain: Mapping[str, str],
        layer: str,
    ) -> LayerChange:
        rank = _of_layer(config, settings, layer, "r", "rank_pattern")
        alpha = _of_layer(config, settings, layer, "lora_alpha", "alpha_pattern")
        inputs, outputs = self._layers[layer]
        names = (f"base_model.model.{layer}.lora_{side}.weight" for side in "AB")
        down, up = (plain.get(name, name) for name in names)
        for tensor, shape in ((down, (rank, inputs)), (up, (outputs, rank))):
            stored = tensors.get(tensor)
            if stored is None or stored.shape != shape or stored.dtype not in FLOATS:
                found = "none" if stored is None else f"{stored.dtype} {list(stored.shape)}"
                raise ModelError(
                    f"{config.parent / WEIGHTS}: tensor {tensor!r} of floats {list(shape)} "
                    f"expected by {CONFIG} and the model, found {found}"
                )
        scaling = alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)
        return LayerChange(down=down, up=up, rank=int(rank), scaling=scaling)


def _check_settings(path: Path, settings: Mapping[str, Any]) -> None:
    kind = settings.get("peft_type")
    if kind != "LORA":
        raise ModelError(f"{path}: peft_type is {kind!r}; only 'LORA' is served")
    asked = [name for name in REFUSED if settings.get(name)]
    if settings.get("bias", "none") != "none":
        asked.append("bias")
    if settings.get("init_lora_weights", True) not in KEPT_WEIGHTS:
        asked.append("init_lora_weights")
    if asked:
        raise ModelError(
            f"{path}: {asked[0]} is {settings[asked[0]]!r}, which is more than a change of linear "
            "layers by two small matrices; merge the adapter into the checkpoint, or let peft "
            "convert it"
        )


def _of_layer(
    path: Path, settings: Mapping[str, Any], layer: str, name: str, patterns: str
) -> float:
    """Return the rank or alpha of a layer: that of the first pattern that it matches, else all's.

    Raises:
        ModelError: it is no number above 0.
    """
    try:
        matching = (
            value
            for pattern, value in (settings.get(patterns) or {}).items()
            if re.match(rf"(.*\.)?({pattern})$", layer)
        )
        value = next(matching, settings.get(name))
    except (re.error, AttributeError) as error:
        raise ModelError(f"{path}: {patterns} cannot be read: {error}") from error
    whole = name != "r" or isinstance(value, int)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0 or not whole:
        raise ModelError(f"{path}: {name} of {layer} is {value!r}; expected a number above 0")
    return value
