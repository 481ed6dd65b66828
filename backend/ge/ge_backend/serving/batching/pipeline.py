"""A batch's way: plan, place, stage, submit, collect, split; what is lost goes round again.

Replies come out as their requests are complete.
"""

from __future__ import annotations

import contextlib
import logging
import math
import operator
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ge_backend.device.base import ROW_ERRORS
from ge_backend.errors import ExecutorLost, GeError, GraphFailed, OutOfMemory, StateLost
from ge_backend.executor.client.in_flight import RunResult
from ge_backend.executor.client.session import Session
from ge_backend.executor.protocol.arena import aligned
from ge_backend.executor.protocol.messages import Done, Run, TensorMemory
from ge_backend.metrics import Recorder
from ge_backend.model.layout.layout import Layout
from ge_backend.serving.batching.blame import about_shapes, blamed
from ge_backend.serving.batching.concatenate import alone, as_it_came, each_alone, one_run
from ge_backend.serving.batching.device_tensor import BatchRetention
from ge_backend.serving.batching.plan import (
    BatchPlan,
    Policy,
    RowSpan,
    SubBatch,
    plan,
    run_of,
    side_by_side,
)
from ge_backend.serving.batching.progress import Progress, Reply
from ge_backend.serving.batching.request import Request
from ge_backend.serving.batching.split import refused_requests, split
from ge_backend.serving.batching.stage import deadline_of, direct, stage, sub_batch_shapes
from ge_backend.serving.fleet.attempt import LOOK_EVERY_NS, FinishedRun
from ge_backend.serving.fleet.fleet import Fleet
from ge_backend.serving.warmup.warmup import RUN_OVERHEAD_NS
from ge_backend.shapes.buckets.costs import CostModel
from ge_backend.shapes.traffic.histogram import rounded_up
from ge_backend.shapes.traffic.traffic import Traffic
from ge_backend.tensors import Shape

__all__ = ["Pipeline"]

log = logging.getLogger(__name__)

# Leading binary digits of the sizes that rows are counted under: two bins per power of two.
COUNTED_DIGITS = 2
# The most of an arena that a run is given for outputs whose shapes it alone knows.
MAX_SPILL_BYTES = 1 << 20
# The most bytes of tensors that are not staged for a run in this process: what is larger would be
# mapped anew for each run. Source: mallopt(3), M_MMAP_THRESHOLD.
MAX_DIRECT_BYTES = 1 << 20
# Where executors have died over this many requests of a batch, each alone, the cause is no request:
# the others are not tried, as each would take an executor's start.
MAX_KILLERS = 3
# Sizes without a bucket that get a line in the log, each one once.
MAX_LOGGED = 64


@dataclass(frozen=True, slots=True)
class Round:
    """Runs of a batch that go together.

    Attributes:
        requests: the batch, which is counted with them.
        repeated: it has run before: it is counted, and what was staged stays as it is.
        solo: each has its device to itself.
    """

    sub_batches: Sequence[SubBatch]
    requests: Sequence[Request] = ()
    repeated: bool = False
    solo: bool = False


