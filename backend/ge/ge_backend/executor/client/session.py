"""What a stub holds of an executor: one loaded graph, an arena, and the way back after a crash."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ge_backend.device.base import GraphSource
from ge_backend.errors import ExecutorLost, GeError, ModelError, OutOfMemory, ProtocolError
from ge_backend.executor.client.executor_connection import ExecutorConnection
from ge_backend.executor.client.in_flight import InFlight, RunResult
from ge_backend.executor.client.reopening import QUESTIONS
from ge_backend.executor.client.served_files import ServedFiles
from ge_backend.executor.client.watch import still_runs
from ge_backend.executor.protocol import messages
from ge_backend.executor.protocol.arena import Arena
from ge_backend.executor.protocol.messages import NORMAL
from ge_backend.executor.protocol.outstanding import OutstandingView
from ge_backend.model.config.sequence_batching import State
from ge_backend.tensors import Array, Shape, ShapePolicy, Signature

__all__ = ["Session"]

log = logging.getLogger(__name__)

NOT_HERE = "there is no executor in this process"

_Result = TypeVar("_Result")
_Answer = TypeVar("_Answer", bound=messages.Message)
_Asked = messages.Compile | messages.KeepStates | messages.RetainTensors | messages.Prepare


class Session:
    """A graph in an executor, used by one thread at a time.

    When the executor dies, the next use connects again, which starts a new one: it attaches the
    arena (staged data is still there), loads the graph and prepares what was prepared. Only runs do
    not wait for that: `InFlight` says that the executor is gone, and its owner decides.

    Args:
        connect: returns a fresh connection; called again after each loss.
        source: the graph to load.
        arena_bytes: the arena's first size.
        on_restart: called once per executor that was found dead.
        priority: of its runs among those of all sessions; 1 is the highest.
        served_as: the model's name in the executor's timeline.

    Attributes:
        served: the graph's files.
        initial: those of the initial values of states; None where there are none.
        most_rows: the most that a run of warm-up has had; 0 while none has ended well.
        refused: the buckets that warm-up has failed on.
        failed: those of them that rows would be padded to, and need not be.
        graph: the number that the executor knows the graph by, until the connection is another one.

    Raises:
        ModelError, DeviceUnavailable, OutOfMemory: the graph cannot be loaded.
        ExecutorLost: the executor died twice over loading it.
    """

    def __init__(
        self,
        connect: Callable[[], ExecutorConnection],
        source: GraphSource,
        *,
        arena_bytes: int,
        on_restart: Callable[[], None],
        priority: int = NORMAL,
        served_as: str = "",
    ) -> None:
        self.source = source
        self.served = ServedFiles(Path(source.path).parent, source.files, source.stamp)
        self.initial: ServedFiles | None = None
        self.most_rows = 0
        self.refused: set[Shape] = set()
        self.failed: set[Shape] = set()
        self.graph = 0
        self.arena = Arena(arena_bytes)
        self._lost_pid = 0  # of an executor that was given up
        self._connect = connect
        self._on_restart = on_restart
        self.priority = priority
        self._served_as = served_as
        self._states: messages.KeepStates | None = None
        self._on_states_lost: Callable[[], None] = lambda: None
        self._tensors: messages.RetainTensors | None = None
        self._compiled: messages.Compile | None = None
        self._prepared: list[messages.Prepare] = []
        self._connection: ExecutorConnection | None = None
        self._loaded: messages.Loaded | None = None
        self._closed = False
        try:
            self._retried(f"loading {source.path}", self._live)
        except BaseException:
            self.arena.close()
            raise

    @property
    def signature(self) -> Signature:
        """The graph's inputs and outputs."""
        return self._graph().signature

    @property
    def shape_policy(self) -> ShapePolicy:
        """Which shapes the graph runs."""
        return self._graph().shape_policy

    @property
    def engine(self) -> str:
        """What runs the graph; see `Graph`."""
        return self._graph().engine

    @property
    def precision(self) -> str:
        """What the graph is computed in here, which may be another one than `source` asks for."""
        return self._graph().precision or self.source.precision

    def keep_states(
        self,
        states: Sequence[State],
        count: int,
        *,
        batched: bool,
        hidden: Sequence[str],
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """Have the executor keep the states of up to `count` sequences of this session.

        They are lost with the executor; runs that need them fail with ExecutorLost then. `on_lost`
        is called when that happens, and not for an executor that dies before it is as it was: runs
        that wait for that have no state yet that could be lost.

        Raises:
            ExecutorLost: the executor died twice over it.
            ModelError: an initial value cannot be used.
        """
        self._states = messages.KeepStates(
            id=0,
            graph=0,
            states=tuple(states),
            count=count,
            batched=batched,
            hidden=tuple(hidden),
        )
        self._on_states_lost = on_lost
        self._ask("keeping states", self._states, messages.Ok)

    def retain_tensors(self, owner: str, buffer_bytes: Sequence[int] = ()) -> messages.TensorMemory:
        """Let runs leave tensors on the device for other sessions of this owner.

        They are lost with the executor; runs that need them fail with TensorsLost then.

        Args:
            owner: tells this one from all others of the device.
            buffer_bytes: bytes of tensors to set memory aside for.

        Raises:
            ExecutorLost: the executor died twice over it.
            OutOfMemory: the device has not that much left.
        """
        asked = messages.RetainTensors(id=0, graph=0, owner=owner, buffer_bytes=tuple(buffer_bytes))
        memory = self._ask("keeping tensors", asked, messages.TensorMemory)
        self._tensors = asked
        return memory

    def free_tensors(self, keys: Sequence[int]) -> None:
        """Forget tensors on the device that no run in flight takes; those that are gone, too."""
        connection = self._connection
        if connection is not None and keys:
            free = messages.FreeTensors(id=connection.next_id(), graph=self.graph, keys=tuple(keys))
            with contextlib.suppress(ExecutorLost):  # they are gone then
                connection.send(free)

    @property
    def lanes(self) -> int:
        """How many runs the device executes at once."""
        return self._live().welcome.lanes

    @property
    def outstanding(self) -> OutstandingView | None:
        """What the executor shows of its work, its device and itself; None while it is lost."""
        connection = self._connection
        return None if connection is None else connection.outstanding

    @property
    def executor_pid(self) -> int:
        """The executor's process id."""
        return self._live().welcome.pid

    def reserve(self, nbytes: int, *, keep: bool = False) -> None:
        """Make room for a batch. Earlier views become invalid unless `keep` is set.

        Raises:
            OutOfMemory: there is no memory for an arena of that size, here or in the executor; it
                stays as large as it was.
        """
        former = self.arena.id
        try:
            if (
                self.arena.reserve(nbytes, keep=keep, show=self._show)
                and self._connection is not None
            ):
                detach = messages.Detach(id=self._connection.next_id(), arena=former)
                self._connection.ask(detach, messages.Ok)
        except ExecutorLost as error:
            self.lose(error)
        except OutOfMemory:
            raise
        except GeError as error:
            if self._states is None:
                self._drop()
            else:  # they go with the connection
                self.lose(error)
            raise

    def compile(self, shapes: Sequence[Mapping[str, Shape]]) -> None:
        """Make ready for these sets of input shapes; the executor does it once for all stubs.

        Raises:
            ExecutorLost: the executor died twice over it.
            ModelError, OutOfMemory: as `Graph.compile`.
        """
        compiled = messages.Compile(id=0, graph=0, shapes=tuple(map(dict, shapes)))
        self._ask("compiling", compiled, messages.Ok)
        self._compiled = compiled

    def prepare(
        self, inputs: tuple[messages.PrepareInput, ...], repeats: int, *, alone: bool = True
    ) -> messages.Prepared:
        """Prepare and measure one set of input shapes; the executor does it once for all stubs.

        Args:
            inputs: the shapes.
            repeats: how many runs are timed.
            alone: nothing else is measured meanwhile; without that it is a rough figure, and the
                executor does not remember it.

        Raises:
            ExecutorLost: the executor died twice over it.
            GraphFailed, OutOfMemory: as `Graph.prepare` and `Graph.run`.
        """
        shapes = {given.name: given.shape for given in inputs}
        asked = messages.Prepare(id=0, graph=0, inputs=inputs, repeats=repeats, alone=alone)
        prepared = self._ask(f"preparing {shapes}", asked, messages.Prepared)
        if self.shape_policy.padded:
            self._prepared.append(replace(asked, repeats=0, alone=True))
        return prepared

    def inspect(self) -> messages.Report:
        """Return what the executor holds."""
        return self._retried("reporting", self._inspect)

    def in_flight(self) -> InFlight:
        """Return what runs are submitted through.

        Raises:
            ExecutorLost: it was found dead; `reopen` starts another.
        """
        if self._connection is None:
            raise ExecutorLost("the executor was found dead before")
        return InFlight(self._connection, self.graph, self.arena, priority=self.priority)

    @property
    def runs_here(self) -> bool:
        """Whether the executor is in this process, and takes arrays as they are."""
        return self._connection is not None and self._connection.here is not None

    def run_here(self, run: messages.Run, inputs: Mapping[str, Array]) -> RunResult:
        """Run the graph on these arrays where `runs_here` says so; nothing goes by the arena.

        Args:
            run: of this `graph` and `priority`, without places for tensors.
            inputs: as `Graph.run` takes them.

        Returns:
            The outcome; its outputs are the caller's.
        """
        connection = self._connection
        if connection is None or connection.here is None:
            raise ExecutorLost(NOT_HERE)
        if (graph := connection.here.get(run.graph)) is None:
            return _result(run, ProtocolError.not_held(run.graph))
        return _result(run, graph.run_here(run, inputs))

    def run_side_by_side(
        self, runs: Sequence[tuple[messages.Run, Mapping[str, Array]]]
    ) -> Iterator[tuple[int, RunResult]]:
        """Have other threads run the graph several times at once, as `run_here` else.

        Yields:
            Which one has ended, and its outcome.
        """
        connection = self._connection
        if connection is None or connection.here is None:
            raise ExecutorLost(NOT_HERE)
        if (graph := connection.here.get(self.graph)) is None:
            for index, (run, _) in enumerate(runs):
                yield index, _result(run, ProtocolError.not_held(run.graph))
            return
        for index, outcome in graph.run_side_by_side(runs):
            yield index, _result(runs[index][0], outcome)

    def reopen(self) -> None:
        """Connect again and make everything as it was; nothing to do while the connection stands.

        Raises:
            ExecutorLost: the executor died over it; another attempt may go better.
            DeviceUnavailable, ModelError, OutOfMemory: the device cannot be had any more.
        """
        self._live()

    @property
    def broken(self) -> bool:
        """Whether the executor has left since it answered last; nothing is waited for.

        One in this process cannot leave it.
        """
        connection = self._connection
        return connection is not None and connection.here is None and connection.broken()

    def lose(self, error: GeError) -> None:
        """Note that the executor is gone, or of no use to us; the next use starts another.

        It may live on, with runs that it had begun and that still write to the arena: then the next
        one gets another.
        """
        if self._connection is not None:
            self._give_up(self._connection, error)
            self._on_states_lost()

    def close(self) -> None:
        """Leave the executor, which frees the graph unless another stub holds it.

        A second call does nothing. A thread that waits for an answer meanwhile gets an error.
        """
        self._closed = True
        self._drop()
        self.arena.close()
        self.served.close()
        if self.initial is not None:
            self.initial.close()

    def _live(self) -> ExecutorConnection:
        """Return the connection, opening a new one after a loss."""
        if self._closed:
            raise GeError(f"{self.source.path} is unloaded")
        if self._connection is None:
            self._connection = self._connect()
            try:
                self._open(self._connection)
            except ExecutorLost as error:
                self._give_up(self._connection, error)
                raise
            except BaseException:
                self._drop()
                raise
        return self._connection

    def _open(self, connection: ExecutorConnection) -> None:
        self._attach(connection)
        path = self.served.folder() / Path(self.source.path).name
        source = replace(self.source, path=str(path))
        load = messages.Load(id=connection.next_id(), source=source, served_as=self._served_as)
        loaded = connection.ask(load, messages.Loaded)
        if self._loaded is not None and loaded.signature != self._loaded.signature:
            raise ModelError(
                f"{self.source.path} was replaced by a model with other inputs or outputs since "
                "it was loaded; have the server load the model again"
            )
        self._loaded, self.graph = loaded, loaded.graph
        if self._compiled is not None:
            self._ask_once(connection, self._compiled, messages.Ok)
        if self._states is not None:
            self._ask_once(connection, self._placed(self._states), messages.Ok)
        if self._tensors is not None:
            self._ask_once(connection, self._tensors, messages.TensorMemory)
        for prepared in self._prepared:
            self._ask_once(connection, prepared, messages.Prepared)

    def _placed(self, asked: messages.KeepStates) -> messages.KeepStates:
        """Return the message with the files of initial values where these are now."""
        if self.initial is None:
            return asked
        place, folder = self.initial.place, self.initial.folder()
        states = tuple(
            replace(state, initial_file=str(folder / Path(state.initial_file).relative_to(place)))
            if state.initial_file
            else state
            for state in asked.states
        )
        return replace(asked, states=states)

    def _attach(self, connection: ExecutorConnection) -> None:
        try:
            if self._lost_pid and still_runs(self._lost_pid):
                self.arena.renew()
            self._show_to(connection, self.arena.id, self.arena.nbytes, self.arena.descriptor)
        except OutOfMemory:  # there was more when it grew; a batch that needs as much asks again
            self.arena.shrink()
            self._show_to(connection, self.arena.id, self.arena.nbytes, self.arena.descriptor)
        self._lost_pid = 0

    def _show(self, number: int, nbytes: int, descriptor: int) -> None:
        """Attach a segment; where the executor is gone, the next one is shown it when it comes."""
        if self._connection is not None:
            try:
                self._show_to(self._connection, number, nbytes, descriptor)
            except ExecutorLost as error:
                self.lose(error)

    def _show_to(
        self, connection: ExecutorConnection, number: int, nbytes: int, descriptor: int
    ) -> None:
        attach = messages.Attach(id=connection.next_id(), arena=number, nbytes=nbytes)
        connection.ask(attach, messages.Ok, (descriptor,))

    def _ask(self, doing: str, asked: _Asked, expected: type[_Answer]) -> _Answer:
        """Ask something of the graph; `asked` may name another executor's one."""
        return self._retried(doing, lambda: self._ask_once(self._live(), asked, expected))

    def _ask_once(
        self, connection: ExecutorConnection, asked: _Asked, expected: type[_Answer]
    ) -> _Answer:
        return connection.ask(replace(asked, id=connection.next_id(), graph=self.graph), expected)

    def _inspect(self) -> messages.Report:
        connection = self._live()
        return connection.ask(messages.Inspect(id=connection.next_id()), messages.Report)

    def _graph(self) -> messages.Loaded:
        if self._loaded is None:
            raise ModelError(f"{self.source.path} is not loaded")
        return self._loaded

    def _retried(self, doing: str, action: Callable[[], _Result]) -> _Result:
        for _ in range(QUESTIONS.deaths):
            try:
                return action()
            except ExecutorLost as error:
                self.lose(error)
        raise ExecutorLost(
            f"the executor died {QUESTIONS.deaths} times over {doing}; see the server's log for "
            "the reason"
        )

    def _give_up(self, connection: ExecutorConnection, error: GeError) -> None:
        log.warning(
            "the executor of %s is gone (%s); another is started", connection.welcome.device, error
        )
        self._on_restart()
        self._lost_pid = connection.welcome.pid
        self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _result(run: messages.Run, outcome: messages.DirectOutcome) -> RunResult:
    if isinstance(outcome, GeError):
        return RunResult(outputs={}, error=outcome)
    done, outputs = outcome
    return RunResult(outputs=outputs, error=None, done=done, retained=run.retained)
