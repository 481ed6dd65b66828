"""A graph as a service: each source is loaded once, and every connection has a part of its own.

Runs go to the device's lanes, whose threads answer themselves. A run that its stub waits for, and
that need not wait for a lane, is done by the thread that has read it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NoReturn, TypeVar

from ge_backend.device.base import CompiledAhead
from ge_backend.device.failures import without_folders
from ge_backend.device.resident.state_layout import StateLayout
from ge_backend.device.resident.states import open_states
from ge_backend.errors import Cancelled, GeError, OutOfMemory, ProtocolError
from ge_backend.executor.protocol import messages
from ge_backend.executor.protocol.ranges import check_slots
from ge_backend.executor.server.device_tensors import RetainedTensors
from ge_backend.executor.server.lanes import result_or_error
from ge_backend.executor.server.outgoing import Reply
from ge_backend.executor.server.queue import Grant, Job
from ge_backend.executor.server.runs import Cost, HeldGraph, measure, run, run_graph
from ge_backend.executor.server.services import GRAPH, Client, ServiceContext
from ge_backend.executor.server.timeline import RunLabel
from ge_backend.model.config.sizes import format_bytes
from ge_backend.tensors import Array, Shape

__all__ = ["GraphClient", "GraphService", "defects", "loaded_graphs"]

_Outcome = TypeVar("_Outcome")
_Result = TypeVar("_Result")


class GraphService:
    """One source: its graph, and what was measured for it. A `Service`.

    Args:
        context: of the executor.
        opened: names the source.

    Attributes:
        number: tells it from all that this executor has loaded.
        source: what it was loaded from.
        graph: the graph.
        holder: its name in the workspace pool: `encoder/1/model.onnx #3`.
        costs: prepared inputs -> what was found out about them.
        lock: held while the graph is compiled or prepared, so that it happens once. A thread that
            prepares holds it while it waits for bytes of the pool, so a thread with nothing to
            compile or prepare does not take it.
        hold: keeps it open for a run, whatever becomes of its connection; pair with `release`.

    Raises:
        ModelError, DeviceUnavailable, OutOfMemory: as `Device.load`; nothing is held then.
        ProtocolError: it is not opened by a `Load`.
    """

    def __init__(
        self, context: ServiceContext, opened: messages.Load | messages.OpenService
    ) -> None:
        self.context = context
        self.source = _load(opened).source
        shared, key = context.services.of(GRAPH), repr(self.source)  # which knows its hash
        self.hold, self.release = partial(shared.hold, key), partial(shared.release, key)
        self.number = next(context.services.numbers)
        self.holder = f"{'/'.join(Path(self.source.path).parts[-3:])} #{self.number}"
        self.costs: dict[tuple[messages.PrepareInput, ...], Cost] = {}
        self.lock = threading.Lock()
        self._scratch_bytes = 0  # the most that was measured for one run
        self._compiled: tuple[Mapping[str, Shape], ...] = ()  # for what sets of input shapes
        workspace = context.pool.workspace(self.holder)
        try:
            self.graph = self._with_room(lambda: context.device.load(self.source, workspace))
        except BaseException:
            context.pool.remove(self.holder)
            raise

    def join(self, client: Client) -> GraphClient:
        """Take on a client; see `Service`."""
        return GraphClient(self, client)

    def close(self) -> None:
        """Give the graph back, and its place in the pool."""
        self.graph.close()
        self.context.pool.remove(self.holder)

    def compile(self, shapes: Sequence[Mapping[str, Shape]]) -> None:
        """Compile the graph, if it is compiled ahead, for these shapes and those of before.

        Raises:
            ModelError, OutOfMemory: as `CompiledAhead.compile`.
        """
        if all(shape in self._compiled for shape in shapes):
            return
        with self.lock:
            whole = self._compiled + tuple(one for one in shapes if one not in self._compiled)
            graph = self.graph
            if len(whole) > len(self._compiled) and isinstance(graph, CompiledAhead):
                with self.context.pool.changing(self.holder):
                    self._with_room(lambda: graph.compile(whole))
                self._compiled = whole

    def run_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return the bytes of the pool that a run takes; 0: those of the graph's place.

        Raises:
            OutOfMemory: more than the pool has.
        """
        if not self.context.pool.size_bytes:
            return 0
        nbytes = self.graph.workspace_bytes(shapes)
        self.place(nbytes)
        return nbytes

    def measuring_bytes(self) -> int:
        """Return the bytes of the pool that a measurement takes: all, until something is known."""
        return 0 if self._scratch_bytes else self.context.pool.size_bytes

    def place(self, nbytes: int) -> None:
        """See that the graph's place in the pool is as large as what was measured for it.

        Raises:
            OutOfMemory: more than the pool has.
        """
        if nbytes > self._scratch_bytes:
            self.context.pool.place(self.holder, nbytes, bound=False)
            self._scratch_bytes = nbytes

    def explained(self, error: OutOfMemory) -> OutOfMemory:
        """Return the error with what the device has left, and who has the rest."""
        memory = self.context.device.memory()
        free, total = format_bytes(memory.free_bytes), format_bytes(memory.total_bytes)
        loaded = ", ".join(one.holder for one in loaded_graphs(self.context))
        return OutOfMemory(f"{error} (the device has {free} of {total} free; loaded: {loaded})")

    def _with_room(self, action: Callable[[], _Result]) -> _Result:
        try:
            return self.context.services.with_room(action)
        except OutOfMemory as error:
            raise self.explained(error) from error


