"""What a lane does for one message: run a graph, on an arena's tensors or others, or measure it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np

from ge_backend.deadline import over
from ge_backend.device.base import ROW_ERRORS, Graph
from ge_backend.device.failures import quiet_failures
from ge_backend.device.machine.host_memory import check_room
from ge_backend.device.resident.states import StateStore
from ge_backend.errors import GeError, GraphFailed, OutOfMemory, ProtocolError, StateLost
from ge_backend.executor.protocol.arena import Segment, aligned
from ge_backend.executor.protocol.messages import (
    Done,
    Prepare,
    Prepared,
    PrepareInput,
    Run,
    SpillRange,
    TensorRef,
)
from ge_backend.executor.server.device_tensors import BoundRuns
from ge_backend.executor.server.queue import Grant, too_late
from ge_backend.tensors import DATA_TYPES, Array, Shape, encode_bytes

__all__ = ["Cost", "HeldGraph", "measure", "run", "run_graph"]

# A measurement is repeated only while it is short: one slow bucket must not slow the whole start.
MEASURE_BUDGET_NS = 400_000_000
# What a graph of texts is measured with, of a sentence's length; empty ones take it no time.
TEXT = b"A run is measured with a sentence of some twenty words, as most texts that come have them."


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One set of input shapes: nanoseconds of its shortest run, 0: not measured; scratch bytes.

    And the shapes of the outputs that it had.
    """

    run_ns: int
    workspace_bytes: int
    outputs: dict[str, Shape]


@dataclass(slots=True)
class HeldGraph:
    """A graph that a connection holds, and what of it is this connection's.

    Attributes:
        graph: shared with all connections.
        states: of the sequences of this connection's runs, where the graph has such.
        count: how many sequences have a slot there.
        bound: makes runs whose tensors stay on the device, where the graph can.
    """

    graph: Graph
    states: StateStore | None = None
    count: int = 0
    bound: BoundRuns | None = None


def run_graph(
    held: HeldGraph,
    message: Run,
    inputs: Mapping[str, Array],
    places: Mapping[str, Array],
    grant: Grant,
) -> tuple[Done, dict[str, Array]]:
    """Run a graph on these arrays.

    Args:
        held: the graph.
        message: says which states and tensors of the device it takes, and until when it begins.
        inputs: as `Graph.run` takes them.
        places: for outputs, likewise.
        grant: how the job came to run.

    Returns:
        What is said of the run, and its outputs by name: in their places, or arrays that are the
        caller's now.

    Raises:
        DeadlineExceeded: the run was still waiting when its deadline passed.
        GraphFailed, OutOfMemory: as `Graph.run`.
    """
    started_ns = time.monotonic_ns()
    if message.deadline_ns and over(message.deadline_ns, started_ns):
        raise too_late(started_ns - grant.came_ns, started_ns - message.deadline_ns)
    states: dict[str, Shape] = {}
    if message.gathered or message.retained or message.unrequested:
        if held.bound is None:
            raise ProtocolError("a run takes or keeps tensors, and no owner of such was named")
        results = held.bound.run(message, inputs, places)
    elif held.states is None:
        with quiet_failures() if message.trial else nullcontext():
            results = held.graph.run(inputs, places, exclusive=grant.alone)
    else:
        results, states = held.states.run(
            inputs,
            places,
            message.slots,
            message.starting,
            rows=message.rows,
            exclusive=grant.alone,
        )
    done = Done(
        id=message.id,
        settled=tuple(results),
        spilled=(),
        queue_ns=started_ns - grant.came_ns,
        held_up_ns=grant.held_up_ns,
        run_ns=time.monotonic_ns() - started_ns,
        states=states,
        alone=grant.alone,
    )
    return done, results


def run(held: HeldGraph, segment: Segment, message: Run, grant: Grant) -> tuple[Done, int | None]:
    """Run a graph on an arena's tensors; return the reply, and a descriptor to send and close.

    That is where outputs lie that had no room in the arena; None where all had.

    Raises:
        DeadlineExceeded, GraphFailed, OutOfMemory: as `run_graph`.
        StateLost: the states have moved on, and the outputs cannot be sent.
    """
    spill = message.spill
    if spill.offset + spill.nbytes > segment.nbytes:
        raise ProtocolError(f"{spill} does not lie in a segment of {segment.nbytes} bytes")
    inputs = {ref.name: segment.view(ref) for ref in message.inputs}
    # BYTES has no size that could be predicted, and so no place: it is spilled.
    views = {ref.name: segment.view(ref) for ref in message.outputs if ref.dtype != "BYTES"}
    done, results = run_graph(held, message, inputs, views, grant)
    try:
        strays = {n: value for n, value in results.items() if not _settle(n, value, views)}
        spilled, descriptor = _spill(strays, held.graph, segment, spill)
    except GeError as error:
        if held.states is None:
            raise
        raise StateLost.after(error) from error
    settled = tuple(name for name in results if name not in strays)
    return replace(done, settled=settled, spilled=spilled), descriptor


