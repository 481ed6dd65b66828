"""Which of a server's models this API can serve, read from their configurations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

__all__ = ["Ability", "ServedModel", "read_model"]


class Ability(Enum):
    """What a model is for."""

    TEXT = "text"
    EMBEDDING = "embedding"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model that the API can serve.

    Attributes:
        rows: the most rows of one request; 0: the model has no batch dimension.
        input, output: of an embedding model: the text, BYTES [1], and the vector, FP32 [size].
        size: of the vector, -1 where the configuration leaves it open.
    """

    name: str
    ability: Ability
    rows: int = 0
    input: str = ""
    output: str = ""
    size: int = -1


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
        return ServedModel(name=name, ability=Ability.TEXT)
    rows = int(config.get("max_batch_size", 0))
    vectors = [block for block in outputs.values() if _is(block, "TYPE_FP32", rows)]
    if len(inputs) != 1 or len(vectors) != 1:
        return None
    ((text, block),) = inputs.items()
    if not _is(block, "TYPE_STRING", rows):
        return None
    size = int(vectors[0]["dims"][-1])
    if size == 1:
        return None  # a score
    return ServedModel(
        name=name,
        ability=Ability.EMBEDDING,
        rows=rows,
        input=text,
        output=vectors[0]["name"],
        size=size,
    )


def _is(block: Mapping[str, Any], kind: str, rows: int) -> bool:
    """Return whether a tensor is of a kind and has one number of dimensions behind the rows."""
    return block.get("data_type") == kind and len(block.get("dims", [])) == (1 if rows else 2)
