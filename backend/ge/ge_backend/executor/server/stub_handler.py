"""One stub's connection, as the executor sees it.

A thread per connection reads messages; loading happens in it, so one stub's slow load does not
hold up another's requests. Runs go to the device's lanes, whose threads answer themselves. A run
that its stub waits for, and that need not wait for a lane, is done by the thread that has read it.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, NoReturn, Protocol, TypeVar

from ge_backend.device.failures import without_folders
from ge_backend.device.resident.state_layout import StateLayout
from ge_backend.device.resident.states import open_states
from ge_backend.errors import (
    Cancelled,
    ExecutorLost,
    GeError,
    OutOfMemory,
    ProtocolError,
)
from ge_backend.executor.protocol import messages, wire
from ge_backend.executor.protocol.arena import Segment
from ge_backend.executor.protocol.descriptors import close_all, duplicate
from ge_backend.executor.protocol.peer import peer_pid
from ge_backend.executor.protocol.ranges import check_slots
from ge_backend.executor.server.device_tensors import BoundGraphs, DeviceTensorStores
from ge_backend.executor.server.graph_cache import CachedGraph
from ge_backend.executor.server.lanes import result_or_error
from ge_backend.executor.server.outgoing import Outgoing
from ge_backend.executor.server.queue import Grant, Job
from ge_backend.executor.server.runs import HeldGraph, measure, run, run_graph
from ge_backend.executor.server.services import Client, ServiceContext, Services
from ge_backend.executor.server.timeline import RunLabel
from ge_backend.tensors import Array

__all__ = ["ConnectionContext", "StubHandler"]

log = logging.getLogger(__name__)

# An engine's message may hold a whole model's listing; what is sent has to fit into one record.
MAX_ERROR_CHARACTERS = 8192

# A message, and a descriptor that goes with it and is then closed.
Reply = tuple[messages.Message, int | None]
_Outcome = TypeVar("_Outcome")


class ConnectionContext(ServiceContext, Protocol):
    """What all connections of an executor share."""

    tensor_stores: DeviceTensorStores
    services: Services

    def report(self, request_id: int) -> messages.Report:
        """Return what the executor holds."""

    def forget(self, handler: StubHandler) -> None:
        """Know that a stub has left."""


class StubHandler:
    """One stub, a process `pid`: the graphs it holds and the arenas it has shown us."""

    def __init__(self, sock: socket.socket, context: ConnectionContext) -> None:
        self.pid = peer_pid(sock)
        self._inbox = wire.Inbox(sock)
        self._outgoing = Outgoing(sock, self.pid)
        self._context = context
        self._graphs: dict[int, HeldGraph] = {}
        self._arenas: dict[int, Segment] = {}
        self._bound_graphs = BoundGraphs(context.tensor_stores)
        self._clients: dict[int, Client] = {}

    def serve(self) -> None:
        """Answer messages until the stub leaves."""
        while self.serve_one():
            pass

    def serve_one(self) -> bool:
        """Answer the next message; when the stub has left, give back what it held; return False."""
        left = True
        try:
            message, descriptors = self._inbox.receive()
            try:
                self._answer(message, descriptors)
            finally:
                if descriptors:
                    close_all(descriptors)
            left = False
        except ExecutorLost:
            pass  # the stub is gone: the normal end of a connection
        except ProtocolError as error:
            log.error("a connection is dropped: %s", error)
            self._outgoing.send(_failed(0, error), wait=True)
        finally:
            if left:
                try:
                    self._close()
                finally:
                    self._context.forget(self)
        return not left

    def _close(self) -> None:
        self._outgoing.close()
        self._context.lanes.cancel(self)
        for client in self._clients.values():
            self._context.services.leave(client)
        self._clients.clear()
        for held in self._graphs.values():
            if held.states is not None:
                held.states.close()
        self._bound_graphs.close()
        for held in self._graphs.values():
            self._context.graph_cache.release(held.entry)
        # Now, and not when circles are collected: each arena has a descriptor, the inbox memory.
        self._arenas.clear()
        del self._inbox

    def _answer(self, message: messages.Message, descriptors: tuple[int, ...]) -> None:
        """Answer at once, or leave it to a lane."""
        if isinstance(message, messages.Run | messages.Prepare):
            held = self._graphs.get(message.graph)
            if held is None:
                self._outgoing.send(_failed(message.id, _not_held(message.graph)))
            elif isinstance(message, messages.Run):
                self._queue_run(held, message)
            else:
                self._queue_prepare(held, message)
        elif isinstance(message, messages.Post):
            self._post(message)
        elif isinstance(message, messages.Cancel):
            self._context.lanes.cancel(self, message.run)
        elif isinstance(message, messages.FreeTensors):
            self._bound_graphs.free(message)
        elif isinstance(message, messages.Hello):
            self._reply(message.id, lambda: self._welcome(message))
        else:
            self._reply(message.id, lambda: (self._control(message, descriptors), None))

    def _post(self, message: messages.Post) -> None:
        failure: GeError | None
        client = self._clients.get(message.id)
        if client is None:
            failure = ProtocolError(f"service {message.id} was not opened by this connection")
        else:
            receive = client.service.receive
            failure = result_or_error(receive, self._context.on_fault, client, message.body)
        if failure is not None:
            self._outgoing.send(_failed(message.id, failure), wait=True)

    def run_here(
        self, message: messages.Run, inputs: Mapping[str, Array]
    ) -> tuple[messages.Done, dict[str, Array]] | GeError:
        """Run a graph on the arrays of a stub in this process; return what comes out, or the error.

        The calling thread does it where a lane is free. Nothing goes through an arena: outputs are
        arrays that the caller owns.
        """
        held = self._graphs.get(message.graph)
        if held is None:
            return _not_held(message.graph)
        action = partial(run_graph, held, message, inputs, {})
        if (grant := self._begin_alone(message)) is not None:
            return self._run_alone(held, message, action, grant)
        results: SimpleQueue[tuple[messages.Done, dict[str, Array]] | GeError] = SimpleQueue()
        job = self._run_job(held, message, action, inputs, results.put)
        self._context.lanes.submit(job, here=True)
        return results.get()

    def run_side_by_side(
        self, given: Sequence[tuple[messages.Run, Mapping[str, Array]]]
    ) -> Iterator[tuple[int, tuple[messages.Done, dict[str, Array]] | GeError]]:
        """Run a graph several times at once, in the lanes; yield which one has ended, and how.

        As `run_here` else. All are submitted before the first is yielded.
        """
        results: SimpleQueue[tuple[int, tuple[messages.Done, dict[str, Array]] | GeError]]
        results = SimpleQueue()
        jobs: list[Job] = []
        for index, (message, inputs) in enumerate(given):
            held = self._graphs.get(message.graph)
            if held is None:
                results.put((index, _not_held(message.graph)))
                continue
            action = partial(run_graph, held, message, inputs, {})
            post = partial(_put_as, results, index)
            jobs.append(self._run_job(held, message, action, inputs, post))
        self._context.lanes.submit(*jobs)
        return (results.get() for _ in given)

    def _queue_run(self, held: HeldGraph, message: messages.Run) -> None:
        segment = self._arenas.get(message.arena)

        def action(grant: Grant) -> Reply:
            if segment is None:
                raise ProtocolError(f"arena {message.arena} was never attached")
            if held.states is not None:
                check_slots(message, held.count)
            if message.solo:
                self._outgoing.send(messages.Started(id=message.id))
            return run(held, segment, message, grant)

        post = self._answer_to(message.id)
        if message.awaited and (grant := self._begin_alone(message)) is not None:
            post(self._run_alone(held, message, action, grant))
        else:
            given = {ref.name: ref for ref in message.inputs}
            job = self._run_job(held, message, action, given, post)
            self._context.lanes.submit(job, here=message.awaited)

    def _run_job(
        self,
        held: HeldGraph,
        message: messages.Run,
        action: Callable[[Grant], _Outcome],
        given: Mapping[str, Array | messages.TensorRef],
        post: Callable[[_Outcome | GeError], None],
    ) -> Job:
        """Return a job that runs a graph; see `_job`."""
        context, entry = self._context, held.entry

        def nbytes(entry: CachedGraph) -> int:
            shapes = {name: one.shape for name, one in given.items()}
            shapes |= {ref.name: ref.shape for ref in message.gathered}
            return context.graph_cache.run_bytes(entry, shapes)

        label = RunLabel(held.name, message.bucket, message.real_rows)
        context.outstanding.change(message.cost_ns)
        end = partial(context.outstanding.change, -message.cost_ns)
        job = self._job(message, entry, action, bytes_of=nbytes, then=end, label=label, post=post)
        job.priority, job.deadline_ns = message.priority, message.deadline_ns
        job.solo, job.model, job.cost_ns = message.solo, held.name, message.cost_ns
        return job

    def _begin_alone(self, message: messages.Run) -> Grant | None:
        """Take a lane for this thread to make a run in; None where the run is to be a job."""
        context = self._context
        as_job = message.solo or context.pool.size_bytes
        return None if as_job else context.lanes.begin_alone()

    def _run_alone(
        self,
        held: HeldGraph,
        message: messages.Run,
        action: Callable[[Grant], _Outcome],
        grant: Grant,
    ) -> _Outcome | GeError:
        """Return the outcome of a run that this thread makes by itself, or its error.

        The graph is held: its connection closes in this thread.
        """
        context = self._context
        context.outstanding.change(message.cost_ns)
        try:
            outcome = result_or_error(action, context.on_fault, grant)
        finally:
            context.outstanding.change(-message.cost_ns)
            context.lanes.end_alone(grant)
        label = RunLabel(held.name, message.bucket, message.real_rows)
        return self._noted(outcome, message, held.entry, label, grant, grant.came_ns)

    def _queue_prepare(self, held: HeldGraph, message: messages.Prepare) -> None:
        """Prepare in a lane; what is measured, one at a time for all connections.

        Models that warm up side by side would else measure each other. What is only prepared, or
        need not be measured alone, takes no turn among them. This thread may wait for the graph, or
        for another that prepares it, since its stub does nothing else meanwhile.
        """
        entry, graph_cache = held.entry, self._context.graph_cache
        measures = message.alone and message.repeats > 0
        if measures:
            held.entry.graph.settle()

        def action(grant: Grant) -> Reply:
            del grant  # measured as it will run under load
            prepared = measure(held, message)
            graph_cache.place(entry, prepared.workspace_bytes)
            return prepared, None

        # Taken here and not in the lane, which has a lease of the workspace and so must not wait.
        entry.lock.acquire()
        label, post = RunLabel(held.name), self._answer_to(message.id)
        job = self._job(
            message,
            entry,
            action,
            bytes_of=graph_cache.measuring_bytes,
            then=entry.lock.release,
            label=label,
            post=post,
        )
        job.bounded, job.measures = False, measures
        self._context.lanes.submit(job)

    def _job(  # noqa: PLR0913 - all that a job needs
        self,
        message: messages.Run | messages.Prepare,
        entry: CachedGraph,
        action: Callable[[Grant], _Outcome],
        *,
        bytes_of: Callable[[CachedGraph], int],
        then: Callable[[], None],
        label: RunLabel,
        post: Callable[[_Outcome | GeError], None],
    ) -> Job:
        """Return a job that answers a message; the graph is held until it has ended or is dropped.

        Args:
            message: what is answered.
            entry: the graph.
            action: returns the outcome.
            bytes_of: returns what it takes of the workspace pool; 0: the graph's place there.
            then: called once, whatever happens, before the stub is told.
            label: what it is called in the timeline.
            post: takes the outcome or the error, without waiting, in whichever thread.
        """
        context = self._context
        context.graph_cache.hold(entry)
        holder, nbytes = "", 0
        if context.pool.size_bytes:
            try:
                holder, nbytes = entry.holder, bytes_of(entry)
            except Exception as error:  # noqa: BLE001 - the lane raises it
                holder, action = "", partial(_refuse, error)

        def end() -> None:
            then()
            context.graph_cache.release(entry)

        def work(grant: Grant) -> Callable[[], None]:
            started_ns = time.monotonic_ns()
            outcome: _Outcome | GeError
            try:
                if self._outgoing.open:
                    outcome = result_or_error(action, context.on_fault, grant)
                else:
                    outcome = Cancelled("the stub has left")
            finally:
                end()
            return partial(post, self._noted(outcome, message, entry, label, grant, started_ns))

        def drop(error: GeError) -> None:
            end()
            post(error)

        return Job(
            work=work,
            drop=drop,
            holder=holder,
            nbytes=nbytes,
            owner=self,
            number=message.id,
        )

    def _noted(
        self,
        outcome: _Outcome | GeError,
        message: messages.Run | messages.Prepare,
        entry: CachedGraph,
        label: RunLabel,
        grant: Grant,
        started_ns: int,
    ) -> _Outcome | GeError:
        """Note in the timeline what has just ended; return it, a run's error as clients get it."""
        error = ""
        if isinstance(outcome, GeError):
            error = type(outcome).__name__
            if isinstance(message, messages.Run):
                outcome = self._explained(outcome, entry)
        self._context.timeline.add(label, grant, started_ns, error)
        return outcome

    def _explained(self, error: GeError, entry: CachedGraph) -> GeError:
        """Return a run's error as clients get it: with what has the memory, and without folders."""
        if isinstance(error, OutOfMemory):
            error = self._context.graph_cache.explained(error)
        return type(error)(without_folders(str(error), entry.source.path))

    def _reply(self, request_id: int, action: Callable[[], Reply]) -> None:
        """Send what the action returns, or its error; a stub that does not read is not read."""
        outcome = result_or_error(action, self._context.on_fault)
        self._answer_to(request_id, wait=True)(outcome)

    def _answer_to(
        self, request_id: int, *, wait: bool = False
    ) -> Callable[[Reply | GeError], None]:
        """Return what sends an answer or an error.

        Unless `wait` is set it does not wait for room: the stub may itself be waiting to send to
        us, and what it has not read is no other stub's affair.
        """

        def answer(outcome: Reply | GeError) -> None:
            if isinstance(outcome, GeError):
                outcome = _failed(request_id, outcome), None
            self._send(outcome, wait=wait)

        return answer

    def _send(self, reply: Reply, *, wait: bool = False) -> None:
        answer, spill = reply
        try:
            self._outgoing.send(answer, () if spill is None else (spill,), wait=wait)
        except GeError as error:  # it does not fit into a message
            self._outgoing.send(_failed(answer.id, error), wait=wait)

    def _control(self, message: messages.Message, descriptors: tuple[int, ...]) -> messages.Message:
        if isinstance(message, messages.Attach):
            return self._attach(message, descriptors)
        answers: dict[type, Callable[[Any], messages.Message]] = {
            messages.Detach: self._detach,
            messages.Load: self._load,
            messages.Compile: self._compile,
            messages.KeepStates: self._keep_states,
            messages.RetainTensors: self._retain_tensors,
            messages.OpenService: self._open_service,
            messages.Inspect: lambda asked: self._context.report(asked.id),
            messages.HistoryRequest: lambda asked: self._context.timeline.history(
                asked.id, asked.after
            ),
        }
        answer = answers.get(type(message))
        if answer is None:
            raise ProtocolError(f"{type(message).__name__} is not a message for an executor")
        return answer(message)

    def _attach(self, message: messages.Attach, descriptors: tuple[int, ...]) -> messages.Message:
        if self._inbox.dropped:
            raise OutOfMemory("no descriptor is left for an arena; raise RLIMIT_NOFILE")
        if len(descriptors) != 1:
            raise ProtocolError(f"Attach came with {len(descriptors)} descriptors, not 1")
        self._arenas[message.arena] = Segment.map(descriptors[0], message.nbytes)
        return messages.Ok(id=message.id)

    def _detach(self, message: messages.Detach) -> messages.Message:
        self._arenas.pop(message.arena, None)
        return messages.Ok(id=message.id)

    def _welcome(self, message: messages.Hello) -> Reply:
        if message.version != messages.VERSION:
            raise ProtocolError(
                f"the stub speaks protocol {message.version}, the executor {messages.VERSION}; "
                "restart the server after an update of the backend"
            )
        device = self._context.device
        welcome = messages.Welcome(
            id=message.id,
            version=messages.VERSION,
            device=device.name,
            lanes=device.lanes,
            pid=os.getpid(),
        )
        return welcome, duplicate(self._context.outstanding.descriptor)

    def _load(self, message: messages.Load) -> messages.Message:
        entry = self._context.graph_cache.acquire(message.source)
        if entry.id in self._graphs:
            self._context.graph_cache.release(entry)
        held = self._graphs.setdefault(entry.id, HeldGraph(entry=entry))
        held.name = message.served_as or entry.holder
        graph = entry.graph
        return messages.Loaded(
            id=message.id,
            graph=entry.id,
            signature=graph.signature,
            shape_policy=graph.shape_policy,
            engine=graph.engine,
            precision=graph.precision,
        )

    def _compile(self, message: messages.Compile) -> messages.Message:
        self._context.graph_cache.compile(self._held(message.graph).entry, message.shapes)
        return messages.Ok(id=message.id)

    def _keep_states(self, message: messages.KeepStates) -> messages.Message:
        held = self._held(message.graph)
        layout = StateLayout(
            states=message.states,
            count=message.count,
            batched=message.batched,
            hidden=frozenset(message.hidden),
        )
        former, held.states = held.states, None
        if former is not None:
            former.close()
        held.states, held.count = open_states(held.entry.graph, layout), layout.count
        return messages.Ok(id=message.id)

    def _retain_tensors(self, message: messages.RetainTensors) -> messages.Message:
        held = self._held(message.graph)
        memory = self._bound_graphs.open(message, held.entry.graph)
        held.bound = self._bound_graphs.run_of(message.graph)
        return memory

    def _open_service(self, message: messages.OpenService) -> messages.Message:
        client, spec = self._context.services.join(message, self._outgoing)
        self._clients[message.id] = client
        return messages.ServiceOpened(id=message.id, spec=spec)

    def _held(self, graph: int) -> HeldGraph:
        held = self._graphs.get(graph)
        if held is None:
            raise _not_held(graph)
        return held


def _not_held(graph: int) -> ProtocolError:
    return ProtocolError(f"graph {graph} is not held by this connection")


def _refuse(error: Exception, grant: Grant) -> NoReturn:
    del grant
    raise error


def _failed(request_id: int, error: GeError) -> messages.Failed:
    text = str(error)[:MAX_ERROR_CHARACTERS]
    return messages.Failed(id=request_id, error=type(error).__name__, message=text)


def _put_as(
    results: SimpleQueue[tuple[int, _Outcome | GeError]], index: int, outcome: _Outcome | GeError
) -> None:
    results.put((index, outcome))
