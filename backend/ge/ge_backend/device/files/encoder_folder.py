"""What a Hugging Face folder says about its encoder: read from its JSON files, without torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ge_backend.errors import ConfigError

__all__ = [
    "CONFIG",
    "PROMPTS",
    "EncoderFolder",
    "default_prompt",
    "encoder_files",
    "is_encoder",
    "read_encoder_folder",
]

CONFIG = "config.json"
PROMPTS = "config_sentence_transformers.json"
# Whatever of a folder decides what its encoder answers; weights beside.
PARTS = (CONFIG, "modules.json", "tokenizer_config.json")
# `sentence_bert_config.json`; older folders name it after the kind of their encoder.
SENTENCE = "sentence_*_config.json"

POOLINGS = ("mean", "cls", "max")
# What RoBERTa and its kin count positions from: so many of the table are not for tokens.
FIRST_POSITION = {"roberta": 2, "xlm-roberta": 2, "camembert": 2, "mpnet": 2}
GENERATIVE = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
# What a checkpoint's architecture ends with, and the output that its head gives.
HEADS = {"ForSequenceClassification": "scores", "ForTokenClassification": "token_scores"}
# Others would be left out; those that a checkpoint is trained with before it is put to use may be.
UNKNOWN_HEADS = ("ForQuestionAnswering", "ForMultipleChoice", "ForNextSentencePrediction")
DEFAULT_LENGTH = 512
# Where tokenizers have no limit they say a number with 30 digits.
NO_LIMIT = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderFolder:
    """What a folder of weights is to become.

    Attributes:
        output: the name of the graph's output.
        pooling: `mean`, `cls` or `max`: one vector per text; "" leaves the output as it is.
        normalised: whether these vectors get unit length.
        labels: of a classifier of texts, in the order of its scores.
        max_length: the most tokens of a text.
        lower_case: whether texts are put in lower case, whatever the tokenizer does.
        pairs: whether it is given two texts at once, which no file says.
    """

    folder: Path
    output: str
    pooling: str
    normalised: bool
    labels: tuple[str, ...]
    max_length: int
    lower_case: bool = False
    pairs: bool = False

    @property
    def classifies(self) -> bool:
        """Whether the output has a score for each label."""
        return self.output in HEADS.values()

    @property
    def per_token(self) -> bool:
        """Whether the output has a vector, or scores, for each token."""
        return self.output.startswith("token_")


def is_encoder(folder: Path) -> bool:
    """Return whether the `config.json` of a folder is an encoder's, which writes no text."""
    try:
        config = _read(folder / CONFIG)
    except ConfigError:
        return False
    names = config.get("architectures") if isinstance(config, dict) else None
    return bool(names) and not _writes(config)


def encoder_files(folder: Path) -> tuple[Path, ...]:
    """Return the files of a folder that its encoder is made of."""
    further = (*sorted(folder.glob(SENTENCE)), *sorted(folder.glob("*_Pooling/config.json")))
    weights = sorted(folder.glob("*.safetensors*"))
    return tuple(p for p in (*(folder / n for n in PARTS), *further, *weights) if p.is_file())


def read_encoder_folder(folder: Path) -> EncoderFolder:
    """Return what a folder of transformers or sentence-transformers holds.

    A folder with `modules.json` gives sentence embeddings as its modules say, a checkpoint for
    classification gives scores, of its texts or its tokens, any other encoder a vector per token.

    Raises:
        ConfigError: it is no such folder, or has a part that is not taken over.
    """
    config = _read(folder / CONFIG)
    if writes := _writes(config):
        raise ConfigError(f"{folder} holds a {writes}, which writes text; expected an encoder")
    pooling, normalised = "", False
    if (folder / "modules.json").is_file():
        pooling, normalised = _sentence(folder)
    output = "sentence_embedding" if pooling else _output(folder, config)
    labels = config.get("id2label", {}) if output == "scores" else {}
    return EncoderFolder(
        folder=folder,
        output=output,
        pooling=pooling,
        normalised=normalised,
        labels=tuple(str(labels[key]) for key in sorted(labels, key=int)),
        max_length=_max_length(folder, config),
        lower_case=bool(pooling and _sentence_config(folder).get("do_lower_case")),
    )


