"""What `ge-backend tune --measure` found, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ge_backend.serving.learning.regrid import MIN_SAVING
from ge_tools.model.applied import how_to_use
from ge_tools.model.as_served import Measured
from ge_tools.model.pbtxt import parameter_line
from ge_tools.model.ways import Way
from ge_tools.report.table import table

__all__ = ["Comparison", "comparison_json", "comparison_text"]

HEADER = ("engine", "precision", "sizes", "requests/s", "p50 ms", "p99 ms", "CPU ms", "MiB")
ALREADY_SET = "config.pbtxt has these settings already"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The ways to serve a model, measured under one load.

    Attributes:
        load: in words.
        found: what came of each way, or why it cannot be served.
        now: the way that the model is served in today.
        allowed: the precisions that may be chosen.
    """

    model: str
    load: str
    found: Mapping[Way, Measured | str]
    now: Way
    allowed: tuple[str, ...]

    @property
    def measured(self) -> dict[Way, Measured]:
        """The ways that were served, most requests a second first."""
        served = {way: it for way, it in self.found.items() if isinstance(it, Measured)}
        return dict(sorted(served.items(), key=lambda item: -item[1].requests_per_s))

    @property
    def real(self) -> list[Way]:
        """The ways whose precision this machine has, the fastest first."""
        return [way for way, it in self.measured.items() if it.computed_in == way.precision]

    @property
    def best(self) -> Way | None:
        """The fastest way in an allowed precision; today's unless another is clearly faster."""
        measured = self.measured
        best = next((way for way in self.real if way.precision in self.allowed), None)
        now = measured.get(self.now)
        if best is None or now is None or self.now.precision not in self.allowed:
            return best
        gain = measured[best].requests_per_s / now.requests_per_s
        return best if gain >= 1 + MIN_SAVING else self.now

    def parameters(self) -> dict[str, str]:
        """Return what sets the best way in config.pbtxt, where it is not so by now."""
        now, best = self.now.parameters(), self.best or self.now
        return {key: text for key, text in best.parameters().items() if now.get(key) != text}


def comparison_text(comparison: Comparison, diff: str | None) -> list[str]:
    """Return it for a person; `diff` is what was applied, None if nothing was to be."""
    measured = comparison.measured
    rows = [_row(way, it, comparison) for way, it in measured.items()]
    lines = [f"model {comparison.model}: {comparison.load}", ""]
    lines += table(HEADER, rows, names=3) if rows else ["no way to serve it was found"]
    lines += [
        f"left out: {' '.join(way.parameters().values())}: {why}"
        for way, why in comparison.found.items()
        if isinstance(why, str)
    ]
    lines += ["", *_lower(comparison)]
    settings = [parameter_line(*item) for item in comparison.parameters().items()]
    if not settings:
        return [*lines, f"nothing is at least {MIN_SAVING:.0%} faster than what serves it now"]
    if diff is None:
        return [*lines, *settings]
    if not diff:
        return [*lines, ALREADY_SET]
    return [*lines, diff, how_to_use(comparison.model)]


def comparison_json(comparison: Comparison, diff: str | None) -> str:
    """Return the same as one JSON object."""
    ways = [
        {"parameters": way.parameters(), **_as_json(it)} for way, it in comparison.found.items()
    ]
    return json.dumps(
        {
            "model": comparison.model,
            "load": comparison.load,
            "ways": ways,
            "now": comparison.now.parameters(),
            "parameters": comparison.parameters(),
            "diff": diff,
        }
    )


def _lower(comparison: Comparison) -> list[str]:
    """Return what a precision that was not allowed would bring, where it is the fastest."""
    fastest = next(iter(comparison.real), None)
    if fastest is None or fastest.precision in comparison.allowed:
        return []
    line = (
        f"faster in another precision: {fastest.engine} {fastest.precision}; what that does to "
        f"answers is in docs/precision.md; --precision {fastest.precision} chooses it"
    )
    return [line, ""]


def _as_json(found: Measured | str) -> dict[str, Any]:
    return asdict(found) if isinstance(found, Measured) else {"why": found}


def _row(way: Way, it: Measured, comparison: Comparison) -> tuple[str, ...]:
    sizes = " ".join(text for _, text in way.buckets) or ("as now" if it.bucketed else "any")
    mark = " (now)" if way == comparison.now else ""
    return (
        (way.engine or "the device") + mark,
        way.precision + (f" (as {it.computed_in})" if it.computed_in != way.precision else ""),
        sizes,
        f"{it.requests_per_s:.1f}",
        f"{it.p50_s * 1e3:.1f}",
        f"{it.p99_s * 1e3:.1f}",
        f"{it.cpu_s * 1e3:.2f}",
        f"{it.memory_bytes / 2**20:.0f}",
    )
