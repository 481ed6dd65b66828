"""What models that generate text did between two readings of a server's metrics. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ge_tools.watch.readings import Reading, change, grown

__all__ = ["QUANTILES", "TextLine", "text_lines"]

QUANTILES = (0.5, 0.99)
# Sequences that come back in are no further preemption.
PREEMPTED = ("recomputed", "swapped_out")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLine:
    """A model that generates text; levels are those of the last reading.

    Attributes:
        tokens_per_s, prompt_tokens_per_s: drawn, and taken in.
        first_ms, next_ms: the time to a first token and from one token to the next, by quantile, as
            fine as the histogram's buckets; empty where none was drawn.
        step_ms, tokens_per_step: means; None where there was no step.
        cache: the share of the cache's blocks that are in use; None where that is not known.
        preempted: sequences that had to make room.
        finished: sequences by how they ended.
        buckets: parts of steps by the bucket that they ran in, most used first.
        adapters, adapter_bytes: LoRA adapters that are on the device, and what they take.
        adapter_loads, adapter_evictions: brought there, and made room for others.
        adapted_steps: with an adapter of some text.
    """

    model: str
    tokens_per_s: float
    prompt_tokens_per_s: float
    first_ms: Mapping[float, float]
    next_ms: Mapping[float, float]
    step_ms: float | None
    tokens_per_step: float | None
    running: float
    waiting: float
    cache: float | None
    preempted: float
    finished: Mapping[str, float]
    buckets: tuple[tuple[str, float], ...]
    adapters: float
    adapter_bytes: float
    adapter_loads: float
    adapter_evictions: float
    adapted_steps: float


def text_lines(before: Reading, after: Reading) -> list[TextLine]:
    """Return a line for each model that generates text, by name."""
    return [_line(name, before, after) for name in sorted(after.by("ge_text_running", "model"))]


def _line(model: str, before: Reading, after: Reading) -> TextLine:
    seconds = max(after.at_s - before.at_s, 1e-9)

    def changed(name: str) -> float:
        return change(before, after, f"ge_text_{name}", model=model)

    def level(name: str) -> float:
        return after.total(f"ge_text_{name}", model=model)

    def spread(name: str) -> Mapping[float, float]:
        return _quantiles_ms(before, after, f"ge_text_{name}_seconds_bucket", model)

    def by(name: str, label: str) -> dict[str, float]:
        return grown(before, after, f"ge_text_{name}", label, model=model)

    steps, blocks = changed("steps_total"), level("blocks_used") + level("blocks_free")
    preempted, buckets = by("preempted_total", "how"), by("buckets_total", "bucket")
    return TextLine(
        model=model,
        tokens_per_s=changed("generated_tokens_total") / seconds,
        prompt_tokens_per_s=changed("prompt_tokens_total") / seconds,
        first_ms=spread("first_token"),
        next_ms=spread("inter_token"),
        step_ms=1e3 * changed("step_seconds_sum") / steps if steps else None,
        tokens_per_step=changed("computed_tokens_total") / steps if steps else None,
        running=level("running"),
        waiting=level("waiting"),
        cache=level("blocks_used") / blocks if blocks else None,
        preempted=sum(preempted.get(how, 0.0) for how in PREEMPTED),
        finished=by("finished_total", "reason"),
        buckets=tuple(sorted(buckets.items(), key=lambda item: (-item[1], item[0]))),
        adapters=level("adapters"),
        adapter_bytes=level("adapter_bytes"),
        adapter_loads=changed("adapter_loads_total"),
        adapter_evictions=changed("adapter_evictions_total"),
        adapted_steps=changed("adapted_steps_total"),
    )


def _quantiles_ms(before: Reading, after: Reading, name: str, model: str) -> dict[float, float]:
    """Return quantiles of what was observed between: linear within a bucket of the histogram.

    What lies above the last bound counts as the bound, so a quantile there is too low.
    """
    bounds = sorted(after.by(name, "le", model=model), key=float)  # the last one is infinite
    sums = [change(before, after, name, model=model, le=bound) for bound in bounds]
    if not sums or not sums[-1]:
        return {}
    found: dict[float, float] = {}
    for share in QUANTILES:
        wanted = share * sums[-1]
        at = next(index for index, count in enumerate(sums) if count >= wanted)
        low, below = (float(bounds[at - 1]), sums[at - 1]) if at else (0.0, 0.0)
        high = min(float(bounds[at]), float(bounds[-2]))
        found[share] = 1e3 * (low + (high - low) * (wanted - below) / (sums[at] - below))
    return found