class GraphClient:
    """A `Member` of a `GraphService`.

    Attributes:
        answer: what is said of the graph.
    """

    def __init__(self, service: GraphService, client: Client) -> None:
        opened, graph = _load(client.opened), service.graph
        self._service = service
        self._context = service.context
        self._connection = client.connection
        self._name = opened.served_as or service.holder  # in the timeline
        self._held = HeldGraph(graph)
        self._tensors = RetainedTensors(service.context.tensor_stores)
        self.answer = messages.Loaded(
            id=opened.id,
            graph=service.number,
            signature=graph.signature,
            shape_policy=graph.shape_policy,
            engine=graph.engine,
            precision=graph.precision,
        )

    def receive(self, message: Any) -> messages.Message | None:
        """Do what is asked of the graph; what takes a lane is answered once it has ended."""
        match message:
            case messages.Run():
                self._run(message)
            case messages.Prepare():
                self._prepare(message)
            case messages.FreeTensors():
                self._tensors.free(message.keys)
            case messages.RetainTensors():
                memory = self._tensors.open(message, self._service.graph)
                self._held.bound = self._tensors.runs
                return memory
            case messages.KeepStates():
                self._keep_states(message)
                return messages.Ok(id=message.id)
            case messages.Compile():
                self._service.compile(message.shapes)
                return messages.Ok(id=message.id)
        return None

    def leave(self) -> None:
        """Give up states and tensors; what waits was dropped, and what runs holds the graph."""
        if self._held.states is not None:
            self._held.states.close()
        self._tensors.close()

    def run_here(
        self, message: messages.Run, inputs: Mapping[str, Array]
    ) -> messages.DirectOutcome:
        """Run the graph on the arrays of a stub in this process; see `InlineGraph`."""
        results: SimpleQueue[messages.DirectOutcome] = SimpleQueue()
        action = partial(run_graph, self._held, message, inputs, {})
        self._start(message, action, inputs.items(), results.put, here=True)
        return results.get()

    def run_side_by_side(
        self, given: Sequence[tuple[messages.Run, Mapping[str, Array]]]
    ) -> Iterator[tuple[int, messages.DirectOutcome]]:
        """Run the graph several times at once, in the lanes; see `InlineGraph`.

        All are submitted before the first is yielded.
        """
        results: SimpleQueue[tuple[int, messages.DirectOutcome]] = SimpleQueue()
        jobs: list[Job] = []
        for index, (message, inputs) in enumerate(given):
            if message.graph != self.answer.graph:
                results.put((index, ProtocolError.not_held(message.graph)))
                continue
            action = partial(run_graph, self._held, message, inputs, {})
            post = partial(_put_as, results, index)
            jobs.append(self._run_job(message, action, inputs.items(), post))
        self._context.lanes.submit(*jobs)
        return (results.get() for _ in given)

    def _run(self, message: messages.Run) -> None:
        held, outgoing = self._held, self._connection.outgoing
        segment = self._connection.arenas.get(message.arena)

        def action(grant: Grant) -> Reply:
            if segment is None:
                raise ProtocolError(f"arena {message.arena} was never attached")
            if held.states is not None:
                check_slots(message, held.count)
            if message.solo:
                outgoing.send(messages.Started(id=message.id))
            return run(held, segment, message, grant)

        given = ((ref.name, ref) for ref in message.inputs)
        post = partial(outgoing.answer, message.id)
        self._start(message, action, given, post, here=message.awaited)

    def _start(
        self,
        message: messages.Run,
        action: Callable[[Grant], _Outcome],
        given: Iterable[tuple[str, Array | messages.TensorRef]],
        post: Callable[[_Outcome | GeError], None],
        *,
        here: bool,
    ) -> None:
        """Have a run made, by this thread if it may be made `here` and a lane is free.

        The others as in `_job`; this thread need not hold the graph: its connection closes in it.
        """
        context = self._context
        as_job = not here or message.solo or context.pool.size_bytes
        grant = None if as_job else context.lanes.begin_alone()
        if grant is None:
            context.lanes.submit(self._run_job(message, action, given, post), here=here)
            return
        context.outstanding.change(message.cost_ns)
        try:
            outcome = result_or_error(action, context.on_fault, grant)
        finally:
            context.outstanding.change(-message.cost_ns)
            context.lanes.end_alone(grant)
        post(self._noted(outcome, message, grant, grant.came_ns))

    def _run_job(
        self,
        message: messages.Run,
        action: Callable[[Grant], _Outcome],
        given: Iterable[tuple[str, Array | messages.TensorRef]],
        post: Callable[[_Outcome | GeError], None],
    ) -> Job:
        """Return a job that runs the graph; see `_job`."""
        outstanding = self._context.outstanding

        def nbytes() -> int:
            shapes: dict[str, Shape] = {name: one.shape for name, one in given}
            shapes |= {ref.name: ref.shape for ref in message.gathered}
            return self._service.run_bytes(shapes)

        outstanding.change(message.cost_ns)
        end = partial(outstanding.change, -message.cost_ns)
        job = self._job(message, action, bytes_of=nbytes, then=end, post=post)
        job.priority, job.deadline_ns = message.priority, message.deadline_ns
        job.solo, job.model, job.cost_ns = message.solo, self._name, message.cost_ns
        return job

    def _prepare(self, message: messages.Prepare) -> None:
        """Prepare in a lane or beside it; what is measured, one at a time for all connections.

        Models that warm up side by side would else measure each other. What is only prepared, or
        need not be measured alone, takes no turn among them. This thread may wait for the graph, or
        for another that prepares it, since its stub does nothing else meanwhile.
        """
        service = self._service
        measures = message.alone and message.repeats > 0
        if measures:
            service.graph.settle()

        def action(grant: Grant) -> messages.Message:
            del grant  # measured as it will run under load
            prepared = measure(service.graph, service.costs, message)
            service.place(prepared.workspace_bytes)
            return prepared

        # Taken here and not in the lane, which has a lease of the workspace and so must not wait.
        service.lock.acquire()
        job = self._job(
            message,
            action,
            bytes_of=service.measuring_bytes,
            then=service.lock.release,
            post=partial(self._connection.outgoing.answer, message.id),
        )
        job.bounded, job.measures = False, measures
        if measures:
            self._context.lanes.measure(job)
        else:
            self._context.lanes.submit(job)

    def _job(
        self,
        message: messages.Run | messages.Prepare,
        action: Callable[[Grant], _Outcome],
        *,
        bytes_of: Callable[[], int],
        then: Callable[[], None],
        post: Callable[[_Outcome | GeError], None],
    ) -> Job:
        """Return a job that answers a message; the graph is held until it has ended or is dropped.

        Args:
            message: what is answered.
            action: returns the outcome.
            bytes_of: returns what it takes of the workspace pool; 0: the graph's place there.
            then: called once, whatever happens, before the stub is told.
            post: takes the outcome or the error, without waiting, in whichever thread.
        """
        context, service, outgoing = self._context, self._service, self._connection.outgoing
        service.hold()
        holder, nbytes = "", 0
        if context.pool.size_bytes:
            try:
                holder, nbytes = service.holder, bytes_of()
            except Exception as error:  # noqa: BLE001 - the lane raises it
                holder, action = "", partial(_refuse, error)

        def end() -> None:
            then()
            service.release()

        def work(grant: Grant) -> Callable[[], None]:
            started_ns = time.monotonic_ns()
            outcome: _Outcome | GeError
            try:
                if outgoing.open:
                    outcome = result_or_error(action, context.on_fault, grant)
                else:
                    outcome = Cancelled("the stub has left")
            finally:
                end()
            return partial(post, self._noted(outcome, message, grant, started_ns))

        def drop(error: GeError) -> None:
            end()
            post(error)

        return Job(
            work=work,
            drop=drop,
            holder=holder,
            nbytes=nbytes,
            owner=self._connection,
            number=message.id,
        )

    def _noted(
        self,
        outcome: _Outcome | GeError,
        message: messages.Run | messages.Prepare,
        grant: Grant,
        started_ns: int,
    ) -> _Outcome | GeError:
        """Note in the timeline what has just ended; return it, a run's error as clients get it.

        That is with what has the memory, and without folders.
        """
        label = RunLabel(self._name)
        if is_run := isinstance(message, messages.Run):
            label = RunLabel(self._name, message.bucket, message.real_rows)
        error = type(outcome).__name__ if isinstance(outcome, GeError) else ""
        self._context.timeline.add(label, grant, started_ns, error)
        if not (is_run and isinstance(outcome, GeError)):
            return outcome
        if isinstance(outcome, OutOfMemory):
            outcome = self._service.explained(outcome)
        return type(outcome)(without_folders(str(outcome), self._service.source.path))

    def _keep_states(self, message: messages.KeepStates) -> None:
        layout = StateLayout(
            states=message.states,
            count=message.count,
            batched=message.batched,
            hidden=frozenset(message.hidden),
        )
        held = self._held
        former, held.states = held.states, None
        if former is not None:
            former.close()
        held.states, held.count = open_states(held.graph, layout), layout.count


def loaded_graphs(context: ServiceContext) -> list[GraphService]:
    """Return what is loaded."""
    return [one for one in context.services.of(GRAPH).values() if isinstance(one, GraphService)]


def defects(context: ServiceContext) -> list[str]:
    """Return the graphs that are loaded and are not in the pool; there should be none."""
    loaded = {graph.holder for graph in loaded_graphs(context)}
    placed = context.pool.figures().holders.keys()
    loaded &= {graph.holder for graph in loaded_graphs(context)}  # and not closed meanwhile
    strays = loaded - placed
    return [f"{len(strays)} of {len(loaded)} graphs are not in the pool"] if strays else []


def _load(opened: messages.Load | messages.OpenService) -> messages.Load:
    if not isinstance(opened, messages.Load):
        raise ProtocolError("a graph is opened by Load")
    return opened


def _refuse(error: Exception, grant: Grant) -> NoReturn:
    del grant
    raise error


def _put_as(
    results: SimpleQueue[tuple[int, _Outcome | GeError]], index: int, outcome: _Outcome | GeError
) -> None:
    results.put((index, outcome))
