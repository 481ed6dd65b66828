"""Which of a server's models this API can serve, read from their configurations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy.typing as npt

__all__ = ["Ability", "Array", "ServedModel", "read_model"]

# A tensor of a model.
Array = npt.NDArray[Any]

# An input that a language model of this project has, and one of Triton's vLLM backend has not.
_OWN = "description"
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
class ServedModel:
    """A model that the API can serve.

    Attributes:
        own: of a language model: it is of this project, and describes itself.
        rows: the most rows of one request; 0: the model has no batch dimension.
        input, output: of an embedding model: the text, BYTES [1], and the vector, FP32 [size]; of a
            ranker the query, and the score, FP32 [1].
        pair: of a ranker: the document, BYTES [1].
        size: of the output, -1 where the configuration leaves it open.
        logits: of a ranker: a sigmoid makes scores between 0 and 1 of what it gives.
    """

    name: str
    ability: Ability
    own: bool = False
    rows: int = 0
    input: str = ""
    pair: str = ""
    output: str = ""
    size: int = -1
    logits: bool = True


def read_model(config: Mapping[str, Any]) -> ServedModel | None:
    """Return what a model is for by the host's JSON, whose dims are texts; None if nothing here."""
    inputs = {block["name"]: block for block in config.get("input", [])}
    outputs = {block["name"]: block for block in config.get("output", [])}
    name = str(config["name"])
    if {
        "text_input",
        "sampling_parameters",
        "stream",
    } <= inputs.keys() and "text_output" in outputs:
        return ServedModel(name=name, ability=Ability.TEXT, own=_OWN in inputs)
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


# By the number of texts that a model takes.
_ABILITIES = {1: Ability.EMBEDDING, 2: Ability.RANKING}


def _is(block: Mapping[str, Any], kind: str, rows: int) -> bool:
    """Return whether a tensor is of a kind and has one number of dimensions behind the rows."""
    return block.get("data_type") == kind and len(block.get("dims", [])) == (1 if rows else 2)
