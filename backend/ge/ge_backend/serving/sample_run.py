"""Runs outside of traffic: of made-up values, and whether two engines answer them alike."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np

from ge_backend.buckets.grid import Bucket
from ge_backend.errors import GeError, GraphFailed
from ge_backend.executor.client.session import Session
from ge_backend.executor.protocol.arena import aligned
from ge_backend.executor.protocol.messages import PrepareInput, Run
from ge_backend.layout.layout import Layout
from ge_backend.layout.validate import WELL_KNOWN
from ge_backend.tensors import DATA_TYPES, Array, bf16_to_float32, float32_to_bf16
from ge_backend.warmup.warmup import bucket_inputs

__all__ = ["difference", "run_once", "sample_of"]

# Whole numbers of a sample are below one of these, the largest that the graph takes: it may look
# them up in a table of any length.
BOUNDS = (1 << 20, 1 << 14, 1 << 10, 1 << 6)
LEAST_BOUND = 2
SEED = 20
# Outputs that are nowhere larger than this are compared as if they were.
SMALLEST = 1e-4


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
    try:
        in_flight = session.in_flight()
        run = Run(id=0, graph=0, arena=0, inputs=tuple(refs), outputs=(), trial=True)
        in_flight.submit(0, run)
        ended = in_flight.receive()
    except GeError as error:
        session.lose(error)
        raise
    if ended is not None and ended[1].error is not None:
        raise ended[1].error
    return {} if ended is None else ended[1].outputs


def sample_of(
    session: Session, layout: Layout, bucket: Bucket
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return values that a graph takes, in which a difference can show, and its answers.

    Clients' numbers are random: normal where they are real, and up to the largest of some bounds
    that the graph takes where they are whole. Both are empty for a graph of texts.

    Raises:
        GraphFailed: it refuses even zeros and ones.
        GeError: as `run_once`.
    """
    given = bucket_inputs(bucket, layout)
    if any(item.dtype == "BYTES" for item in given):
        return {}, {}
    bounds = {item.name: LEAST_BOUND for item in given if _is_id(item, layout)}
    values = functools.partial(_values, given, layout)
    inputs = values(bounds)
    answers = run_once(session, inputs)
    for name in bounds:
        for bound in BOUNDS:
            larger = values({**bounds, name: bound})
            try:
                answers = run_once(session, larger)
            except GraphFailed:
                continue
            inputs, bounds[name] = larger, bound
            break
    return inputs, answers


def difference(
    expected: Mapping[str, Array], got: Mapping[str, Array], layout: Layout, tolerance: float
) -> str:
    """Return how answers differ in the outputs that clients get; "" where they agree.

    Args:
        expected: outputs by name.
        got: those of another engine.
        layout: the graph's.
        tolerance: of real numbers, as a part of the output's largest one; all else is equal.
    """
    for output in layout.outputs:
        one, other = expected[output.name], got[output.name]
        if one.shape != other.shape:
            return (
                f"output {output.name!r} has the shape {list(other.shape)}, not {list(one.shape)}"
            )
        if output.dtype.name == "BF16":
            one, other = bf16_to_float32(one), bf16_to_float32(other)
        if one.dtype.kind != "f":
            unequal = int(np.count_nonzero(one != other))
            if unequal:
                return f"output {output.name!r} differs in {unequal} of {one.size} elements"
            continue
        one, other = one.astype(np.float64), other.astype(np.float64)
        finite = np.isfinite(one) & np.isfinite(other)
        if not np.array_equal(one[~finite], other[~finite], equal_nan=True):
            return f"output {output.name!r} is finite in other places"
        largest = max(float(np.abs(one[finite]).max(initial=0.0)), SMALLEST)
        off = float(np.abs(one[finite] - other[finite]).max(initial=0.0)) / largest
        if off > tolerance:
            return f"output {output.name!r} differs by {off:.2g} of its largest number"
    return ""


def _kinds(layout: Layout) -> dict[str, str]:
    """Return what inputs hold, as `InputLayout.made`; also of masks that clients have to send."""
    return {item.name: item.made or WELL_KNOWN.get(item.name, "") for item in layout.inputs}


def _is_id(item: PrepareInput, layout: Layout) -> bool:
    """Whether an input is of whole numbers that clients choose.

    What has a fixed shape and no rows may be sizes: a large one could take all memory.
    """
    dims = next((known.dims for known in layout.inputs if known.name == item.name), ())
    whole = DATA_TYPES[item.dtype].numpy.kind in "iu" and item.dtype != "BF16"
    return whole and _kinds(layout).get(item.name) == "" and (layout.batched or -1 in dims)


def _values(
    given: tuple[PrepareInput, ...], layout: Layout, bounds: Mapping[str, int]
) -> dict[str, Array]:
    """Return a value for each input; the same ones at every call."""
    kinds = _kinds(layout)
    random = np.random.default_rng(SEED)
    values: dict[str, Array] = {}
    for item in given:
        dtype, kind = DATA_TYPES[item.dtype], kinds.get(item.name)
        value: Array = np.full(item.shape, item.fill)
        if item.name in bounds:
            most = min(bounds[item.name], int(np.iinfo(dtype.numpy).max))
            value = random.integers(0, most, item.shape)
        elif kind == "mask":
            value = np.ones(item.shape)
        elif kind == "positions":
            value = np.broadcast_to(np.arange(item.shape[-1]), item.shape)
        elif kind == "" and dtype.name == "BF16":
            value = float32_to_bf16(random.standard_normal(item.shape))
        elif kind == "" and dtype.numpy.kind == "f":
            value = random.standard_normal(item.shape)
        elif kind == "" and dtype.name == "BOOL":
            value = random.integers(0, 2, item.shape)
        values[item.name] = value.astype(dtype.numpy)
    return values
