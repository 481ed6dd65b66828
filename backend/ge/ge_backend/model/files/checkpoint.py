"""A version folder that holds a Hugging Face checkpoint: what it is, read from JSON and headers.

Nothing of it is run: neither pickles nor Python files are opened, and no engine is imported, so
that the host can describe a model without loading it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ge_backend.errors import ModelError
from ge_backend.kinds import Described
from ge_backend.model.files.encoder_folder import CONFIG, is_encoder
from ge_backend.model.files.json_file import read_json
from ge_backend.model.files.model_file import find_model_file
from ge_backend.model.files.safetensors_header import StoredTensor, read_header
from ge_backend.model.files.tokenizer_file import TOKENIZER, tokenizer_files

__all__ = ["Checkpoint", "generates_text", "is_checkpoint", "read_checkpoint"]

log = logging.getLogger(__name__)

INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"
GENERATION = "generation_config.json"
QUANTISED = "hf_quant_config.json"  # of NVIDIA's ModelOpt, which leaves config.json as it was
# Names of classes that end in one of these predict the next token.
CAUSAL = ("ForCausalLM", "LMHeadModel")
# Under each of their names, in older and newer files.
LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
HEADS = ("num_attention_heads", "n_head")
KEY_HEADS = ("num_key_value_heads", "num_kv_heads", *HEADS)
HEAD_DIM = ("head_dim", "kv_channels")
# Repeats keys and values for each expert of a token before they go in.
REPEATED_KEYS = "jetmoe"
HIDDEN = ("hidden_size", "n_embd", "d_model")
LATENT = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")
# Rotary embeddings that would change with the longest sequence of the batch: they are as trained
# below this many positions, and that is where the model ends here.
UNSTABLE_ROTARY = ("dynamic", "longrope")
# Models of these names say how many positions they have with their rotary embedding scaled.
SCALED_ALREADY = "gemma3"
STORED = {"F32": "FP32", "BF16": "BF16", "F16": "FP16"}
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint that is complete and may be loaded.

    Attributes:
        config: `config.json`.
        weights: the safetensors files.
        tensors: what they hold, by name.
        tokenizer: `tokenizer.json`; None where there is none, so that only token ids can be taken.
        eos: tokens that end a text, of `generation_config.json` where it says any, else of
            `config.json`; those that the vocabulary has.
        sampling: the checkpoint's own defaults, under `Sampling`'s names, and `max_new_tokens`;
            whether they are possible is not known here.
        files: all of the above, and whatever else changes what is served; for a stamp.
    """

    folder: Path
    config: Mapping[str, Any]
    weights: tuple[Path, ...]
    tensors: Mapping[str, StoredTensor]
    tokenizer: Path | None
    eos: tuple[int, ...]
    sampling: Mapping[str, float]
    files: tuple[Path, ...]

    @property
    def model_type(self) -> str:
        """Transformers' name of the architecture, such as `llama`."""
        return str(self.config["model_type"])

    @property
    def architectures(self) -> tuple[str, ...]:
        """The names of its classes in transformers, such as `LlamaForCausalLM`."""
        return tuple(map(str, self.config["architectures"]))

    @property
    def vocabulary(self) -> int:
        """Tokens are 0 to this, without it."""
        return self.number("vocab_size")

    @property
    def max_positions(self) -> int:
        """The longest sequence, of a scaled rotary embedding as vLLM understands its settings.

        Source: vllm, vllm/config/model.py, `_get_and_verify_max_len`.
        """
        said, kind = self.number(*POSITIONS), self.rotary["rope_type"]
        original = "original_max_position_embeddings"
        if kind in UNSTABLE_ROTARY:
            return int(self.of_rotary(original, self.config.get(original) or said))
        factor = max(1.0, self.of_rotary("factor", 1.0))
        if kind == "yarn":  # those who publish it may have scaled their number already, or not
            return max(said, int(self.of_rotary(original, said) * factor))
        if kind == "linear" and not self.model_type.startswith(SCALED_ALREADY):
            return int(said * factor)
        return said

    @property
    def rotary(self) -> Mapping[str, Any]:
        """Settings of the rotary embedding under today's names; the older one counts, as there.

        Source: transformers, modeling_rope_utils.py, `convert_rope_params_to_dict`.
        """
        name = "rope_scaling" if self.config.get("rope_scaling") else "rope_parameters"
        given = self.config.get(name) or {}
        if not isinstance(given, dict):
            raise self.refused(name, given, "an object")
        kind = given.get("rope_type", given.get("type", "default"))
        if not isinstance(kind, str):
            raise self.refused("rope_type of the rotary embedding", kind, "a name")
        theta = given.get("rope_theta", self.config.get("rope_theta"))
        return {**given, "rope_type": kind, **({} if theta is None else {"rope_theta": theta})}

    @property
    def code_hint(self) -> str:
        """What to add where its architecture is refused; "" where it brings no code of its own."""
        if "auto_map" not in self.config:
            return ""
        return (
            "; auto_map asks for Python code that comes with the checkpoint; no such code is run; "
            "take an architecture that transformers has itself"
        )

    @property
    def dtype(self) -> str:
        """The type that most of the weights are stored in: FP32, BF16 or FP16."""
        bytes_of = dict.fromkeys(STORED, 0)
        for tensor in self.tensors.values():
            if tensor.dtype in bytes_of:
                bytes_of[tensor.dtype] += tensor.nbytes
        return STORED[max(bytes_of, key=bytes_of.__getitem__)]

    @property
    def weight_bytes(self) -> int:
        """Bytes of all tensors as they are stored."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def cache_elements_per_token(self) -> int:
        """Return the numbers that the cache of keys and values has for each token, all layers."""
        heads, layers, dim = self.number(*HEADS), self.number(*LAYERS), self.head_dim()
        if self.config.get("kv_lora_rank"):  # latent: all heads' are made of it before they go in
            key, rotated, value = (
                self.number(name) if self.config.get(name) else dim for name in LATENT
            )
            return layers * heads * (key + rotated + value)
        key_heads = 1 if self.config.get("multi_query") else self.number(*KEY_HEADS)
        if self.model_type == REPEATED_KEYS:
            key_heads *= self.number("num_experts_per_tok")
        return 2 * layers * key_heads * dim

    def head_dim(self) -> int:
        """Return the elements of a head."""
        if any(self.config.get(name) for name in HEAD_DIM):
            return self.number(*HEAD_DIM)
        return self.number(*HIDDEN) // self.number(*HEADS)

    def number(self, *names: str) -> int:
        """Return the first of these settings that `config.json` has; a whole number above 0.

        Raises:
            ModelError: it has none, or something else.
        """
        if not any(name in self.config for name in names):
            wanted = " or ".join(dict.fromkeys(names))
            raise ModelError(
                f"{self.folder / CONFIG}: expected {wanted}, which every architecture has that is "
                f"served, found none: {', '.join(self.architectures)} is another one, or the file "
                "is not complete; engine 'vllm' may serve it"
            )
        found = next((self.config[name] for name in names if self.config.get(name)), None)
        if type(found) is not int or found <= 0:
            raise self.refused(names[0], found, "a whole number above 0")
        return found

    def real(self, name: str, otherwise: float) -> float:
        """Return a setting, or what holds where there is none; a number above 0."""
        return self.above_0(name, self.config.get(name, otherwise))

    def of_rotary(self, name: str, otherwise: float | None = None) -> float:
        """Return a setting of the rotary embedding, as `real` does."""
        found = self.rotary.get(name)
        return self.above_0(f"{name} of the rotary embedding", found or otherwise or found)

    def refused(self, name: str, found: object, expected: str) -> ModelError:
        """Return what to raise for a setting of `config.json` that is something else."""
        return ModelError(f"{self.folder / CONFIG}: {name} is {found!r}, expected {expected}")

    def above_0(self, name: str, found: Any) -> float:
        """Return what was found under a name in `config.json`, a finite number above 0."""
        if type(found) not in (int, float) or not 0 < found < math.inf:
            raise self.refused(name, found, "a number above 0")
        return float(found)


def generates_text(model: Described) -> bool:
    """Whether a model is a checkpoint that generates text; see `is_checkpoint`."""
    return is_checkpoint(model.directory, model.filename)


def is_checkpoint(folder: Path, filename: str = "") -> bool:
    """Return whether a version folder is meant to be one; whether it is complete is another thing.

    A `config.json` that names a model type is one, whatever weights lie beside it, unless its
    architecture is an encoder's: that is a graph like any other. So is a graph beside it that
    `default_model_filename` names, or, where that does not name `config.json` or weights, one that
    has no decoder's safetensors beside it.
    """
    if filename not in ("", CONFIG) and not filename.endswith((".safetensors", INDEX)):
        return False
    try:
        config = read_json(folder / CONFIG)
        if "model_type" not in config or is_encoder(folder):
            return False
        if filename:  # it names the checkpoint
            return True
        weights = config.get("architectures") and any(folder.glob("*.safetensors"))
        # An NPU's own files count, too, which come first there.
        return bool(weights) or find_model_file(folder, "", "npu").name == CONFIG
    except ModelError:
        return False


def read_checkpoint(folder: Path, *, quantised: bool = False) -> Checkpoint:
    """Return what a version folder holds; quantised weights only for who runs them, too.

    That is vLLM, which has architectures of its own: no sizes but the vocabulary's are asked for.

    Raises:
        ModelError: something is missing or damaged.
    """
    config = read_json(folder / CONFIG)
    _check_config(folder, config)
    if not quantised:
        _check_unquantised(folder, _quantised_by(folder, config))
    weights = _weights(folder)
    tensors: dict[str, StoredTensor] = {}
    for path in weights:
        tensors.update(read_header(path))
    coded = [name for name, tensor in tensors.items() if tensor.dtype.startswith("F8_")]
    if not quantised:
        _check_unquantised(folder, f"tensor {coded[0]!r}" if coded else "")
    generation = read_json(folder / GENERATION) if (folder / GENERATION).is_file() else {}
    tokenizer = folder / TOKENIZER
    others = [folder / name for name in (CONFIG, INDEX, GENERATION)]
    others += tokenizer_files(tokenizer)[: None if tokenizer.is_file() else 0]
    found = Checkpoint(
        folder=folder,
        config=config,
        weights=weights,
        tensors=tensors,
        tokenizer=tokenizer if tokenizer.is_file() else None,
        eos=_ends(folder, config, generation),
        sampling={name: generation[name] for name in SAMPLING if generation.get(name) is not None},
        files=(*(path for path in others if path.is_file()), *weights),
    )
    _ = found.vocabulary
    if not quantised:  # who runs those asks the file for itself
        _ = found.max_positions, found.cache_elements_per_token()
    return found


def _check_config(folder: Path, config: Mapping[str, Any]) -> None:
    path = folder / CONFIG
    names = config.get("architectures") or ["nothing"]
    if not isinstance(names, list):
        raise ModelError(f"{path}: architectures is {names!r}, expected a list of names")
    if "model_type" not in config or not any(str(name).endswith(CAUSAL) for name in names):
        raise ModelError(
            f"{path}: architectures is {', '.join(map(str, names))}, which does not predict the "
            f"next token; expected a name that ends in {' or '.join(CAUSAL)}"
        )
    if config.get("is_encoder_decoder"):
        raise ModelError(f"{path}: an encoder with a decoder; only decoders are served")


def _quantised_by(folder: Path, config: Mapping[str, Any]) -> str:
    """Return the file that says how the weights are quantised; "" where none does."""
    if config.get("quantization_config"):
        return CONFIG
    return QUANTISED if (folder / QUANTISED).is_file() else ""


def _check_unquantised(folder: Path, sign: str) -> None:
    if sign:
        raise ModelError(
            f"{folder}: the weights are quantised, as {sign} shows; only engine 'vllm' serves "
            "them so: save them as BF16 or FP32, or take that engine"
        )


def _ends(
    folder: Path, config: Mapping[str, Any], generation: Mapping[str, Any]
) -> tuple[int, ...]:
    """Return the tokens that end a text; one that the vocabulary lacks can never be drawn."""
    said, file = generation.get("eos_token_id"), GENERATION
    if said is None:
        said, file = config.get("eos_token_id"), CONFIG
    ends = said if isinstance(said, list) else [] if said is None else [said]
    if not all(type(end) is int for end in ends):
        raise ModelError(
            f"{folder / file}: eos_token_id is {said!r}, expected a token's number, or several"
        )
    vocabulary = config.get("vocab_size")
    if not isinstance(vocabulary, int):
        return tuple(ends)
    if beyond := [end for end in ends if not 0 <= end < vocabulary]:
        log.warning(
            "%s: eos_token_id %s ends nothing: the model's tokens are 0 to %d",
            folder,
            ", ".join(map(str, beyond)),
            vocabulary - 1,
        )
    return tuple(end for end in ends if 0 <= end < vocabulary)


def _weights(folder: Path) -> tuple[Path, ...]:
    """Return the files with weights: the whole one, else those of the index, else the only one.

    What lies beside a whole one is for other programs, or was left there, as in transformers 5.
    Source: transformers, modeling_utils.py, `_get_resolved_checkpoint_files`.
    """
    there = sorted(path.name for path in folder.glob("*.safetensors"))
    names = there
    if WHOLE in there:
        names = [WHOLE]
    elif (folder / INDEX).is_file():
        places = read_json(folder / INDEX).get("weight_map")
        if not isinstance(places, dict) or not places:
            raise ModelError(f"{folder / INDEX}: weight_map is missing")
        names = sorted({str(name) for name in places.values()})
        missing = [name for name in names if name not in there]
        if missing:
            raise ModelError(
                f"{folder / INDEX}: names {', '.join(missing)}, which is not beside it"
            )
        _check_places(folder, places)
    elif len(names) > 1:
        raise ModelError(
            f"{folder} has {len(names)} safetensors files, none called {WHOLE}, and no {INDEX}; "
            "copy that file, too"
        )
    if not names:
        others = sorted(path.name for path in folder.iterdir())
        raise ModelError(
            f"no *.safetensors in {folder}, found {', '.join(others)}; only safetensors are read: "
            "save the model with save_pretrained"
        )
    return tuple(folder / name for name in names)


def _check_places(folder: Path, places: Mapping[str, Any]) -> None:
    held = {name: read_header(folder / name).keys() for name in set(places.values())}
    for tensor, name in places.items():
        if tensor not in held[name]:
            raise ModelError(f"{folder / INDEX}: {tensor!r} should be in {name}, which has none")