def measure(
    graph: Graph, costs: dict[tuple[PrepareInput, ...], Cost], message: Prepare
) -> Prepared:
    """Prepare a graph for these inputs and measure the shortest of some runs, once for all stubs.

    What is found out is put to its `costs`, which no other thread changes meanwhile.
    With no repeats it is only prepared, as after a restart, when costs are known already.
    """
    cost = costs.get(message.inputs)
    cached = cost is not None and (cost.run_ns > 0 or message.repeats == 0)
    if cost is None or not cached:
        with quiet_failures():
            cost = _measured(graph, message)
        if message.alone:
            costs[message.inputs] = cost
    return Prepared(
        id=message.id,
        cost_ns=cost.run_ns,
        workspace_bytes=cost.workspace_bytes,
        cached=cached,
        outputs=cost.outputs,
    )


def _measured(graph: Graph, message: Prepare) -> Cost:
    inputs = {given.name: _synthetic(given) for given in message.inputs}
    graph.prepare(inputs)
    # The first run allocates; it counts only where there is no time for another.
    first_ns, outputs = _timed(graph, inputs)
    times: list[int] = []
    while len(times) < message.repeats and first_ns + sum(times) < MEASURE_BUDGET_NS:
        times.append(_timed(graph, inputs)[0])
    return Cost(
        run_ns=min(times or [first_ns]) if message.repeats else 0,
        workspace_bytes=graph.workspace_bytes({name: a.shape for name, a in inputs.items()}),
        outputs=outputs,
    )


def _timed(graph: Graph, inputs: dict[str, Array]) -> tuple[int, dict[str, Shape]]:
    """Run once; return the nanoseconds it took, and the shapes of what came out."""
    started_ns = time.monotonic_ns()
    outputs = graph.run(inputs, {}, exclusive=False)
    took_ns = max(1, time.monotonic_ns() - started_ns)
    return took_ns, {name: array.shape for name, array in outputs.items()}


def _synthetic(given: PrepareInput) -> Array:
    dtype = DATA_TYPES[given.dtype]
    nbytes = math.prod(given.shape) * dtype.numpy.itemsize
    check_room(nbytes, f"input {given.name!r}, {dtype.name} {list(given.shape)},")
    if dtype.name == "BYTES":
        return np.full(given.shape, TEXT, dtype=object)
    try:
        with np.errstate(invalid="raise"):
            return np.full(given.shape, given.fill, dtype=dtype.numpy)
    except (ArithmeticError, ValueError) as error:
        raise ProtocolError(
            f"input {given.name!r} is {dtype.name} and cannot be filled with {given.fill}: {error}"
        ) from error
    except MemoryError as error:
        raise OutOfMemory(f"input {given.name!r}, {list(given.shape)}: {error}") from error


def _settle(name: str, value: Array, views: dict[str, Array]) -> bool:
    """See that a result lies in its place in the arena; False when it has none that fits."""
    view = views.get(name)
    if view is None or view.shape != value.shape or view.dtype != value.dtype:
        return False
    if value is not view:
        np.copyto(view, value)
    return True


def _spill(
    strays: dict[str, Array], graph: Graph, arena: Segment, spill: SpillRange
) -> tuple[tuple[TensorRef, ...], int | None]:
    """Copy results whose shape was not known into the room for them, or a segment of their own."""
    if not strays:
        return (), None
    dtypes = {name: _dtype_name(name, value, graph) for name, value in strays.items()}
    texts = {name: encode_bytes(strays[name]) for name, dtype in dtypes.items() if dtype == "BYTES"}
    sizes = {n: len(texts[n]) if n in texts else value.nbytes for n, value in strays.items()}
    total = sum(map(aligned, sizes.values()))
    segment, descriptor, offset = arena, None, spill.offset
    if not 0 < total <= spill.nbytes:
        (segment, descriptor), offset = Segment.create(max(1, total)), 0
    refs: list[TensorRef] = []
    for name, value in strays.items():
        shape = tuple(map(int, value.shape))
        refs.append(
            TensorRef(name=name, dtype=dtypes[name], shape=shape, offset=offset, nbytes=sizes[name])
        )
        offset += aligned(sizes[name])
    for ref in refs:
        if ref.name in texts:
            segment.write(ref, texts[ref.name])
        else:
            np.copyto(segment.view(ref), strays[ref.name])
    return tuple(refs), descriptor


def _dtype_name(name: str, value: Array, graph: Graph) -> str:
    """Return the type that the signature states, which the value must have.

    A file without a signature (TorchScript) states none: there the value's own type counts.
    """
    if name == ROW_ERRORS or not graph.signature.outputs:
        return next(t.name for t in DATA_TYPES.values() if t.numpy == value.dtype)
    spec = graph.signature.output(name)
    if spec is None or spec.dtype.numpy != value.dtype:
        stated = "no such output" if spec is None else spec.describe()
        raise GraphFailed(
            f"output {name!r} came as {value.dtype} {value.shape}; the graph's signature says "
            f"{stated}"
        )
    return spec.dtype.name
