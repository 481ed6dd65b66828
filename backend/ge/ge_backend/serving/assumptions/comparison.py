"""Runs outside of traffic, and how far two answers of a graph, or of two engines, are apart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np

from ge_backend.errors import GeError, ModelError
from ge_backend.executor.client.session import Session
from ge_backend.executor.protocol.arena import aligned
from ge_backend.executor.protocol.messages import Run
from ge_backend.model.files.ir_file import ir_quantises
from ge_backend.model.files.onnx_file import onnx_operators
from ge_backend.tensors import Array, DataType, bf16_to_float32

__all__ = ["Difference", "apart", "quantises", "run_once", "run_staged", "worst_of"]

# As a part of an output's largest number, and a text: "" where it is within the tolerance.
Difference: TypeAlias = tuple[float, str]

# Outputs that are nowhere larger than this are compared as if they were.
SMALLEST = 1e-4
# Operators of a file that rounds activations as it runs, in steps or by the largest of a run.
QUANTISED = frozenset({"DynamicQuantizeLinear", "MatMulInteger", "QuantizeLinear"})
# A tolerance above this one holds for as many of the elements that are no real numbers, too.
MANY = 0.1


class _Output(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> DataType: ...


def quantises(model: Path) -> bool:
    """Whether a file rounds activations as it runs, so that answers differ by whole steps.

    An `.onnx` or `.xml` file; one that cannot be read counts as such.
    """
    try:
        if model.suffix == ".xml":
            return ir_quantises(model)
        return bool(onnx_operators(model) & QUANTISED)
    except ModelError:
        return True


def run_once(session: Session, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs of one run, in memory of their own.

    Args:
        session: runs these shapes, and has nothing else in flight.
        inputs: all of the graph's, none BYTES.

    Raises:
        GraphFailed: the engine refuses the values or their shapes.
        GeError: something else went wrong; the session has lost the executor if that was it.
    """
    session.reserve(sum(aligned(array.nbytes) for array in inputs.values()))
    dtypes = {spec.name: spec.dtype.name for spec in session.signature.inputs}
    refs = []
    for name, array in inputs.items():
        ref = session.arena.place(name, dtypes[name], array.shape, array.nbytes)
        session.arena.view(ref)[...] = array
        refs.append(ref)
    return run_staged(session, Run(id=0, graph=0, arena=0, inputs=tuple(refs), outputs=()))


def run_staged(session: Session, run: Run) -> dict[str, Array]:
    """As `run_once`, of tensors that lie in the arena; outputs with a place lie there, too."""
    try:
        in_flight = session.in_flight()
        in_flight.submit(0, replace(run, trial=True))
        ended = in_flight.receive()
    except GeError as error:
        session.lose(error)
        raise
    if ended is not None and ended[1].error is not None:
        raise ended[1].error
    return {} if ended is None else ended[1].outputs


def apart(
    expected: Mapping[str, Array],
    got: Mapping[str, Array],
    outputs: Iterable[_Output],
    tolerance: float,
) -> Difference:
    """Return by how much these outputs differ.

    The difference is infinite where shapes or places of numbers that are not finite differ.
    """
    return worst_of(
        _apart(output, expected[output.name], got[output.name], tolerance) for output in outputs
    )


def worst_of(found: Iterable[Difference]) -> Difference:
    """Return the largest of some differences, with the first of their texts."""
    worst, said = 0.0, ""
    for off, text in found:
        worst, said = max(worst, off), said or text
    return worst, said


def _apart(output: _Output, one: Array, other: Array, tolerance: float) -> Difference:
    name = output.name
    if one.shape != other.shape:
        return math.inf, f"output {name!r} has the shape {list(other.shape)}, not {list(one.shape)}"
    if output.dtype.name == "BF16":
        one, other = bf16_to_float32(one), bf16_to_float32(other)
    if one.dtype.kind != "f":
        unequal = int(np.count_nonzero(one != other))
        off = unequal / max(one.size, 1)
        most = tolerance if tolerance > MANY else 0.0
        text = f"output {name!r} differs in {unequal} of {one.size} elements"
        return off, text if off > most else ""
    one, other = one.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(one) & np.isfinite(other)
    if not np.array_equal(one[~finite], other[~finite], equal_nan=True):
        return math.inf, f"output {name!r} is finite in other places"
    largest = max(float(np.abs(one[finite]).max(initial=0.0)), SMALLEST)
    off = float(np.abs(one[finite] - other[finite]).max(initial=0.0)) / largest
    if off > tolerance:
        return off, f"output {name!r} differs by {off:.2g} of its largest number"
    return off, ""
