"""A model measured as it is served: several requests at once, of alternating lengths.

It is opened as a server opens it, in a process of its own, so that its memory is its own and a
crash is only its own. Triton's part is not in the figures: it is the same for every engine.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import queue
import resource
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ge_backend.errors import ConfigError, GeError, Unsupported
from ge_backend.metrics import Recorder
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.layout.layout import Layout
from ge_backend.model.layout.validate import WELL_KNOWN
from ge_backend.serving.assumptions.made_up import MIN_BOUND, Blank, filled_in
from ge_backend.serving.batching.pipeline import Pipeline
from ge_backend.serving.batching.request import check_request
from ge_backend.serving.opening import open_model
from ge_backend.serving.warmup.store import Store
from ge_backend.serving.warmup.verdict import FAILS
from ge_backend.serving.warmup.warmup import bucket_inputs
from ge_backend.shapes.traffic.histogram import SizeHistogram
from ge_backend.tensors import DATA_TYPES, Array, Shape
from ge_tools.model.ways import Way

__all__ = ["Load", "Measured", "check_measurable", "drawn_sizes", "log_normal", "measured"]

# Requests that are made before, and sent one after the other, again and again.
REQUESTS = 256
# Of the time that is measured this share goes ahead and does not count.
AHEAD = 0.2
# Lengths of text, roughly: a few are several times as long as most.
SIGMA, BELOW_LARGEST = 0.7, 6
SEED = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is sent.

    Attributes:
        at_once: requests in flight; each answer is followed by the next request.
        seconds: how long it lasts.
        axes: that rows are padded along, by which engines are compared.
        traffic: how often each size comes, by axis.
    """

    at_once: int
    seconds: float
    axes: tuple[str, ...]
    traffic: Mapping[str, SizeHistogram]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What came of it.

    Attributes:
        requests_per_s: answered.
        p50_s, p99_s: from a request's place in the queue to its answer.
        cpu_s: of the whole process, for a request.
        memory_bytes: of the whole process at the end.
        bucketed: rows are padded to the sizes of buckets.
        computed_in: the precision, which is another one than was asked for where that is not here.
    """

    requests_per_s: float
    p50_s: float
    p99_s: float
    cpu_s: float
    memory_bytes: int
    bucketed: bool
    computed_in: str


def check_measurable(layout: Layout, name: str) -> None:
    """See that requests of a model can be made up.

    Raises:
        ConfigError: they cannot.
    """
    reason = ""
    if layout.states:
        reason = "its sequences carry states"
    elif layout.concatenated:
        reason = "its requests are concatenated"
    elif any(item.dtype.name == "BYTES" for item in layout.inputs):
        reason = "its inputs are texts or files, for which there is one engine"
    if reason:
        raise ConfigError(f"model {name!r} cannot be measured with made-up requests: {reason}")


def log_normal(largest: int) -> SizeHistogram:
    """Return sizes as texts have them, up to `largest`."""
    histogram = SizeHistogram()
    random = np.random.default_rng(SEED)
    for size in random.lognormal(math.log(max(1.0, largest / BELOW_LARGEST)), SIGMA, REQUESTS):
        histogram.add(min(max(1, round(float(size))), largest))
    return histogram


def drawn_sizes(traffic: Mapping[str, SizeHistogram], layout: Layout) -> list[Shape]:
    """Return the sizes of each request's row, as often as they come; the same at every call."""
    random = np.random.default_rng(SEED)
    columns = []
    for axis, least in zip(layout.axes, layout.smallest, strict=True):
        sizes, counts = zip(*traffic[axis].points(), strict=True)
        within = np.clip(sizes, least, layout.limits.get(axis, max(sizes)))
        columns.append(random.choice(within, REQUESTS, p=np.array(counts) / sum(counts)).tolist())
    return [tuple(sizes) for sizes in zip(*columns, strict=True)] or [()]


