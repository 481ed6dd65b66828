"""What of a batch has come back, and what of it is run once more, each request alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ge_backend.errors import ExecutorLost, GeError, GraphFailed, OutOfMemory
from ge_backend.executor.protocol.messages import RetainOutput
from ge_backend.model.layout.layout import Layout
from ge_backend.serving.batching.device_spans import DeviceSpan, device_spans, joined
from ge_backend.serving.batching.device_tensor import BatchRetention, DeviceTensor
from ge_backend.serving.batching.plan import RowSpan, SubBatch
from ge_backend.serving.batching.request import Request
from ge_backend.serving.batching.split import Piece, join
from ge_backend.shapes.buckets.costs import CostModel
from ge_backend.shapes.buckets.grid import label
from ge_backend.tensors import Array, Shape

__all__ = ["Progress", "Reply", "RunNote"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNote:
    """What the requests whose rows a run had learn about it.

    Attributes:
        bucket: the shape that it ran in, as `8x64`.
        rows: real ones, of all requests in it.
        padding: elements of that shape that were none of theirs.
        step: of a fused ensemble; "": there is none.
    """

    bucket: str
    rows: int
    padding: int
    step: str = ""

    @classmethod
    def of(cls, sub_batch: SubBatch, requests: Sequence[Request]) -> RunNote:
        """Return the note of a run of these requests."""
        real = sum(math.prod(requests[span.request].sizes) * span.count for span in sub_batch.spans)
        padding = 0 if sub_batch.mean else math.prod(sub_batch.bucket) - real
        return cls(bucket=label(sub_batch.bucket), rows=sub_batch.rows, padding=padding)


@dataclass(slots=True, kw_only=True)
class Reply:
    """The answer to one request: outputs, or an error; not frozen, as `Request`.

    Attributes:
        request: its position in the list that was run.
        outputs: by name; views of the arena that hold until the next batch.
        members: of a stack, those whose rows the outputs are, in order.
        remaining_ns: how long the rest of the batch is expected to take from now; infinite where
            that hangs on an executor that shows no life.
        states: the shape of each state of its sequence after this step, by input name, where its
            size varies.
        on_device: outputs that have stayed on the device, by name.
        runs: those that its rows were in, in the order of their ends, where that is asked for.
    """

    request: int
    outputs: dict[str, Array]
    members: Sequence[Request] = ()
    error: GeError | None = None
    remaining_ns: float = 0.0
    states: Mapping[str, Shape] = field(default_factory=dict)
    on_device: Mapping[str, DeviceTensor] = field(default_factory=dict)
    runs: Sequence[RunNote] = ()


@dataclass(slots=True)
class Progress:
    """Which rows of which request have come back.

    Attributes:
        requests: the batch, and behind it the members of stacks whose runs have failed.
        retention: what is to stay on the device.
        suspects: spans of runs of several requests that the engine refused, to be run again alone.
        dangers: of such that lacked memory or that executors died over: to be run again with
            nothing beside them, not even each other.
        killers: how many runs of one request executors have died over.
        doubtful: one row of a request of several that the engine refused, and what it said: to be
            run alone, which tells whether it was for the number of rows or for the client's sizes.
        runs: those of each request that were noted, by position.
    """

    requests: Sequence[Request]
    costs: CostModel
    layout: Layout
    retention: BatchRetention | None = None
    suspects: list[RowSpan] = field(default_factory=list)
    dangers: list[RowSpan] = field(default_factory=list)
    killers: int = 0
    doubtful: list[tuple[RowSpan, GraphFailed]] = field(default_factory=list)
    runs: dict[int, list[RunNote]] = field(default_factory=dict)
    _pieces: dict[int, list[Piece]] = field(default_factory=dict)
    _failed: set[int] = field(default_factory=set)
    _on_device: dict[int, list[DeviceSpan]] = field(default_factory=dict)

    def hidden(self, retained: Sequence[RetainOutput]) -> frozenset[str]:
        """Return the outputs of a run that have not come to the host."""
        unrequested = frozenset() if self.retention is None else self.retention.unrequested
        return unrequested.union(ref.name for ref in retained if not ref.also_to_host)

    def note(self, sub_batch: SubBatch, retained: Sequence[RetainOutput]) -> None:
        """Note what of a run has stayed on the device."""
        for span in device_spans(sub_batch, retained):
            self._on_device.setdefault(span[0].request, []).append(span)

    def note_run(self, sub_batch: SubBatch) -> None:
        """Note a run for those whose rows it had."""
        run_note = RunNote.of(sub_batch, self.requests)
        for position in dict.fromkeys(span.request for span in sub_batch.spans):
            self.runs.setdefault(position, []).append(run_note)

    def on_device(self, position: int) -> dict[str, DeviceTensor]:
        """Return what has stayed on the device of a request that is complete."""
        spans = self._on_device.get(position)
        return joined(spans, self.layout, self.requests[position]) if spans else {}

    def apart(self, sub_batch: SubBatch) -> SubBatch:
        """Return a run with each member of its stacks as a request of its own."""
        spans: list[RowSpan] = []
        for span in sub_batch.spans:
            request = self.requests[span.request]
            if request.members:
                members = request.each(span.first, span.count)
                known, self.requests = len(self.requests), [*self.requests, *members]
                spans += [RowSpan(known + at, 0, 1) for at in range(len(members))]
            else:
                spans.append(span)
        return replace(sub_batch, spans=tuple(spans))

    def stateful(self, sub_batch: SubBatch) -> bool:
        """Whether a run goes on from states of sequences."""
        return any(self.requests[span.request].slot >= 0 for span in sub_batch.spans)

    def repeats_alone(self, sub_batch: SubBatch, error: GeError) -> bool:
        """Have each request of a failed run repeated alone, if one may have failed the others.

        Not where a state is gone with its executor; and what lacks memory while tensors are kept
        on the device goes through the host's instead (`serving/ensemble/runner.py`).
        """
        positions = {span.request for span in sub_batch.spans}
        if len(positions) == 1:
            self.killers += isinstance(error, ExecutorLost)
            return False
        if isinstance(error, GraphFailed):
            self.suspects.extend(sub_batch.spans)
            return True
        dangerous = (isinstance(error, ExecutorLost) and not self.stateful(sub_batch)) or (
            isinstance(error, OutOfMemory) and self.retention is None
        )
        if dangerous:
            self.dangers.extend(sub_batch.spans)
        return dangerous

    def doubts(self, sub_batch: SubBatch, error: GraphFailed) -> bool:
        """Have one row of a request whose run failed tried alone; False where that tells nothing.

        Not of sequences, whose step that would be, and not where rows are laid end to end.
        """
        if sub_batch.rows == 1 or self.layout.concatenated or self.stateful(sub_batch):
            return False
        self.doubtful.append((replace(sub_batch.spans[0], count=1), error))
        return True

    def take(self, piece: Piece) -> dict[str, Array] | None:
        """Note a piece; return the request's outputs when it was the last one."""
        position = piece[0].request
        if position in self._failed:
            return None
        request = self.requests[position]
        if request.members or piece[0].count == request.rows:
            return piece[1]
        pieces = self._pieces.setdefault(position, [])
        pieces.append(piece)
        if sum([span.count for span, _ in pieces]) < self.requests[position].rows:
            return None
        return join(self._pieces.pop(position), self.layout)

    def fail(self, sub_batch: SubBatch, error: GeError) -> list[Reply]:
        """Return the error as the reply to every request of a sub-batch, once each."""
        return [reply for span in sub_batch.spans for reply in self.fail_one(span.request, error)]

    def fail_one(self, position: int, error: GeError) -> list[Reply]:
        """Return the error as the reply to one request; nothing if it has got one already."""
        if position in self._failed:
            return []
        self._failed.add(position)
        self._pieces.pop(position, None)
        request = self.requests[position]
        members = request.each(0, request.rows)
        return [Reply(request=position, outputs={}, error=error, members=members)]

    def abandoned(self, sub_batch: SubBatch) -> bool:
        """Whether each request of a sub-batch has failed, or no client waits for it any more."""
        return all(
            span.request in self._failed or one.cancelled()
            for span in sub_batch.spans
            for one in self.requests[span.request].each(span.first, span.count)
        )

    def failed(self, position: int) -> bool:
        """Whether a request has got its error already."""
        return position in self._failed
