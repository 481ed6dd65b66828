"""Which of a server's models this API can serve, read from their configurations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy.typing as npt

__all__ = [
    "DESCRIPTION",
    "HEARTBEAT",
    "Ability",
    "Array",
    "Describer",
    "ServedModel",
    "describer",
    "read_model",
    "reader",
]

# A tensor of a model.
Array = npt.NDArray[Any]

# By this input a model of this project is asked what it is, which its output of the name says.
DESCRIPTION = "description"
# By this one its stub shows that it lives: once a second where there is nothing else to send.
HEARTBEAT = "heartbeat"
# What the second text of a pair is called by this project's tokenizers, wherever it is declared.
_SECOND = "text_pair"
# The parameter of a model that says whether its scores are to go through a sigmoid.
_ACTIVATION = "score_activation"


class Ability(Enum):
    """What a model is for."""

    TEXT = "text"
    EMBEDDING = "embedding"
    RANKING = "ranking"


@dataclass(frozen=True, slots=True, kw_only=True)
class Describer:
    """A model that says what tokenizes its texts.

    Attributes:
        texts: inputs that have to be sent when it is asked, BYTES [1].
        batched: it has a batch dimension.
    """

    name: str
    texts: tuple[str, ...]
    batched: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model that the API can serve.

    Attributes:
        own: of a language model: it is of this project, and describes itself.
        beats: likewise: its heartbeat can be asked for.
        rows: the most rows of one request; 0: the model has no batch dimension.
        input, output: of an embedding model: the text, BYTES [1], and the vector, FP32 [size]; of a
            ranker the query, and the score, FP32 [1].
        pair: of a ranker: the document, BYTES [1].
        size: of the output, -1 where the configuration leaves it open.
        logits: of a ranker: a sigmoid makes scores between 0 and 1 of what it gives.
        tokenized: what says what tokenizes its texts, itself or a step of an ensemble; None: none.
    """

    name: str
    ability: Ability
    own: bool = False
    beats: bool = False
    rows: int = 0
    input: str = ""
    pair: str = ""
    output: str = ""
    size: int = -1
    logits: bool = True
    tokenized: Describer | None = None


def read_model(config: Mapping[str, Any]) -> ServedModel | None:
    """Return what a model is for by the host's JSON, whose dims are texts; None if nothing here."""
    inputs, outputs = _blocks(config, "input"), _blocks(config, "output")
    name = str(config["name"])
    if {
        "text_input",
        "sampling_parameters",
        "stream",
    } <= inputs.keys() and "text_output" in outputs:
        own, beats = DESCRIPTION in inputs, HEARTBEAT in inputs
        return ServedModel(name=name, ability=Ability.TEXT, own=own, beats=beats)
    if _describes(inputs, outputs):
        del inputs[DESCRIPTION]
    rows = int(config.get("max_batch_size", 0))
    vectors = [block for block in outputs.values() if _is(block, "TYPE_FP32", rows)]
    texts = [text for text, block in inputs.items() if _is(block, "TYPE_STRING", rows)]
    if len(vectors) != 1 or len(texts) != len(inputs) or len(texts) not in _ABILITIES:
        return None
    ability = _ABILITIES[len(texts)]
    size = int(vectors[0]["dims"][-1])
    if size >= 0 and (size == 1) is not (ability is Ability.RANKING):
        return None  # one text has a vector, a pair one score
    text, *pair = sorted(texts, key=_SECOND.__eq__)  # else as they are declared
    said = config.get("parameters", {}).get(_ACTIVATION, {}).get("string_value")
    return ServedModel(
        name=name,
        ability=ability,
        rows=rows,
        input=text,
        pair="".join(pair),
        output=vectors[0]["name"],
        size=size,
        logits=said != "identity",
    )


def describer(config: Mapping[str, Any]) -> Describer | None:
    """Return how to ask a model what tokenizes its texts; None if it does not say that."""
    inputs = _blocks(config, "input")
    if not _describes(inputs, _blocks(config, "output")):
        return None
    texts = tuple(name for name, block in inputs.items() if not block.get("optional"))
    batched = int(config.get("max_batch_size", 0)) > 0
    return Describer(name=str(config["name"]), texts=texts, batched=batched)


def reader(config: Mapping[str, Any], tensor: str) -> tuple[str, str]:
    """Return the model of an ensemble's step that takes a tensor, and what it calls that.

    Both are "" where there is none.
    """
    for step in config.get("ensemble_scheduling", {}).get("step", []):
        for name, taken in step.get("input_map", {}).items():
            if taken == tensor:
                return str(step["model_name"]), str(name)
    return "", ""


# By the number of texts that a model takes.
_ABILITIES = {1: Ability.EMBEDDING, 2: Ability.RANKING}


def _blocks(config: Mapping[str, Any], what: str) -> dict[str, Mapping[str, Any]]:
    return {block["name"]: block for block in config.get(what, [])}


def _describes(
    inputs: Mapping[str, Mapping[str, Any]], outputs: Mapping[str, Mapping[str, Any]]
) -> bool:
    """Return whether a model describes itself; a text of its own of that name has to be sent."""
    return DESCRIPTION in outputs and bool(inputs.get(DESCRIPTION, {}).get("optional"))


def _is(block: Mapping[str, Any], kind: str, rows: int) -> bool:
    """Return whether a tensor is of a kind and has one number of dimensions behind the rows."""
    return block.get("data_type") == kind and len(block.get("dims", [])) == (1 if rows else 2)