def measured(config: ModelConfig, way: Way, load: Load, cache_dir: Path | None) -> Measured | str:
    """Serve a model in a process of its own; return what came of it, or why it cannot be served."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as process:
        try:
            return process.submit(_in_process, way.of(config), load, cache_dir).result()
        except BrokenProcessPool:
            return "its process died"


def _in_process(config: ModelConfig, load: Load, cache_dir: Path | None) -> Measured | str:
    try:
        return _served(config, load, Store(cache_dir))
    except GeError as error:
        return str(error)


def _served(config: ModelConfig, load: Load, store: Store) -> Measured:
    with contextlib.ExitStack() as opened:
        pipelines = []
        for _ in range(max(1, config.instances)):
            recorder = Recorder()
            pipeline, learner = open_model(config, recorder, store, on_restart=lambda _: None)
            opened.callback(pipeline.close)
            opened.callback(learner.close)
            pipelines.append(pipeline)
            _check_as_asked(config, load, pipeline, recorder)
        layout, session = pipelines[0].layout, pipelines[0].fleet.sessions[0]
        sizes = drawn_sizes(load.traffic, layout)
        tensors = [_made_up(layout, each) for each in sizes]
        most_rows = max(1, config.max_batch_size)
        loop = _ClosedLoop(tensors=tensors, most_rows=most_rows, at_once=load.at_once)
        loop.run(pipelines, load.seconds)
        bucketed = session.shape_policy.padded
        return loop.measured(bucketed=bucketed, computed_in=session.precision)


def _check_as_asked(
    config: ModelConfig, load: Load, pipeline: Pipeline, recorder: Recorder
) -> None:
    """See that what was opened is what was asked for, and comparable with the others.

    Raises:
        Unsupported: the precision does not hold, or other axes are padded.
    """
    failed = {"assumption": "precision", "verdict": FAILS}.items()
    found = [dict(labels) for name, labels in recorder.drain() if name == "ge_assumption_info"]
    if any(failed <= labels.items() for labels in found):
        raise Unsupported(f"{config.precision} does not hold for it, and a higher one would serve")
    if pipeline.layout.axes != load.axes:
        own, others = (", ".join(each) or "no axis" for each in (pipeline.layout.axes, load.axes))
        raise Unsupported(
            f"it would pad {own}, where the model as configured pads {others}; name them with the "
            "parameters 'axes.<tensor>'"
        )


def _made_up(layout: Layout, sizes: Shape) -> dict[str, Array]:
    """Return a request of one row: what clients have to send, in values that any graph takes."""
    sent = {item.name for item in layout.inputs if not item.made}
    blanks = [
        Blank(
            name=item.name,
            dtype=DATA_TYPES[item.dtype],
            shape=item.shape,
            kind=WELL_KNOWN.get(item.name, ""),
            fill=item.fill,
        )
        for item in bucket_inputs((1, *sizes), layout)
        if item.name in sent
    ]
    return filled_in(blanks, {blank.name: MIN_BOUND for blank in blanks if blank.whole})


@dataclass(slots=True, kw_only=True)
class _ClosedLoop:
    """A number of clients, each of which sends its next request when it has its answer.

    Attributes:
        tensors: of the requests, sent in turn.
        most_rows: of a batch; a request has one.
        at_once: the clients.
    """

    tensors: Sequence[Mapping[str, Array]]
    at_once: int
    most_rows: int
    _waiting: queue.SimpleQueue[tuple[int, float] | None] = field(default_factory=queue.SimpleQueue)
    _latencies: list[float] = field(default_factory=list)
    _begin_s: float = 0.0
    _end_s: float = 0.0
    _cpu_s: float = 0.0

    def run(self, pipelines: Sequence[Pipeline], seconds: float) -> None:
        """Serve the load, each pipeline in a thread, as instances do.

        Raises:
            GeError: a request failed.
        """
        now = time.monotonic()
        self._begin_s, self._end_s = now + seconds * AHEAD, now + seconds * (1 + AHEAD)
        for number in range(self.at_once):
            self._waiting.put((number, now))
        with ThreadPoolExecutor(len(pipelines)) as threads:
            ended = [threads.submit(self._serve, each) for each in pipelines]
            time.sleep(seconds * AHEAD)
            before = time.process_time()
            for each in ended:
                each.result()
        self._cpu_s = time.process_time() - before

    def measured(self, *, bucketed: bool, computed_in: str) -> Measured:
        """Return the figures."""
        if not self._latencies:
            raise Unsupported("no request was answered within the time; give more --seconds")
        p50, p99 = np.percentile(self._latencies, [50, 99])
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return Measured(
            requests_per_s=len(self._latencies) / (self._end_s - self._begin_s),
            p50_s=float(p50),
            p99_s=float(p99),
            cpu_s=self._cpu_s / len(self._latencies),
            memory_bytes=pages * resource.getpagesize(),
            bucketed=bucketed,
            computed_in=computed_in,
        )

    def _serve(self, pipeline: Pipeline) -> None:
        """Run batches of what waits until the time is over, which ends all threads."""
        try:
            while (batch := self._batch()) and time.monotonic() < self._end_s:
                self._answer(pipeline, batch)
        finally:
            self._waiting.put(None)

    def _batch(self) -> list[tuple[int, float]]:
        """Return what waits, at least one request; [] at the end."""
        batch: list[tuple[int, float]] = []
        with contextlib.suppress(queue.Empty):
            while len(batch) < self.most_rows:
                taken = self._waiting.get(block=not batch)
                if taken is None:
                    self._waiting.put(None)
                    break
                batch.append(taken)
        return batch

    def _answer(self, pipeline: Pipeline, batch: Sequence[tuple[int, float]]) -> None:
        requests = [
            check_request(index, self.tensors[number % len(self.tensors)], pipeline.layout)
            for index, (number, _) in enumerate(batch)
        ]
        for reply in pipeline.run(requests):
            if reply.error is not None:
                raise reply.error
            number, sent = batch[reply.request]
            now = time.monotonic()
            if self._begin_s <= now < self._end_s:
                self._latencies.append(now - sent)
            self._waiting.put((number + self.at_once, now))
