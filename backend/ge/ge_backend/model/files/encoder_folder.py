"""What a Hugging Face folder says about its encoder: read from its JSON files, without torch."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
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
MODULES = "modules.json"
PROMPTS = "config_sentence_transformers.json"
# Whatever of a folder decides what its encoder answers; weights beside.
PARTS = (CONFIG, MODULES, "tokenizer_config.json")
# `sentence_bert_config.json`; older folders name it after the kind of their encoder.
SENTENCE = "sentence_*_config.json"

POOLINGS = ("mean", "cls", "max", "last")
# What RoBERTa and its kin count positions from: this many of the table are not for tokens.
FIRST_POSITION = {"roberta": 2, "xlm-roberta": 2, "camembert": 2, "mpnet": 2}
GENERATIVE = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
# What a checkpoint's architecture ends with, and the output that its head gives.
HEADS = {"ForSequenceClassification": "scores", "ForTokenClassification": "token_scores"}
# What T5 and its kin call their encoder alone.
ENCODER_ONLY = "EncoderModel"
# These have no head, or one that is only for training; that of any other would be left out.
HEADLESS = ("Model", "Encoder", "ForMaskedLM", "ForPreTraining")
DEFAULT_LENGTH = 512
# Where tokenizers have no limit they say a number with 30 digits.
NO_LIMIT = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderFolder:
    """What a folder of weights is to become.

    Attributes:
        output: the name of the graph's output.
        pooling: `mean`, `cls`, `max` or `last`: one vector per text; "" leaves the output as it is.
        normalised: whether these vectors get unit length.
        labels: of a classifier of texts, in the order of its scores.
        max_length: the most tokens of a text.
        lower_case: whether texts are put in lower case, whatever the tokenizer does.
        pairs: whether it is given two texts at once, which no file says.
        logits: whether sentence-transformers puts a classifier's scores through a sigmoid, where
            there is one score.
    """

    folder: Path
    output: str
    pooling: str
    normalised: bool
    labels: tuple[str, ...]
    max_length: int
    lower_case: bool = False
    pairs: bool = False
    logits: bool = True

    @property
    def classifies(self) -> bool:
        """Whether the output has a score for each label."""
        return self.output in HEADS.values()

    @property
    def per_token(self) -> bool:
        """Whether the output has a vector, or scores, for each token."""
        return self.output.startswith("token_")


def is_encoder(folder: Path) -> bool:
    """Return whether a folder is an encoder's, which writes no text.

    So says its `config.json`, or a `modules.json` that pools what a decoder makes of a text.
    """
    try:
        config = _read(folder / CONFIG)
        return bool(config.get("architectures")) and not _writes(folder, config)
    except ConfigError:
        return False


def encoder_files(folder: Path) -> tuple[Path, ...]:
    """Return the files of a folder that its encoder is made of."""
    further = sorted(folder.glob(SENTENCE))
    with contextlib.suppress(ConfigError):  # what reads the folder says what is wrong with it
        further += [folder / path / CONFIG for kind, path in _modules(folder) if kind == "Pooling"]
    weights = sorted(folder.glob("*.safetensors*"))
    return tuple(p for p in (*(folder / n for n in PARTS), *further, *weights) if p.is_file())


def read_encoder_folder(folder: Path) -> EncoderFolder:
    """Return what a folder of transformers or sentence-transformers holds.

    A folder with `modules.json` gives sentence embeddings as its modules say, a checkpoint for
    classification, or a ranker, gives scores, of its texts or its tokens, any other encoder a
    vector per token.

    Raises:
        ConfigError: it is no such folder, or has a part that is not taken over.
    """
    modules = _modules(folder)
    if modules and modules[0][0] != "Transformer":  # such folders have no config.json
        raise _other_modules(folder, modules)
    config = _read(folder / CONFIG)
    if writes := _writes(folder, config):
        raise ConfigError(f"{folder} holds a {writes}, which writes text; expected an encoder")
    if half := [name for name in _architectures(config) if name.endswith(ENCODER_ONLY)]:
        raise ConfigError(
            f"{folder} holds a {half[0]}, the encoder of a model that has a decoder, too, and is "
            "read with it; export the encoder, and serve it as a model.onnx"
        )
    pooling, normalised = "", False
    alone = [kind for kind, _ in modules] == ["Transformer"]  # as a ranker is saved
    if modules and not (alone and _output(folder, config) in HEADS.values()):
        pooling, normalised = _sentence(folder, modules)
    output = "sentence_embedding" if pooling else _output(folder, config)
    labels = (config.get("id2label") or {}) if output == "scores" else {}
    if not isinstance(labels, dict) or not all(map(str.isdecimal, labels)):
        raise _refused(folder / CONFIG, "id2label", labels, "an object with a name for each number")
    return EncoderFolder(
        folder=folder,
        output=output,
        pooling=pooling,
        normalised=normalised,
        labels=tuple(str(labels[key]) for key in sorted(labels, key=int)),
        max_length=_max_length(folder, config),
        lower_case=bool(modules and _sentence_config(folder).get("do_lower_case")),
        logits=not _activation(folder, config).endswith(".Identity"),
    )


def default_prompt(folder: Path) -> str:
    """Return what sentence-transformers puts before each text, unless told otherwise; often "".

    Raises:
        ConfigError: the file that says so cannot be read.
    """
    given = _read_if_there(folder / PROMPTS)
    prompts = given.get("prompts") or {}
    if not isinstance(prompts, dict):
        raise _refused(folder / PROMPTS, "prompts", prompts, "an object")
    return str(prompts.get(str(given.get("default_prompt_name"))) or "")


def _activation(folder: Path, config: Any) -> str:
    """Return what scores go through, a module of torch; "" where nothing is said.

    Source: sentence-transformers 6.2, cross_encoder/model.py: it saves to a file of its own, which
    goes before what older releases put into `config.json`, by two names.
    """
    own = config.get("sentence_transformers")
    said = (
        _read_if_there(folder / PROMPTS).get("activation_fn"),
        own.get("activation_fn") if isinstance(own, dict) else None,
        config.get("sbert_ce_default_activation_function"),
    )
    return str(next(filter(None, said), ""))


def _architectures(config: Any) -> tuple[str, ...]:
    names = config.get("architectures") or []
    return tuple(map(str, names if isinstance(names, list) else [names]))


def _writes(folder: Path, config: Any) -> str:
    """Return the name of what writes text; "" for an encoder."""
    generative = [name for name in _architectures(config) if name.endswith(GENERATIVE)]
    if config.get("is_encoder_decoder"):
        return (*generative, str(config.get("model_type")))[0]
    # A decoder's body is often saved under the name of the whole.
    pooled = generative and any(kind == "Pooling" for kind, _ in _modules(folder))
    return generative[0] if generative and not pooled else ""


def _output(folder: Path, config: Any) -> str:
    """Return the name of what an encoder gives that is not of sentence-transformers."""
    for name in _architectures(config):
        if not name.endswith((*HEADS, *HEADLESS)):
            raise ConfigError(
                f"{folder} holds a {name}, whose head would be left out; expected a name in "
                f"architectures that ends with one of {', '.join((*HEADS, *HEADLESS))}: serve "
                "others as a model.onnx"
            )
    found = [o for end, o in HEADS.items() for n in _architectures(config) if n.endswith(end)]
    return found[0] if found else "token_embeddings"


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """Return the modules of sentence-transformers: their kinds, and where in the folder they lie.

    There are none where no file names them.
    """
    file = folder / MODULES
    try:
        modules = [
            (str(each["type"]).rpartition(".")[2], Path(str(each["path"])))
            for each in (_read(file, list) if file.is_file() else ())
        ]
    except (TypeError, KeyError) as error:
        raise ConfigError(
            f"{file} cannot be read ({error!r}); expected a list of modules with type and path"
        ) from error
    for kind, path in modules:
        if path.is_absolute() or ".." in path.parts:
            raise ConfigError(f"{file} names {path}, which may lie outside; expected a path in it")
        if kind == "Transformer" and path != Path():
            raise ConfigError(f"{folder}: its Transformer lies in {folder / path}; import that")
    return modules


def _sentence(folder: Path, modules: list[tuple[str, Path]]) -> tuple[str, bool]:
    """Return how a sentence-transformers folder pools, and whether embeddings get unit length."""
    kinds = [kind for kind, _ in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise _other_modules(folder, modules)
    if cut := _read_if_there(folder / PROMPTS).get("truncate_dim"):
        raise ConfigError(
            f"{folder / PROMPTS} cuts embeddings to {cut} numbers, which the model would not; set "
            "truncate_dim to null there, and let clients cut them"
        )
    file = folder / modules[1][1] / CONFIG
    given = _read(file)
    if given.get("include_prompt", True) is False:
        raise ConfigError(
            f"{file} leaves the tokens of a prompt out of a text's vector (include_prompt), and in "
            "a text that is sent the model cannot tell which these are; set include_prompt to true "
            "there if texts are sent without a prompt"
        )
    modes = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max", "lasttoken": "last"}
    mode = given.get("pooling_mode") or []
    asked = list(map(str, mode if isinstance(mode, list) else [mode]))
    asked = [modes.get(name, name) for name in asked] + [
        modes.get(key.removeprefix("pooling_mode_"), key)
        for key, on in given.items()
        if key.startswith("pooling_mode_") and on
    ]
    if len(asked) != 1 or asked[0] not in POOLINGS:
        raise ConfigError(f"{folder} pools by {', '.join(asked)}; expected {', '.join(POOLINGS)}")
    return str(asked[0]), "Normalize" in kinds


def _other_modules(folder: Path, modules: list[tuple[str, Path]]) -> ConfigError:
    return ConfigError(
        f"{folder} has the modules {', '.join(kind for kind, _ in modules)}; expected Transformer "
        "and Pooling, and perhaps Normalize: serve any other part as a model of its own, in an "
        "ensemble"
    )


def _max_length(folder: Path, config: Any) -> int:
    """Return the most tokens of a text: what it was trained on, and there are positions for."""
    tokenizer = folder / "tokenizer_config.json"
    length = _number(tokenizer, _read_if_there(tokenizer), "model_max_length")
    said = length if 0 < length < NO_LIMIT else DEFAULT_LENGTH
    said = _number(folder / SENTENCE, _sentence_config(folder), "max_seq_length") or said
    positions = _number(folder / CONFIG, config, "max_position_embeddings")
    reserved = FIRST_POSITION.get(str(config.get("model_type")), 0)
    return min(said, positions - reserved) if positions else said


def _number(file: Path, given: Mapping[str, Any], name: str) -> int:
    """Return a setting of a file, a number above 0; 0 where it says nothing."""
    found = given.get(name) or 0
    if type(found) not in (int, float) or not found >= 0:
        raise _refused(file, name, found, "a number above 0")
    return int(min(found, NO_LIMIT))


def _refused(file: Path, name: str, found: object, expected: str) -> ConfigError:
    return ConfigError(f"{file}: {name} is {found!r}, expected {expected}")


def _sentence_config(folder: Path) -> dict[str, Any]:
    """Return what sentence-transformers keeps of texts; empty where there is no such file."""
    return next((_read(file) for file in sorted(folder.glob(SENTENCE))), {})


def _read_if_there(file: Path) -> Any:
    """Return what a file says; nothing where there is none."""
    return _read(file) if file.is_file() else {}


def _read(file: Path, kind: type = dict) -> Any:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{file} cannot be read ({error}); expected the folder of a transformers or "
            "sentence-transformers model"
        ) from error
    if not isinstance(content, kind):
        wanted = "an object" if kind is dict else "a list"
        raise ConfigError(f"{file} cannot be read (it holds {content!r}); expected {wanted}")
    return content
