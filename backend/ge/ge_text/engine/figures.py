"""What an engine counts, and the picture of it that others may read."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ge_backend.metrics import METRICS
from ge_backend.tensors import Shape

__all__ = ["HISTOGRAMS", "Figures", "Histogram", "HistogramFigures", "Tally"]

# What is observed, and the metric that it is, which says what it means and where its bounds are.
HISTOGRAMS = {
    "first_token": "ge_text_first_token_seconds",
    "inter_token": "ge_text_inter_token_seconds",
    "latency": "ge_text_request_seconds",
    "step": "ge_text_step_seconds",
    "drafting": "ge_text_drafting_seconds",
    "scheduling": "ge_text_scheduling_seconds",
    "overhead": "ge_text_overhead_seconds",
    "step_tokens": "ge_text_step_tokens",
    "fill": "ge_text_step_fill",
    "draft_length": "ge_text_draft_length",
    "run_tokens": "ge_text_run_tokens",
}


@dataclass(frozen=True, slots=True)
class HistogramFigures:
    """Observations by size: `counts[i]` are at most `bounds[i]`, the last count has those above."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    def since(self, before: HistogramFigures) -> HistogramFigures:
        """Return what has been observed since an earlier picture."""
        counts = tuple(a - b for a, b in zip(self.counts, before.counts, strict=True))
        return HistogramFigures(self.bounds, counts, self.total - before.total)


class Histogram:
    """Counts observations since the start, by bounds that ascend."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Count one."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def figures(self) -> HistogramFigures:
        """Return a picture."""
        return HistogramFigures(self._bounds, tuple(self._counts), self._total)


@dataclass(slots=True, kw_only=True)
class Tally:
    """Sums that only grow; written by the engine's step alone.

    Attributes:
        counts: by the names of `Figures.counts`.
        buckets: groups of rows that ran in a shape that was made ready, by shape.
        histograms: by the names of `HISTOGRAMS`.
    """

    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            (
                "steps",
                "prompt_tokens",
                "generated_tokens",
                "computed_tokens",
                "padded_tokens",
                "unplanned_groups",
                "recomputed",
                "swapped_out",
                "swapped_in",
                "copied_blocks",
                "adapted_steps",
                "adapter_loads",
                "adapter_evictions",
                "drafted_tokens",
                "accepted_tokens",
                "failed_steps",
                "stop",
                "complete",
                "length",
                "cancelled",
                "error",
            ),
            0,
        )
    )
    buckets: Counter[Shape] = field(default_factory=Counter)
    histograms: dict[str, Histogram] = field(
        default_factory=lambda: {
            name: Histogram(METRICS[metric].bounds) for name, metric in HISTOGRAMS.items()
        }
    )

    def add(self, name: str, count: int = 1) -> None:
        """Count something; an unknown name is a KeyError."""
        self.counts[name] += count

    def observe(self, name: str, value: float) -> None:
        """Count an observation; an unknown name is a KeyError."""
        self.histograms[name].observe(value)

    def pictures(self) -> dict[str, HistogramFigures]:
        """Return pictures of the histograms, by name."""
        return {name: histogram.figures() for name, histogram in self.histograms.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """An engine at one moment.

    Attributes:
        waiting: sequences that are not running, those of preempted ones included.
        running: sequences that have blocks.
        swapped: of those that wait, how many are in host memory.
        blocks_used, blocks_free: of the cache, without that for padding.
        blocks_kept: of the free ones, how many hold what later requests may begin with.
        adapters, adapter_bytes: that the model holds.
        counts: sums since the start: `steps`; `prompt_tokens` taken in; `generated_tokens`;
            `computed_tokens` and `padded_tokens` of all steps; `unplanned_groups`: outside of every
            bucket; sequences `recomputed`, `swapped_out`, `swapped_in`; `copied_blocks`: of
            texts that go on apart; `adapted_steps`: with an adapter of some text, `adapter_loads`
            and `adapter_evictions`; `drafted_tokens` that were verified, `accepted_tokens` that
            were right; `failed_steps`; how sequences ended: `stop`, `complete`, `length`,
            `cancelled`, `error`; and, of the prefix cache, `prefix_asked_tokens`, of them
            `prefix_found_tokens`, and `prefix_evicted_blocks`.
        buckets: groups of rows by the bucket (batch, query, context blocks) that they ran in.
        histograms: by the names of `HISTOGRAMS`.
    """

    waiting: int
    running: int
    swapped: int
    blocks_used: int
    blocks_free: int
    blocks_kept: int
    adapters: int
    adapter_bytes: int
    counts: Mapping[str, int]
    buckets: Mapping[Shape, int]
    histograms: Mapping[str, HistogramFigures]
