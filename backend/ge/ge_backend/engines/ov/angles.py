"""Sines and cosines of positions, computed beside a graph that computes in BF16.

OpenVINO rounds to BF16 what lies between a graph's inputs and its first product, unless it knows
the pattern: positions of rotary embeddings beyond 256 are then one and the same, and cosines off by
up to 2 (seen on 2026.4). So angles are cut out into a model of their own, which computes in FP32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import openvino
from openvino import opset13

from ge_backend.engines.ov.requests import BorrowingRequest, Requests
from ge_backend.tensors import Array

__all__ = ["Angles", "ComputedAngles", "cut_angles"]

KINDS = ("Sin", "Cos")
# Angles take hardly any of a file's numbers: frequencies, and perhaps a table of positions. What
# takes more is a layer whose activation is a sine.
MAX_NUMBERS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Angles:
    """What was cut out.

    Attributes:
        model: its outputs are what the other model is given behind its own inputs.
        inputs: which of that model's inputs it takes, by their places.
    """

    model: Any
    inputs: tuple[int, ...]


class ComputedAngles:
    """Angles by a compiled model of `Angles.model`.

    Args:
        compiled: one that has not run yet.
        at_once: how many threads compute them at once.
        inputs: which of the other model's inputs it takes, by their places.
    """

    def __init__(self, compiled: Any, at_once: int, inputs: Sequence[int]) -> None:
        self._requests = Requests(compiled, at_once, BorrowingRequest)
        self._ranks = [len(port.partial_shape) for port in compiled.outputs]
        self._inputs = inputs

    def of(self, given: Sequence[Array]) -> list[Array]:
        """Return FP32 sines and cosines of the other model's own inputs.

        Raises:
            RuntimeError: or another one of `ENGINE_ERRORS`: these do not fit it.
        """
        taken = [openvino.Tensor(given[place], shared_memory=True) for place in self._inputs]
        angles = [openvino.Tensor(openvino.Type.f32, [0] * rank) for rank in self._ranks]
        with self._requests.taken() as request:
            request.run(taken, dict(enumerate(angles)))
        return [tensor.data for tensor in angles]


def cut_angles(model: Any) -> Angles | None:
    """Take angles out of a model, which gets an input for each; None where it has none.

    Of other angles than positions', such as a layer's whose activation is a sine, there is none.
    """
    found = [one for one in model.get_ordered_ops() if one.get_type_name() in KINDS]
    ways = [way for one in found if (way := _Way.to(one)) is not None]
    if not ways:
        return None
    places = sorted({model.get_parameter_index(source) for way in ways for source in way.sources})
    results, given = [], []
    for way in ways:
        port = way.angle.output(0)
        parameter = opset13.parameter(port.get_partial_shape(), port.get_element_type())
        for reader in port.get_target_inputs():
            reader.replace_source_output(parameter.output(0))
        results.append(opset13.result(port))
        given.append(parameter)
    apart = openvino.Model(results, [model.get_parameters()[at] for at in places]).clone()
    model.add_parameters(given)
    model.validate_nodes_and_infer_types()
    return Angles(model=apart, inputs=tuple(places))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """An operator that computes sines or cosines, and the inputs that it computes them of."""

    angle: Any
    sources: tuple[Any, ...]

    @classmethod
    def to(cls, angle: Any) -> _Way | None:
        """Return it; None where none is an input, or layers are on the way."""
        seen, sources, waiting, numbers = set[str](), list[Any](), [angle], 0
        while waiting:
            operator = waiting.pop()
            if operator.get_name() in seen:
                continue
            seen.add(operator.get_name())
            kind = operator.get_type_name()
            if kind == "Parameter":
                sources.append(operator)
            elif kind == "Constant":
                numbers += math.prod(operator.get_output_shape(0))
            elif kind == "ReadValue":
                return None
            waiting += [value.get_node() for value in operator.input_values()]
        return (
            cls(angle=angle, sources=tuple(sources)) if sources and numbers <= MAX_NUMBERS else None
        )
