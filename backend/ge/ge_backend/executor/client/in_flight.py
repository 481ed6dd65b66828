"""The runs of one graph that are with an executor and not answered yet."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace

from ge_backend.errors import GeError, OutOfMemory, ProtocolError, error_from_name
from ge_backend.executor.client.executor_connection import ExecutorConnection
from ge_backend.executor.protocol import messages
from ge_backend.executor.protocol.arena import Arena, Segment
from ge_backend.executor.protocol.descriptors import close_all
from ge_backend.executor.protocol.messages import NORMAL, Done, RetainOutput, Run
from ge_backend.tensors import Array

__all__ = ["InFlight", "RunResult"]


@dataclass(slots=True, kw_only=True)
class RunResult:
    """How a run ended: outputs by name (views, valid until the next `reserve`), or an error.

    Not frozen, as `Run`.

    Attributes:
        done: what the executor says of it; None where it did not run to its end. There may be an
            error all the same: its outputs cannot be had.
        retained: outputs that have stayed on the device.
        spilled_bytes: what outputs took that had no place in the arena, nor in the run's spill
            range.
    """

    outputs: dict[str, Array]
    error: GeError | None
    done: Done | None = None
    retained: tuple[RetainOutput, ...] = ()
    spilled_bytes: int = 0


class InFlight:
    """Submits runs and takes their outcomes as they come.

    All methods raise ExecutorLost when the executor is gone, and ProtocolError when it says what
    this version does not expect; the connection is of no use then.

    Args:
        priority: of all its runs; 1 is the highest.

    Attributes:
        started: the executor has begun a run that was submitted with `solo`.
    """

    def __init__(
        self, connection: ExecutorConnection, graph: int, arena: Arena, *, priority: int = NORMAL
    ) -> None:
        self.started = False
        self._connection = connection
        self._graph = graph
        self._arena = arena
        self._priority = priority
        self._runs: dict[int, tuple[int, Run]] = {}  # by message id; and the index

    @property
    def indices(self) -> list[int]:
        """The runs in flight, in the order of their submission."""
        return [index for index, _ in self._runs.values()]

    @property
    def silent_ns(self) -> int:
        """How long the executor has shown no life; it beats several times a second."""
        return time.monotonic_ns() - self._connection.outstanding.beat_ns

    @property
    def sender_serves(self) -> bool:
        """Whether a run that is awaited is made before `submit` returns."""
        return self._connection.sender_serves

    def fileno(self) -> int:
        """Return what becomes readable when a run has ended, or the executor is gone."""
        return self._connection.sock.fileno()

    def submit(self, index: int, staged: Run, *, solo: bool = False, awaited: bool = False) -> bool:
        """Send a run; False when an outcome has to be taken first.

        With something in flight it never waits for room in the socket: the executor may be waiting
        for room for its answers, and then neither would move.

        Args:
            index: the caller's own name for it.
            staged: what to run; of no connection yet.
            solo: see `messages.Run`.
            awaited: see `messages.Run`.
        """
        run = replace(
            staged,
            id=self._connection.next_id(),
            graph=self._graph,
            arena=self._arena.id,
            priority=self._priority,
            solo=solo,
            awaited=awaited,
        )
        if not self._runs:
            self._connection.send(run)
        elif not self._connection.send_unless_full(run):
            return False
        self._runs[run.id] = (index, run)
        self.started = False
        return True

    def cancel(self, index: int) -> bool:
        """Ask that a run in flight is dropped if it has not begun; `receive` returns its outcome.

        False when the connection has no room for the message; the caller can try again.
        """
        number = next(number for number, (other, _) in self._runs.items() if other == index)
        message = messages.Cancel(id=self._connection.next_id(), run=number)
        return self._connection.send_unless_full(message)

    def receive(self) -> tuple[int, RunResult] | None:
        """Wait for the next message: which run has ended, and how; None if one has only begun."""
        answer, descriptors = self._connection.inbox.receive()
        try:
            if isinstance(answer, messages.Started):
                self.started = True
                return None
            outcome = self._outcome(answer, descriptors)
        finally:
            if descriptors:
                close_all(descriptors)
        return self._runs.pop(answer.id)[0], outcome

    def drain(self) -> None:
        """Wait until every run in flight has ended."""
        while self._runs:
            self.receive()

    def _outcome(self, answer: messages.Message, descriptors: tuple[int, ...]) -> RunResult:
        known = answer.id in self._runs
        if isinstance(answer, messages.Failed):
            error = error_from_name(answer.error, answer.message)
            if not known:
                raise error
            return RunResult(outputs={}, error=error)
        if not known or not isinstance(answer, Done):
            raise ProtocolError(f"expected the outcome of a run in flight, got {answer}")
        run = self._runs[answer.id][1]
        outputs = {
            ref.name: self._arena.view(ref) for ref in run.outputs if ref.name in answer.settled
        }
        spills: list[Segment] = []
        failure: GeError | None = None
        try:
            spills = [Segment.map(each, os.fstat(each).st_size) for each in descriptors]
            source = spills[0] if spills else self._spill(run, answer)
            outputs |= {ref.name: source.view(ref) for ref in answer.spilled}
        except OutOfMemory as error:
            outputs, failure = {}, error
        return RunResult(
            outputs=outputs,
            error=failure,
            done=answer,
            retained=run.retained,
            spilled_bytes=sum(spill.nbytes for spill in spills),
        )

    def _spill(self, run: Run, answer: Done) -> Arena:
        """Return where outputs lie that have no segment of their own.

        Raises:
            OutOfMemory: they had one, and the kernel dropped its descriptor on the way.
        """
        first, end = run.spill.offset, run.spill.offset + run.spill.nbytes
        if any(ref.offset < first or ref.offset + ref.nbytes > end for ref in answer.spilled):
            raise OutOfMemory(
                "the outputs came in shared memory of their own, for which this process may not "
                "open another file; see what it may have (ulimit -n), or serve fewer models"
            )
        return self._arena
