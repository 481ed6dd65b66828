"""Preparing and measuring every bucket before the model is READY, largest first."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Sequence

from ge_backend.errors import GraphFailed, ModelError
from ge_backend.executor.client.session import Session
from ge_backend.executor.protocol.messages import Prepared, PrepareInput
from ge_backend.model.config.sequence_batching import State
from ge_backend.model.layout.layout import EQUAL_AXIS_SIZE, InputLayout, Layout
from ge_backend.model.layout.output_rows import check_output_rows
from ge_backend.shapes.buckets.grid import Bucket
from ge_backend.tensors import DataType, Shape

__all__ = [
    "RUN_OVERHEAD_NS",
    "bucket_inputs",
    "bucket_shapes",
    "describe_bucket",
    "first_cost",
    "guessed_sizes",
    "prepare_bucket",
    "run_bucket",
    "warm_up",
]

log = logging.getLogger(__name__)

# What a run takes beside the graph's own time: staging, two messages, splitting. Else little models
# are run in many pieces: a tokenizer's row takes less. benchmarks/README.md has what the trip takes
# with one request in flight; less counts here, since with several a part overlaps with other runs.
RUN_OVERHEAD_NS = 100_000


def warm_up(
    session: Session,
    layout: Layout,
    buckets: Sequence[Bucket],
    repeats: int,
    known: Collection[Bucket] = (),
    stopped: Callable[[], bool] = lambda: False,
) -> dict[Bucket, float]:
    """Return what a run of each bucket costs in nanoseconds; what could not run is left out.

    The shortest of its runs counts. The executor measures a shape once, whichever instance asks
    first. Buckets in `known` are prepared, not measured again. It ends between two buckets once
    `stopped` says so. Nothing is measured of a graph of which no size is known that runs.

    Raises:
        ConfigError: an output's first dimension is not the rows.
        ModelError: an engine with static shapes failed on a bucket: it could never serve it.
        OutOfMemory: the compiled model does not fit.
        ExecutorLost: the executor died over a bucket, twice.
    """
    costs: dict[Bucket, float] = {}
    if not layout.equal_axis_size:
        return costs
    started = time.monotonic()
    ordered = sorted(buckets, key=math.prod, reverse=True)
    if session.shape_policy.padded and ordered:
        session.compile([bucket_shapes(bucket, layout) for bucket in ordered])
    for number, bucket in enumerate(ordered, start=1):
        if stopped():
            break
        measured = bucket not in known
        label = describe_bucket(bucket, layout)
        prepared = prepare_bucket(session, layout, bucket, repeats if measured else 0)
        if prepared is None:
            log.info("warm-up %d/%d %s failed", number, len(ordered), label)
            continue
        if measured:
            costs[bucket] = float(prepared.cost_ns + RUN_OVERHEAD_NS)
        log.info(
            "warm-up %d/%d %s %s, %.1f GiB free",
            number,
            len(ordered),
            label,
            _outcome(prepared, measured=measured),
            session.inspect().free_bytes / 2**30,
        )
    log.info("warm-up took %.1f s", time.monotonic() - started)
    return costs


def first_cost(session: Session, layout: Layout, bucket: Bucket) -> dict[Bucket, float]:
    """Run a bucket once, so that the model is known to answer; return roughly what that costs.

    Others may run or be measured meanwhile. Empty where the engine cannot run it.

    Raises:
        ConfigError: an output's first dimension is not the rows.
    """
    if not layout.equal_axis_size:
        return {}
    try:
        prepared = run_bucket(session, layout, bucket, 1, alone=False)
    except GraphFailed as error:
        log.warning("bucket %s cannot be run: %s", describe_bucket(bucket, layout), error)
        return {}
    return {bucket: float(prepared.cost_ns + RUN_OVERHEAD_NS)}


def prepare_bucket(
    session: Session, layout: Layout, bucket: Bucket, repeats: int
) -> Prepared | None:
    """Prepare one bucket; None when an engine that need not be prepared cannot run it.

    Raises:
        ConfigError: an output's first dimension is not the rows.
        ModelError: it has to be, as one with static shapes has.
    """
    try:
        return run_bucket(session, layout, bucket, repeats)
    except GraphFailed as error:
        label = describe_bucket(bucket, layout)
        if session.shape_policy.prepared:
            raise ModelError(f"warm-up of bucket {label} failed: {error}") from error
        log.warning("bucket %s cannot be measured: %s", label, error)
        session.refused.add(bucket)
        if session.shape_policy.bucketed:
            session.failed.add(bucket)
        return None


def run_bucket(
    session: Session, layout: Layout, bucket: Bucket, repeats: int, *, alone: bool = True
) -> Prepared:
    """Prepare one bucket, as `Session.prepare` does, and look at what came out.

    Raises:
        ConfigError: an output's first dimension is not the rows.
        GraphFailed: the engine cannot run it.
    """
    prepared = session.prepare(bucket_inputs(bucket, layout), repeats, alone=alone)
    check_output_rows(layout, bucket[0], prepared.outputs)
    session.most_rows = max(session.most_rows, bucket[0])
    return prepared


def _outcome(prepared: Prepared, *, measured: bool) -> str:
    if not measured:
        return "prepared"
    return f"{prepared.cost_ns / 1e6:.1f} ms" + (" (measured before)" if prepared.cached else "")


def describe_bucket(bucket: Bucket, layout: Layout) -> str:
    """Return `rows=8 sequence=64`."""
    names = ("rows", *layout.axes)
    return " ".join(f"{name}={size}" for name, size in zip(names, bucket, strict=True))


def bucket_shapes(bucket: Bucket, layout: Layout) -> dict[str, Shape]:
    """Return the shape that every input of the graph has in a bucket."""
    return {item.name: item.shape for item in bucket_inputs(bucket, layout)}


def bucket_inputs(bucket: Bucket, layout: Layout) -> tuple[PrepareInput, ...]:
    """Return what every input of the graph is when a bucket is prepared.

    Free axes that are not padded get their only or a typical size, and so do states whose size
    varies.
    """
    sizes = bucket[1:] + tuple(_typical_size(layout, name) for name in layout.equal_axes)

    def prepared(name: str, dtype: DataType, shape: Shape, fill: float) -> PrepareInput:
        return PrepareInput(name=name, dtype=dtype.name, shape=shape, fill=fill)

    def of_state(state: State) -> Shape:
        row = tuple(EQUAL_AXIS_SIZE if dim < 0 else dim for dim in state.dims)
        return state.of_rows(bucket[0], row) if layout.batched else row

    batch = bucket[:1] if layout.batched else ()
    return (
        *(prepared(state.input, state.dtype, of_state(state), 0) for state in layout.states),
        *(
            prepared(item.name, item.dtype, item.shape(batch, sizes), _fill(item, sizes))
            for item in layout.inputs
        ),
    )


def guessed_sizes(layout: Layout) -> dict[str, int]:
    """Return at which sizes free axes are measured that are neither padded nor fixed, by name.

    Requests have others, as images and sounds do, and with larger ones runs take longer and more
    memory.
    """
    free = (name for name in layout.equal_axes if name not in layout.sizes)
    return {name: _typical_size(layout, name) for name in free if layout.equal_axis_size}


def _typical_size(layout: Layout, name: str) -> int:
    """Return the only size of an axis, one that was found to run, or a guess."""
    if name in layout.typical_sizes:
        return layout.typical_sizes[name]
    size = min(layout.equal_axis_size, layout.limits.get(name, layout.equal_axis_size))
    return layout.sizes.get(name, max(size, layout.least.get(name, 1)))


def _fill(item: InputLayout, sizes: Shape) -> float:
    if item.made == "mask":
        return item.real
    if item.made == "number":
        return item.number
    return float((*sizes, 1)[item.counted]) if item.made == "lengths" else item.fill
