"""The metrics table, and the recorder through which the code counts.

Names, kinds, units and help texts live here once; `host/counters.py` publishes them on the host's
own `/metrics`, and `docs/metrics.md` is generated from this table. Code records into a `Recorder`
and never sees the host: one call to the host per metric and batch would cost 10-15 microseconds.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

__all__ = ["METRICS", "Kind", "Metric", "Recorder"]

Labels = tuple[tuple[str, str], ...]


class Kind(Enum):
    """What a metric does: a counter only grows, a gauge tells of now, a fact of the last load.

    To Prometheus a fact is a gauge. A histogram counts observations by size.
    """

    COUNTER = "counter"
    GAUGE = "gauge"
    FACT = "fact"
    HISTOGRAM = "histogram"

    @property
    def published(self) -> str:
        """What it is to Prometheus."""
        return "gauge" if self is Kind.FACT else self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One row of the table; `labels` are those besides `model`, `version` and `device`.

    Attributes:
        bounds: upper bounds of a histogram's buckets, ascending.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()

    @property
    def at_end(self) -> float:
        """What a gauge is once its model is unloaded: of a device it is not known any more."""
        return math.nan if "device" in self.labels else 0.0


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(name=name, kind=Kind.COUNTER, help=text, labels=labels)


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(name=name, kind=Kind.GAUGE, help=text, labels=labels)


def _fact(name: str, text: str) -> Metric:
    return Metric(name=name, kind=Kind.FACT, help=text)


def _histogram(name: str, text: str, bounds: tuple[float, ...]) -> Metric:
    return Metric(name=name, kind=Kind.HISTOGRAM, help=text, bounds=bounds)


# Of an engine of text generation, see `generate.figures`.
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_SCHEDULING = (5e-5, 1e-4, 2e-4, 5e-4, 0.001, 0.002, 0.005, 0.01, 0.05)
_TOKENS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0)
_DRAFTS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)

METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        _counter(
            "ge_requests_total",
            "Requests taken from the host, without those that are refused as they are read, or in "
            "the model's own queue.",
        ),
        _counter("ge_request_failures_total", "Requests answered with an error.", "status"),
        _counter("ge_rows_total", "Rows (batch lines) taken from the host."),
        _counter(
            "ge_batches_total",
            "Batches: calls of execute() by the host, or what is taken at once from the model's "
            "own queue.",
        ),
        _counter("ge_sub_batches_total", "Sub-batches run, by the bucket they ran in.", "bucket"),
        _counter(
            "ge_row_sizes_total",
            "Rows by their size on a ragged axis: at most `up_to`, and more than the one before it "
            "of 0, 1, 2, 3, 4, 6, 8, 12, 16, 24 and so on.",
            "axis",
            "up_to",
        ),
        _counter("ge_elements_real_total", "Elements of ragged inputs that clients sent."),
        _counter("ge_elements_run_total", "Elements of ragged inputs that ran, padding included."),
        _counter(
            "ge_elements_longest_total",
            "Elements that would have run with each batch padded to its longest row.",
        ),
        _counter("ge_unplanned_shapes_total", "Sub-batches run outside every prepared bucket."),
        _counter("ge_read_seconds_total", "Time spent reading and checking requests."),
        _counter("ge_plan_seconds_total", "Time spent planning."),
        _counter("ge_stage_seconds_total", "Time spent copying rows into the arena."),
        _counter("ge_queue_seconds_total", "Time sub-batches waited in the executor.", "device"),
        _counter(
            "ge_workspace_waits_total",
            "Sub-batches for which a lane of the device was free before their workspace was.",
            "device",
        ),
        _counter("ge_workspace_wait_seconds_total", "Time they waited for it.", "device"),
        _counter("ge_run_seconds_total", "Time graphs ran in the executor.", "device"),
        _counter(
            "ge_planned_seconds_total",
            "Time that planned runs were expected to take.",
            "device",
        ),
        _counter(
            "ge_plan_error_seconds_total",
            "Time by which these took longer or shorter than that, run by run: a tenth of "
            "`ge_planned_seconds_total` is an error of 10 %.",
            "device",
        ),
        _counter("ge_wait_seconds_total", "Time the stub waited for the executor."),
        _counter("ge_split_seconds_total", "Time spent cutting outputs and replying."),
        _counter("ge_step_seconds_total", "Time batches spent in a step of an ensemble.", "step"),
        _gauge(
            "ge_backlog_requests",
            "Requests that wait in the queue of the model's own that each instance has.",
            "model_instance",
        ),
        _counter("ge_backlog_seconds_total", "Time that requests have waited there."),
        _counter("ge_early_replies_total", "Replies sent before their whole batch was done."),
        _counter(
            "ge_executor_restarts_total", "Times this model found an executor dead.", "device"
        ),
        _fact(
            "ge_model_heals",
            "Times `ge-backend serve` has loaded the model anew because a stub of it had died.",
        ),
        _counter("ge_grid_swaps_total", "Times the buckets were changed while serving."),
        _gauge(
            "ge_device_up",
            "Whether this model can use the device: 1, or 0 while it is lost.",
            "device",
        ),
        _gauge(
            "ge_engine_info",
            "The engine that runs this model there, named or chosen: always 1.",
            "device",
            "engine",
        ),
        _gauge(
            "ge_assumption_info",
            "What was found of an assumption that serving this model rests on: always 1; see "
            "docs/tested.md.",
            "assumption",
            "verdict",
        ),
        _gauge(
            "ge_executor_memory_bytes",
            "Memory of the machine that the device's executor has for itself; see "
            "`GE_EXECUTOR_MEMORY`.",
            "device",
        ),
        _gauge(
            "ge_device_outstanding_seconds",
            "Estimated time for all runs that wait or run on the device, of all models.",
            "device",
        ),
        _gauge(
            "ge_device_abnormal",
            "Whether the device's driver says that it cannot be used: 1, else 0; only where it "
            "says.",
            "device",
        ),
        _gauge(
            "ge_device_utilization_ratio",
            "How busy the device's units are, 0 to 1, by all users: cube, vector, aicpu; only "
            "where it says.",
            "device",
            "unit",
        ),
        _counter(
            "ge_sequences_total",
            "Sequences that began, ended, were idle too long (expired), gave their slot to another "
            "(displaced), or whose state was lost, with the executor or by a step that failed.",
            "event",
        ),
        _gauge("ge_sequences_live", "Sequences whose state is kept.", "model_instance"),
        _gauge(
            "ge_workspace_pool_bytes",
            "Size of the device's workspace pool, if it has one.",
            "device",
        ),
        _gauge(
            "ge_workspace_placed_bytes", "Bytes of the pool that are some graph's place.", "device"
        ),
        _gauge("ge_workspace_used_bytes", "Bytes of the pool that runs use now.", "device"),
        _gauge(
            "ge_workspace_peak_bytes",
            "The most bytes of the pool that runs used at once.",
            "device",
        ),
        _gauge(
            "ge_evicted_graphs",
            "Idle graphs of the device that were closed before their time to make room.",
            "device",
        ),
        _fact("ge_warmup_seconds", "Time the last warm-up took."),
        _fact("ge_buckets", "Buckets that are prepared."),
        _gauge("ge_text_waiting", "Sequences of text that wait, preempted ones included."),
        _gauge("ge_text_running", "Sequences of text that have blocks of the cache."),
        _gauge("ge_text_swapped", "Sequences of text whose cache is in host memory."),
        _gauge("ge_text_blocks_used", "Blocks of the key-value cache that are in use."),
        _gauge("ge_text_blocks_free", "Blocks of the key-value cache that are free."),
        _gauge("ge_text_blocks_kept", "Free blocks that hold what later requests may begin with."),
        _counter("ge_text_steps_total", "Steps of the language model."),
        _counter("ge_text_prompt_tokens_total", "Tokens of prompts taken in."),
        _counter("ge_text_generated_tokens_total", "Tokens drawn."),
        _counter("ge_text_computed_tokens_total", "Tokens that steps computed, real ones."),
        _counter("ge_text_padded_tokens_total", "Tokens that steps computed for padding."),
        _counter(
            "ge_text_buckets_total",
            "Parts of steps by the bucket (batch, query, context blocks) that they ran in, where "
            "there are buckets.",
            "bucket",
        ),
        _counter("ge_text_unplanned_groups_total", "Parts of steps outside of every bucket."),
        _counter(
            "ge_text_preempted_total",
            "Sequences that made room: `recomputed`, or `swapped_out` and later `swapped_in`.",
            "how",
        ),
        _counter("ge_text_prefix_asked_tokens_total", "Tokens looked for in the prefix cache."),
        _counter("ge_text_prefix_found_tokens_total", "Tokens found there, and not computed."),
        _counter("ge_text_prefix_evicted_blocks_total", "Kept blocks that made room for others."),
        _counter("ge_text_copied_blocks_total", "Blocks copied for texts that go on apart."),
        _gauge("ge_text_adapters", "LoRA adapters that are on the device."),
        _gauge("ge_text_adapter_bytes", "What they take there."),
        _counter("ge_text_adapter_loads_total", "LoRA adapters brought to the device."),
        _counter("ge_text_adapter_evictions_total", "LoRA adapters that made room for others."),
        _counter("ge_text_adapted_steps_total", "Steps with a LoRA adapter of some text."),
        _counter("ge_text_drafted_tokens_total", "Guessed tokens that were verified."),
        _counter("ge_text_accepted_tokens_total", "Guessed tokens that were right."),
        _counter("ge_text_failed_steps_total", "Steps that failed and were tried in parts."),
        _counter(
            "ge_text_finished_total",
            "Sequences by how they ended: `stop`, `complete` (in their structure), `length`, "
            "`cancelled`, `error`.",
            "reason",
        ),
        _histogram(
            "ge_text_first_token_seconds", "From a request's coming to its first token.", _SECONDS
        ),
        _histogram("ge_text_inter_token_seconds", "From one token to the next.", _SECONDS),
        _histogram("ge_text_request_seconds", "From a request's coming to its end.", _SECONDS),
        _histogram("ge_text_step_seconds", "Time of a step.", _SECONDS),
        _histogram("ge_text_drafting_seconds", "Time of guessing tokens for a step.", _SCHEDULING),
        _histogram("ge_text_scheduling_seconds", "Time of planning a step.", _SCHEDULING),
        _histogram(
            "ge_text_overhead_seconds",
            "Time of a step that is neither the model's nor spent on guessing tokens.",
            _SCHEDULING,
        ),
        _histogram("ge_text_step_tokens", "Tokens of a step.", _TOKENS),
        _histogram("ge_text_step_fill", "Sequences of a step among those that may run.", _SHARES),
        _histogram("ge_text_draft_length", "Guessed tokens of a text in a step.", _DRAFTS),
        _histogram("ge_text_run_tokens", "Tokens that a text got in a step.", _DRAFTS),
    )
}


@dataclass(slots=True)
class Recorder:
    """Sums in memory, safe to use from several threads; `drain` hands the changes over.

    Values are floats in the metric's unit. A metric that is not in the table is a `KeyError`.
    """

    _values: dict[tuple[str, Labels], float] = field(default_factory=dict)
    _observed: list[tuple[str, float]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _labels: dict[str, str] = field(default_factory=dict)
    _keys: dict[tuple[object, ...], tuple[str, Labels]] = field(default_factory=dict)
    _groups: dict[tuple[object, ...], list[tuple[str, Labels]]] = field(default_factory=dict)

    def labelled(self, **labels: str) -> Recorder:
        """Return a recorder into the same sums that puts these labels on everything."""
        return Recorder(self._values, self._observed, self._lock, {**self._labels, **labels})

    def add(self, name: str, value: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        key = self._keys.get((name, *labels.items())) or self._new_key(name, labels)
        with self._lock:
            self._values[key] = self._values.get(key, 0.0) + value

    def add_each(self, values: Mapping[str, float], **labels: str) -> None:
        """Add to several counters that have the same labels."""
        given, sums = (*values, *labels.items()), self._values
        keys = self._groups.get(given)
        if keys is None:
            keys = self._groups[given] = [self._new_key(name, labels) for name in values]
        with self._lock:
            for key, value in zip(keys, values.values(), strict=True):
                sums[key] = sums.get(key, 0.0) + value

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge or a fact."""
        key = self._keys.get((name, *labels.items())) or self._new_key(name, labels)
        with self._lock:
            self._values[key] = value

    def _new_key(self, name: str, labels: dict[str, str]) -> tuple[str, Labels]:
        """Return what a metric with these labels is summed under from now on."""
        given = (name, *labels.items())
        self._keys[given] = METRICS[name].name, tuple(sorted((self._labels | labels).items()))
        return self._keys[given]

    def observe(self, name: str, values: Sequence[float]) -> None:
        """Add observations to a histogram, which has the model's labels alone."""
        name = METRICS[name].name
        with self._lock:
            self._observed.extend((name, value) for value in values)

    def drain_observations(self) -> list[tuple[str, float]]:
        """Return the observations that came since the last call, by metric."""
        with self._lock:
            observed = list(self._observed)
            self._observed.clear()
        return observed

    def drain(self) -> dict[tuple[str, Labels], float]:
        """Return what came since the last call: increments of counters, values of all else."""
        with self._lock:
            values = dict(self._values)
            self._values.clear()
        return values