@dataclass(slots=True)
class Pipeline:
    """Runs batches of one model, one batch at a time.

    Attributes:
        fleet, costs: changed between two batches only, and only through `hand_over`.
        traffic: counts the sizes of what comes, and what no bucket covers.
        response_parameters: replies say what their runs were.
        stacks: requests that are alike may come as one; see `stacked`.
        free_at_ns: when the last batch was expected to end, CLOCK_MONOTONIC; infinite where
            nothing says what it costs.
    """

    layout: Layout
    fleet: Fleet
    costs: CostModel
    policy: Policy
    recorder: Recorder
    traffic: Traffic
    response_parameters: bool = False
    free_at_ns: float = field(init=False, default=0.0)
    stacks: bool = field(init=False)
    _owner: str = field(init=False, default="")
    _spill_bytes: int = field(init=False, default=0)
    _most_rows: int = field(init=False, default=0)  # of requests' runs that the graph has done
    _successor: tuple[Fleet, CostModel] | None = field(init=False, default=None)
    _changing: threading.Lock = field(init=False, default_factory=threading.Lock, repr=False)
    _logged: set[Shape] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        layout = self.layout
        self.stacks = not (
            self.response_parameters
            or not layout.batched
            or layout.concatenated
            or layout.alone
            or any(item.common is not None for item in layout.inputs)
            or any(output.lengths or output.source for output in layout.outputs)
        )

    def hand_over(self, fleet: Fleet, costs: CostModel) -> None:
        """Let batches run on this fleet, at these costs, from the next one on.

        The fleet becomes the pipeline's. It has prepared what `costs` names, so it prepares that
        again if an executor is restarted. May be called from any thread.
        """
        owner = ""
        while True:  # asked for outside of the lock, and anew if the owner has changed meanwhile
            with self._changing:
                if owner == self._owner:
                    unused, self._successor = self._successor, (fleet, costs)
                    break
                owner = self._owner
            try:
                fleet.retain_tensors(owner)
            except GeError:
                fleet.close()
                raise
        if unused is not None:
            unused[0].close()

    def close(self) -> None:
        """Leave the executors; no batch comes any more."""
        self._take_over()
        self.fleet.close()

    def retain_tensors(self, owner: str, buffer_bytes: Sequence[int] = ()) -> TensorMemory | None:
        """Let batches leave tensors on the device; see `Fleet.retain_tensors`.

        What was handed over before knows nothing of it, so it is taken over first.
        """
        with self._changing:
            self._owner = owner
        self._take_over()
        return self.fleet.retain_tensors(owner, buffer_bytes)

    def free_tensors(self, keys: Sequence[int]) -> None:
        """Forget tensors that batches have left on the device."""
        self.fleet.free_tensors(keys)

    def run(
        self, requests: Sequence[Request], retention: BatchRetention | None = None
    ) -> Iterator[Reply]:
        """Yield one reply per request, in the order in which they are complete.

        A run that the engine refuses, that lacks memory, or that executors die over is repeated for
        each of its requests alone, so that one bad request fails alone.

        Args:
            requests: the batch.
            retention: what of it is to stay on the device; the keys are the caller's to free.
        """
        self._take_over()
        costs = self.costs
        batch = self._plan(requests, costs)
        progress = Progress(requests, costs, self.layout, retention)
        for position, error in batch.refused:
            yield from progress.fail_one(position, error)
        yield from self._execute(Round(batch.sub_batches, requests), progress)
        if progress.suspects:
            yield from self._execute(self._again(progress.suspects, progress), progress)
        for span in progress.dangers:
            if progress.failed(span.request):
                continue
            if progress.killers < MAX_KILLERS:
                yield from self._execute(self._again([span], progress, solo=True), progress)
            else:
                yield from progress.fail_one(span.request, _not_tried(progress.killers))
        for row, error in progress.doubtful:
            yield from self._execute(self._again([row], progress), progress)
            yield from progress.fail_one(row.request, error)

    @property
    def ready(self) -> bool:
        """Whether some device can be used; the others are tried again in the background."""
        return self.fleet.ready

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices that batches run on."""
        return tuple(state.device for state in self.fleet.states())

    def look_for_losses(self) -> None:
        """Give up the executors that have died since the last batch."""
        self.fleet.look_for_losses()

    def sample_devices(self) -> None:
        """Record how the devices are now; may be called from any thread."""
        for state, session in zip(self.fleet.states(), self.fleet.sessions, strict=True):
            state.record(self.recorder)
            if session.engine:
                self.recorder.set("ge_engine_info", 1.0, device=state.device, engine=session.engine)

    def _take_over(self) -> None:
        with self._changing:
            successor, self._successor = self._successor, None
        if successor is not None:
            self.fleet.close()
            self.fleet, self.costs = successor

    def _plan(self, requests: Sequence[Request], costs: CostModel) -> BatchPlan:
        started = time.perf_counter()
        if self.layout.concatenated:
            batch = one_run(requests, costs, batched=self.layout.batched)
        elif self.layout.alone:
            batch = each_alone(requests, costs)
        else:
            batch = plan(requests, costs, self.policy)
        self.recorder.add("ge_plan_seconds_total", time.perf_counter() - started)
        return batch

    def _again(self, spans: Sequence[RowSpan], progress: Progress, *, solo: bool = False) -> Round:
        """Return the runs of spans once more, each alone, but for requests that have failed."""
        runs: list[SubBatch] = []
        for span in spans:
            request, costs = progress.requests[span.request], progress.costs
            if progress.failed(span.request):
                continue
            if self.layout.concatenated:
                runs.append(as_it_came((span,), costs))
            elif self.layout.alone:
                runs.append(alone(span, request, costs))
            else:
                runs.append(run_of((span,), request.sizes, costs))
        return Round(runs, repeated=True, solo=solo)

    def _execute(self, round_: Round, progress: Progress) -> Iterator[Reply]:
        """Yield replies; what is to be counted is counted once, while the first runs run."""
        runs, lanes = round_.sub_batches, self.policy.lanes
        left_ns = sum([run.cost_ns for run in runs])
        self.free_at_ns = time.monotonic_ns() + left_ns / lanes
        since = time.perf_counter()
        here = self._runs_here(round_, progress, left_ns)
        if here is not None:
            for ended in here:
                run = runs[ended.index]
                left_ns -= run.cost_ns
                yield from self._answer(ended, run, progress, left_ns / lanes, since)
                since = time.perf_counter()
            self._count(round_, progress)
            return
        waiting = {index: run.cost_ns for index, run in enumerate(runs)}
        deadlines = [deadline_of(run, progress.requests) for run in runs]
        tried = 0
        while waiting:
            placed = self.fleet.place(waiting, deadlines, tried=tried, solo=round_.solo)
            with contextlib.closing(placed) as attempt:
                for part in attempt.parts:
                    own = [runs[index] for index in part.indices]
                    keep = round_.repeated or tried > 0
                    orders = self._stage(own, progress, part.device.session, keep=keep)
                    since = time.perf_counter()
                    attempt.submit(part, orders)
                if attempt.parts and not tried:
                    self._count(round_, progress)
                tried += bool(attempt.parts)
                while attempt.running:
                    for ended in attempt.collect():
                        left_ns -= waiting.pop(ended.index)
                        run = runs[ended.index]
                        yield from self._answer(ended, run, progress, left_ns / lanes, since)
                        since = time.perf_counter()
                    if attempt.look:
                        attempt.cancel([i for i in attempt.open if progress.abandoned(runs[i])])
        if not tried:  # nothing could be submitted
            self._count(round_, progress)

    def _answer(
        self,
        ended: FinishedRun,
        sub_batch: SubBatch,
        progress: Progress,
        left_ns: float,
        since: float,
    ) -> list[Reply]:
        """Return replies to the requests that a run completes; it was waited for since then."""
        arrived = time.perf_counter()
        spilled_bytes = ended.outcome.spilled_bytes
        if self._spill_bytes < spilled_bytes <= MAX_SPILL_BYTES:
            # From now on runs have room for as much: else a segment of its own is made, mapped on
            # both sides and given back for every run.
            self._spill_bytes = aligned(spilled_bytes)
        replies = self._settle(sub_batch, ended.outcome, progress, left_ns)
        if ended.given_up:
            replies = [replace(reply, remaining_ns=math.inf) for reply in replies]
        split_s = time.perf_counter() - arrived
        self._measure(ended, sub_batch, wait_s=arrived - since, split_s=split_s)
        return replies

    def _runs_here(
        self, round_: Round, progress: Progress, left_ns: float
    ) -> Iterator[FinishedRun] | None:
        """Return a round's runs on arrays as they are, where that is best.

        Where they do not go side by side, each is made in this thread as it is asked for.

        Returns:
            How each ends; None where the executor is in another process, where several runs are so
            long that someone is to look meanwhile, and where tensors are so large that they had
            better lie in memory that is there already.
        """
        device, runs, lanes = self.fleet.here(), round_.sub_batches, self.policy.lanes
        if device is None or (len(runs) > 1 and left_ns / lanes >= LOOK_EVERY_NS):
            return None
        started = time.perf_counter()
        requests, retention = progress.requests, progress.retention
        shapes = [
            sub_batch_shapes(run, requests, self.layout, retention, staged=False) for run in runs
        ]
        if retention is None and any(each.nbytes > MAX_DIRECT_BYTES for each in shapes):
            return None
        session = device.session
        graph, priority, solo = session.graph, session.priority, round_.solo
        orders = [
            direct(each, requests, self.layout, graph=graph, priority=priority, solo=solo)
            for each in shapes
        ]
        self.recorder.add("ge_stage_seconds_total", time.perf_counter() - started)
        if len(runs) > 1 and side_by_side(runs, progress.costs, self.policy):
            ended = session.run_side_by_side(orders)
        else:
            ended = ((index, session.run_here(*order)) for index, order in enumerate(orders))
        return (FinishedRun(index, outcome, device.name) for index, outcome in ended)

    def _stage(
        self,
        sub_batches: Sequence[SubBatch],
        progress: Progress,
        session: Session,
        *,
        keep: bool,
    ) -> list[Run | GeError]:
        """Return the runs, staged in the session's arena, or why they cannot be."""
        started = time.perf_counter()
        requests, retention, spill_bytes = progress.requests, progress.retention, self._spill_bytes
        orders: list[Run | GeError]
        try:
            shapes = [
                sub_batch_shapes(each, requests, self.layout, retention) for each in sub_batches
            ]
            sizes = [each.nbytes + spill_bytes for each in shapes]
            too_large = _reserve(session, sizes, keep=keep)
            orders = [
                too_large.get(index)
                or stage(each, requests, self.layout, session.arena, spill_bytes=spill_bytes)
                for index, each in enumerate(shapes)
            ]
        except GeError as error:
            orders = [error] * len(sub_batches)
        self.recorder.add("ge_stage_seconds_total", time.perf_counter() - started)
        return orders

    def _settle(
        self, sub_batch: SubBatch, outcome: RunResult, progress: Progress, left_ns: float
    ) -> list[Reply]:
        """Return replies to the requests that this outcome completes."""
        done = outcome.done
        try:
            if outcome.error is not None:
                raise outcome.error
            if ROW_ERRORS in outcome.outputs:
                sub_batch = progress.apart(sub_batch)
            hidden = progress.hidden(outcome.retained) if progress.retention else ()
            pieces = split(sub_batch, progress.requests, self.layout, outcome.outputs, hidden)
        except GeError as error:
            sub_batch = progress.apart(sub_batch)
            refusal = self._refusal(error, sub_batch, progress, done)
            return [] if refusal is None else progress.fail(sub_batch, refusal)
        self._most_rows = max(self._most_rows, sub_batch.bucket[0])
        replies: list[Reply] = []
        for position, own in refused_requests(sub_batch, outcome.outputs).items():
            replies += progress.fail_one(position, own)
        if outcome.retained:
            progress.note(sub_batch, outcome.retained)
        if self.response_parameters:
            progress.note_run(sub_batch)
        states = {} if done is None else done.states
        for piece in pieces:
            outputs = progress.take(piece)
            if outputs is not None:
                position, request = piece[0].request, progress.requests[piece[0].request]
                reply = Reply(
                    request=position,
                    outputs=outputs,
                    members=request.each(piece[0].first, piece[0].count),
                    remaining_ns=left_ns,
                    states=states,
                    on_device=progress.on_device(position) if progress.retention else {},
                    runs=progress.runs.get(position, ()),
                )
                replies.append(reply)
        return replies

    def _refusal(
        self, error: GeError, sub_batch: SubBatch, progress: Progress, done: Done | None
    ) -> GeError | None:
        """Return the error of a failed run's requests; None where something is run again."""
        kept = done is not None and progress.stateful(sub_batch)
        if kept and isinstance(error, GraphFailed | OutOfMemory):
            return StateLost.after(error)  # kept already: the run cannot be repeated
        if progress.repeats_alone(sub_batch, error):
            return None
        if not isinstance(error, GraphFailed):
            return error
        blame = blamed(
            error,
            progress.requests[sub_batch.spans[0].request],
            self.layout,
            rows=sub_batch.rows,
            planned=sub_batch.planned and self.policy.tried and not self._refused(sub_batch),
            most_rows=max([self._most_rows, *(one.most_rows for one in self.fleet.sessions)]),
        )
        tries = blame is error and about_shapes(error) and progress.doubts(sub_batch, error)
        return None if tries else blame

    def _refused(self, sub_batch: SubBatch) -> bool:
        """Whether warm-up has failed on a bucket of as long rows, or longer ones."""
        sizes = sub_batch.bucket[1:]
        buckets = (bucket for one in self.fleet.sessions for bucket in one.refused)
        return any(all(map(operator.ge, bucket[1:], sizes)) for bucket in buckets)

    def _count(self, round_: Round, progress: Progress) -> None:
        if not round_.repeated:
            self._count_batch(round_.requests, progress.costs)
        sub_batches = round_.sub_batches
        add, requests, costs = self.recorder.add, progress.requests, progress.costs
        for sub_batch in sub_batches:
            label = costs.label(sub_batch.priced) if sub_batch.planned else "unplanned"
            add("ge_sub_batches_total", bucket=label)
            if not sub_batch.planned:
                add("ge_unplanned_shapes_total")
        if not self.layout.axes or not sub_batches:
            return
        spans = [span for sub_batch in sub_batches for span in sub_batch.spans]
        sizes = [requests[span.request].sizes for span in spans]
        real = [math.prod(own) * span.count for own, span in zip(sizes, spans, strict=True)]
        longest = math.prod(map(max, zip(*sizes, strict=True)))
        elements = {
            "ge_elements_real_total": sum(real),
            "ge_elements_run_total": sum([math.prod(s.priced) for s in sub_batches]),
            "ge_elements_longest_total": longest * sum([span.count for span in spans]),
        }
        self.recorder.add_each(elements)

    def _count_batch(self, requests: Sequence[Request], costs: CostModel) -> None:
        came: list[tuple[int, Shape]] = []
        for request in requests:
            members = request.members
            came += [(1, request.sizes)] * len(members) or [(request.rows, request.sizes)]
        rows_of = self.traffic.add(came)
        for sizes in rows_of:
            if not costs.covers(sizes):
                self.traffic.miss(sizes)
                self._log_once(sizes)
        counts = {
            "ge_batches_total": 1,
            "ge_requests_total": len(came),
            "ge_rows_total": sum(rows_of.values()),
        }
        self.recorder.add_each(counts)
        by_size: dict[tuple[str, int], int] = {}
        for sizes, rows in rows_of.items():
            for axis, size in zip(self.layout.axes, sizes, strict=True):
                key = axis, rounded_up(size, COUNTED_DIGITS)
                by_size[key] = by_size.get(key, 0) + rows
        for (axis, up_to), rows in by_size.items():
            self.recorder.add("ge_row_sizes_total", rows, axis=axis, up_to=str(up_to))

    def _log_once(self, sizes: Shape) -> None:
        """Name sizes that no bucket covers in the log, which would be flooded by every request."""
        if sizes in self._logged or len(self._logged) >= MAX_LOGGED:
            return
        self._logged.add(sizes)
        named = " ".join(f"{n}={size}" for n, size in zip(self.policy.axes, sizes, strict=True))
        fate = "is refused" if self.policy.refuse_overflow else "runs at its own shape"
        last = "; further sizes are only counted" if len(self._logged) == MAX_LOGGED else ""
        log.warning("no bucket covers %s: it %s%s", named, fate, last)

    def _measure(
        self, ended: FinishedRun, sub_batch: SubBatch, *, wait_s: float, split_s: float
    ) -> None:
        """Count what a run took, and let costs follow it."""
        times = {"ge_wait_seconds_total": wait_s, "ge_split_seconds_total": split_s}
        self.recorder.add_each(times)
        done = ended.outcome.done
        if done is None:
            return
        counts = {
            "ge_queue_seconds_total": done.queue_ns / 1e9,
            "ge_run_seconds_total": done.run_ns / 1e9,
        }
        if done.held_up_ns:
            counts["ge_workspace_waits_total"] = 1
            counts["ge_workspace_wait_seconds_total"] = done.held_up_ns / 1e9
        if ended.outcome.error is None and sub_batch.planned:
            took_ns = done.run_ns + RUN_OVERHEAD_NS
            planned_ns = self.costs.expected(sub_batch.cost_ns, alone=done.alone)
            counts["ge_planned_seconds_total"] = planned_ns / 1e9
            counts["ge_plan_error_seconds_total"] = abs(took_ns - planned_ns) / 1e9
            self.costs.observe(sub_batch.priced, took_ns, alone=done.alone)
        self.recorder.add_each(counts, device=ended.device)


def _not_tried(killers: int) -> ExecutorLost:
    return ExecutorLost(
        f"executors died over {killers} others of its batch, each alone, and this one was not "
        "tried, as it may be no request's doing; send it again. See the server's log for the reason"
    )


def _reserve(session: Session, sizes: Sequence[int], *, keep: bool) -> dict[int, GeError]:
    """Make room for runs, or for those that leave out the largest ones; return why these failed."""
    fitting = sorted(range(len(sizes)), key=sizes.__getitem__)
    errors: dict[int, GeError] = {}
    while fitting:
        try:
            session.reserve(sum([sizes[index] for index in fitting]), keep=keep)
        except OutOfMemory as error:
            errors[fitting.pop()] = error
        else:
            break
    return errors
