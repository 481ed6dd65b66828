"""What an engine counts, and the picture of it that others may read."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ge_backend.tensors import Shape

__all__ = ["Figures", "Histogram", "HistogramFigures", "Tally"]

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
SCHEDULING_SECONDS = (5e-5, 1e-4, 2e-4, 5e-4, 0.001, 0.002, 0.005, 0.01, 0.05)
TOKENS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0)
DRAFTS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True, slots=True)
class HistogramFigures:
    """Observations by size: `counts[i]` are at most `bounds[i]`, the last count has those above."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class Histogram:
    """Counts observations since the start."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """Begin with none; bounds ascend."""
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
    """Sums that only grow; written by the engine's step and nobody else.

    Attributes:
        counts: by the names of `Figures.counts`.
        buckets: groups of rows that ran in a shape that was made ready, by shape.
        first_token, inter_token, latency: seconds.
        step, drafting, scheduling, overhead: seconds of a step in the model, of guessing tokens for
            it, of planning it, and of all that is neither the model nor guessing.
        step_tokens: tokens of a step, padding not included.
        fill: sequences of a step among those that may run at once.
        draft_length, run_tokens: with speculation, of each sequence that gets its next token in a
            step: drafts that were verified, and tokens that it got.
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
    first_token: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    inter_token: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    latency: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    step: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    drafting: Histogram = field(default_factory=lambda: Histogram(SCHEDULING_SECONDS))
    scheduling: Histogram = field(default_factory=lambda: Histogram(SCHEDULING_SECONDS))
    overhead: Histogram = field(default_factory=lambda: Histogram(SCHEDULING_SECONDS))
    step_tokens: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    fill: Histogram = field(default_factory=lambda: Histogram(SHARES))
    draft_length: Histogram = field(default_factory=lambda: Histogram(DRAFTS))
    run_tokens: Histogram = field(default_factory=lambda: Histogram(DRAFTS))

    def add(self, name: str, count: int = 1) -> None:
        """Count something; an unknown name is a KeyError."""
        self.counts[name] += count

    def histograms(self) -> dict[str, HistogramFigures]:
        """Return pictures of all, by name."""
        held = ((name, getattr(self, name)) for name in self.__slots__)
        return {name: item.figures() for name, item in held if isinstance(item, Histogram)}


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
        histograms: those of `Tally`.
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