def default_prompt(folder: Path) -> str:
    """Return what sentence-transformers puts before each text, unless told otherwise; often "".

    Raises:
        ConfigError: the file that says so cannot be read.
    """
    if not (folder / PROMPTS).is_file():
        return ""
    given = _read(folder / PROMPTS)
    return str((given.get("prompts") or {}).get(given.get("default_prompt_name")) or "")


def _architectures(config: Any) -> tuple[str, ...]:
    return tuple(map(str, config.get("architectures") or ()))


def _writes(config: Any) -> str:
    """Return the name of what writes text; "" for an encoder."""
    generative = [name for name in _architectures(config) if name.endswith(GENERATIVE)]
    if generative or config.get("is_encoder_decoder"):
        return (*generative, str(config.get("model_type")))[0]
    return ""


def _output(folder: Path, config: Any) -> str:
    """Return the name of what an encoder gives that is not of sentence-transformers."""
    for name in _architectures(config):
        if name.endswith(UNKNOWN_HEADS):
            raise ConfigError(
                f"{folder} holds a {name}, whose head would be left out; expected one for "
                "classification, or an encoder without a head: serve others as a model.onnx"
            )
    found = [o for end, o in HEADS.items() for n in _architectures(config) if n.endswith(end)]
    return found[0] if found else "token_embeddings"


def _sentence(folder: Path) -> tuple[str, bool]:
    """Return how a sentence-transformers folder pools, and whether embeddings get unit length."""
    kinds = {}
    for module in _read(folder / "modules.json"):
        kinds[str(module["type"]).rpartition(".")[2]] = folder / str(module["path"])
    unknown = kinds.keys() - {"Transformer", "Pooling", "Normalize"}
    if unknown or not {"Transformer", "Pooling"} <= kinds.keys():
        raise ConfigError(
            f"{folder} has the modules {', '.join(kinds)}; expected Transformer and Pooling, and "
            "perhaps Normalize: serve any other part as a model of its own, in an ensemble"
        )
    if kinds["Transformer"] != folder and kinds["Transformer"].resolve() != folder.resolve():
        raise ConfigError(f"{folder}: its Transformer lies in {kinds['Transformer']}; import that")
    given = _read(kinds["Pooling"] / "config.json")
    modes = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max"}
    asked = [given["pooling_mode"]] if "pooling_mode" in given else []
    asked += [
        modes.get(key.removeprefix("pooling_mode_"), key)
        for key, on in given.items()
        if key.startswith("pooling_mode_") and on
    ]
    if len(asked) != 1 or asked[0] not in POOLINGS:
        raise ConfigError(f"{folder} pools by {', '.join(asked)}; expected {', '.join(POOLINGS)}")
    return str(asked[0]), "Normalize" in kinds


def _max_length(folder: Path, config: Any) -> int:
    """Return the most tokens of a text: what it was trained on, and there are positions for."""
    said = DEFAULT_LENGTH
    tokenizer = folder / "tokenizer_config.json"
    if tokenizer.is_file() and (length := _read(tokenizer).get("model_max_length", NO_LIMIT)):
        said = int(length) if length < NO_LIMIT else said
    said = int(_sentence_config(folder).get("max_seq_length") or said)
    reserved = FIRST_POSITION.get(str(config.get("model_type")), 0)
    return min(said, int(config.get("max_position_embeddings", said + reserved)) - reserved)


def _sentence_config(folder: Path) -> dict[str, Any]:
    """Return what sentence-transformers keeps of texts; empty where there is no such file."""
    return next((dict(_read(file)) for file in sorted(folder.glob(SENTENCE))), {})


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{file} cannot be read ({error}); expected the folder of a transformers or "
            "sentence-transformers model"
        ) from error
