"""The tensors by which a model says what it is: of the backend, which a graph never sees.

A request whose optional input `description` is not the `id` of the model's description is answered
with the output `description`, JSON, in place of all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["DESCRIPTION", "graph_blocks", "is_described", "with_description"]

DESCRIPTION = "description"
_TENSOR: Mapping[str, Any] = {"name": DESCRIPTION, "data_type": "TYPE_STRING", "dims": [1]}


def with_description(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's configuration with these tensors; as it is where it has one of the name."""
    inputs, outputs = (list(document.get(what, [])) for what in ("input", "output"))
    if any(block.get("name") == DESCRIPTION for block in (*inputs, *outputs)):
        return dict(document)
    inputs.append({**_TENSOR, "optional": True})
    return {**document, "input": inputs, "output": [*outputs, dict(_TENSOR)]}


def is_described(document: Mapping[str, Any]) -> bool:
    """Whether a configuration has these tensors."""
    return any(map(_asks, document.get("input", [])))


def graph_blocks(document: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return the blocks of a configuration's inputs and outputs without these tensors."""
    inputs, outputs = (list(document.get(what, [])) for what in ("input", "output"))
    if not is_described(document):
        return inputs, outputs
    return (
        [block for block in inputs if not _asks(block)],
        [block for block in outputs if block.get("name") != DESCRIPTION],
    )


def _asks(block: Mapping[str, Any]) -> bool:
    """Whether an input is the one that asks; a graph's own of this name has to be sent."""
    kind = block.get("data_type")
    return (
        block.get("name") == DESCRIPTION and kind == "TYPE_STRING" and bool(block.get("optional"))
    )
