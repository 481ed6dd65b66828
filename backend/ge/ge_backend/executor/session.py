"""What a stub holds of an executor: one loaded graph, an arena, and the way back after a crash."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from ge_backend.device.base import GraphSource
from ge_backend.errors import ExecutorLost, GeError, ModelError
from ge_backend.executor import messages
from ge_backend.executor.arena import Arena
from ge_backend.executor.flight import Flight, Outcome, RunOrder
from ge_backend.executor.link import Link
from ge_backend.sequence_batching import State
from ge_backend.tensors import Shape, Signature

__all__ = ["Outcome", "RunOrder", "Session"]

log = logging.getLogger(__name__)

# What is asked of an executor that dies over it is asked once more: one death may be a neighbour's
# doing, a second one probably is its own.
ATTEMPTS = 2
# How many executors may die before a repeated run has begun; it is not to blame for those.
PATIENCE = 20

_Result = TypeVar("_Result")


class Session:
    """A graph in an executor, used by one thread.

    When the executor dies, the session connects again (which starts a new one), attaches its arena
    (the staged data is still there), loads the graph and repeats what had not been answered: one
    run at a time, each alone on the device. So a run that kills executors is found out and fails,
    and its neighbours, in this session and in others, do not.

    Args:
        connect: returns a fresh connection; called again after each loss.
        source: the graph to load.
        arena_bytes: the arena's first size.
        on_restart: called once per executor that was found dead.

    Raises:
        ModelError, DeviceUnavailable, OutOfMemory: the graph cannot be loaded.
        ExecutorLost: the executor died twice over loading it.
    """

    def __init__(
        self,
        connect: Callable[[], Link],
        source: GraphSource,
        *,
        arena_bytes: int,
        on_restart: Callable[[], None],
    ) -> None:
        self.source = source
        self.arena = Arena(arena_bytes)
        self._connect = connect
        self._on_restart = on_restart
        self._states: messages.KeepStates | None = None
        self._compiled: tuple[dict[str, Shape], ...] = ()
        self._prepared: list[tuple[messages.PrepareInput, ...]] = []
        self._link: Link | None = None
        self._loaded: messages.Loaded | None = None
        try:
            self._retried(f"loading {source.path}", self._live)
        except BaseException:
            self.arena.close()
            raise

    @property
    def signature(self) -> Signature:
        """The graph's inputs and outputs."""
        return self._graph().signature.signature()

    @property
    def static_shapes(self) -> bool:
        """Whether the graph runs only in prepared shapes."""
        return self._graph().static_shapes

    @property
    def fixed_shapes(self) -> tuple[Mapping[str, Shape], ...]:
        """The only sets of input shapes that run; empty where the file leaves them open."""
        return self._graph().fixed_shapes

    def keep_states(
        self, states: Sequence[State], count: int, *, batched: bool, hidden: Sequence[str]
    ) -> None:
        """Have the executor keep the states of up to `count` sequences of this session.

        They are lost with the executor; runs that need them fail with ExecutorLost then.

        Raises:
            ExecutorLost: the executor died twice over it.
            ModelError: an initial value cannot be used.
        """
        self._states = messages.KeepStates(
            id=0,
            graph=0,
            states=tuple(map(messages.StateMessage.of, states)),
            count=count,
            batched=batched,
            hidden=tuple(hidden),
        )
        self._retried("keeping states", lambda: self._keep_states(self._live()))

    @property
    def lanes(self) -> int:
        """How many runs the device executes at once."""
        return self._live().welcome.lanes

    @property
    def executor_pid(self) -> int:
        """The executor's process id."""
        return self._live().welcome.pid

    def reserve(self, nbytes: int, *, keep: bool = False) -> None:
        """Make room for a batch. Earlier views become invalid unless `keep` is set.

        Raises:
            OutOfMemory: there is no memory for an arena of that size.
        """
        if self.arena.reserve(nbytes, keep=keep) and self._link is not None:
            try:
                self._attach(self._link)
            except ExecutorLost as error:
                self._lose(error)
            except GeError:
                self._drop()
                raise

    def compile(self, shapes: Sequence[Mapping[str, Shape]]) -> None:
        """Make ready for these sets of input shapes; the executor does it once for all stubs.

        Raises:
            ExecutorLost: the executor died twice over it.
            ModelError, OutOfMemory: as `Graph.compile`.
        """
        compiled = tuple(map(dict, shapes))
        self._retried("compiling", lambda: self._compile(self._live(), compiled))
        self._compiled = compiled

    def prepare(self, inputs: tuple[messages.PrepareInput, ...], repeats: int) -> messages.Prepared:
        """Prepare and measure one set of input shapes; the executor does it once for all stubs.

        Raises:
            ExecutorLost: the executor died twice over it.
            GraphFailed, OutOfMemory: as `Graph.prepare` and `Graph.run`.
        """
        shapes = {given.name: given.shape for given in inputs}
        prepared = self._retried(
            f"preparing {shapes}", lambda: self._prepare(self._live(), inputs, repeats)
        )
        if self.static_shapes:
            self._prepared.append(inputs)
        return prepared

    def inspect(self) -> messages.Report:
        """Return what the executor holds."""
        return self._retried("reporting", self._inspect)

    def run(self, orders: Sequence[RunOrder]) -> Iterator[tuple[int, Outcome]]:
        """Submit all runs, in this order, and yield (index, outcome) as they end.

        Never raises for a run's own failure: it is in the outcome. A caller that stops early waits
        until the runs in flight have ended, because until then they write into the arena.
        """
        waiting = dict(enumerate(orders))
        try:
            try:
                yield from self._run_together(waiting)
            except ExecutorLost as error:
                self._lose(error)
                yield from self._run_apart(waiting)
        except GeError as error:  # it could not be started again, or is of another version
            self._drop()
            yield from [(index, Outcome(outputs={}, error=error)) for index in waiting]

    def close(self) -> None:
        """Leave the executor, which frees the graph if nobody else holds it."""
        self._drop()
        self.arena.close()

    def _run_together(self, waiting: dict[int, RunOrder]) -> Iterator[tuple[int, Outcome]]:
        """Submit what the socket takes; what has ended leaves `waiting`."""
        flight = self._flight()
        unsent = deque(waiting)
        try:
            while waiting:
                while unsent and flight.submit(unsent[0], waiting[unsent[0]]):
                    unsent.popleft()
                index, outcome = flight.next_ended()
                del waiting[index]
                yield index, outcome
        except GeneratorExit:
            self._drain(flight)
            raise

    def _drain(self, flight: Flight) -> None:
        try:
            flight.drain()
        except ExecutorLost as error:
            self._lose(error)
        except GeError:
            self._drop()

    def _run_apart(self, waiting: dict[int, RunOrder]) -> Iterator[tuple[int, Outcome]]:
        for index, order in list(waiting.items()):
            outcome = _state_lost() if order.slots else self._run_solo(order)
            del waiting[index]
            yield index, outcome

    def _run_solo(self, order: RunOrder) -> Outcome:
        """Repeat a run until it ends, or an executor dies while nothing but this run is on it."""
        deaths = "before it could be repeated"
        for _ in range(PATIENCE):
            flight: Flight | None = None
            try:
                flight = self._flight()
                flight.submit(0, order, solo=True)
                return flight.next_ended()[1]
            except ExecutorLost as error:
                self._lose(error)
                if flight is not None and flight.started:
                    deaths = "when it was repeated with nothing else running"
                    break
        text = (
            f"the executor died while it held this request, and again {deaths}; a new one is "
            "started for the next request. See the server's log for the reason"
        )
        return Outcome(outputs={}, error=ExecutorLost(text))

    def _flight(self) -> Flight:
        link = self._live()
        return Flight(link, self._graph().graph, self.arena)

    def _live(self) -> Link:
        """Return the connection, opening a new one after a loss."""
        if self._link is None:
            self._link = self._connect()
            try:
                self._open(self._link)
            except ExecutorLost as error:
                self._lose(error)
                raise
            except BaseException:
                self._drop()
                raise
        return self._link

    def _open(self, link: Link) -> None:
        self._attach(link)
        loaded = link.ask(messages.Load(id=link.next_id(), source=self.source), messages.Loaded)
        if self._loaded is not None and loaded.signature != self._loaded.signature:
            raise ModelError(
                f"{self.source.path} was replaced by a model with other inputs or outputs since "
                "it was loaded; have the server load the model again"
            )
        self._loaded = loaded
        if self._compiled:
            self._compile(link, self._compiled)
        self._keep_states(link)
        for inputs in self._prepared:
            self._prepare(link, inputs, 0)

    def _attach(self, link: Link) -> None:
        arena = self.arena
        attach = messages.Attach(id=link.next_id(), arena=arena.id, nbytes=arena.nbytes)
        link.ask(attach, messages.Ok, (arena.descriptor,))
        if arena.id:
            link.ask(messages.Detach(id=link.next_id(), arena=arena.id - 1), messages.Ok)

    def _prepare(
        self, link: Link, inputs: tuple[messages.PrepareInput, ...], repeats: int
    ) -> messages.Prepared:
        message = messages.Prepare(
            id=link.next_id(), graph=self._graph().graph, inputs=inputs, repeats=repeats
        )
        return link.ask(message, messages.Prepared)

    def _compile(self, link: Link, shapes: tuple[dict[str, Shape], ...]) -> messages.Ok:
        message = messages.Compile(id=link.next_id(), graph=self._graph().graph, shapes=shapes)
        return link.ask(message, messages.Ok)

    def _keep_states(self, link: Link) -> None:
        if self._states is not None:
            message = replace(self._states, id=link.next_id(), graph=self._graph().graph)
            link.ask(message, messages.Ok)

    def _inspect(self) -> messages.Report:
        link = self._live()
        return link.ask(messages.Inspect(id=link.next_id()), messages.Report)

    def _graph(self) -> messages.Loaded:
        if self._loaded is None:
            raise ModelError(f"{self.source.path} is not loaded")
        return self._loaded

    def _retried(self, doing: str, action: Callable[[], _Result]) -> _Result:
        for _ in range(ATTEMPTS):
            try:
                return action()
            except ExecutorLost as error:
                self._lose(error)
        raise ExecutorLost(
            f"the executor died {ATTEMPTS} times over {doing}; see the server's log for the reason"
        )

    def _lose(self, error: ExecutorLost) -> None:
        """Note that the executor was found dead; the next use starts another."""
        if self._link is not None:
            log.warning("the executor is gone (%s); another is started", error)
            self._on_restart()
            self._drop()

    def _drop(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None


def _state_lost() -> Outcome:
    text = (
        "the executor died, and with it the state of this sequence; begin the sequence again with "
        "a request that has sequence_start set. See the server's log for the reason"
    )
    return Outcome(outputs={}, error=ExecutorLost(text))
