"""Parameters of a model that there were once, and what became of each.

A configuration that still has one is loaded, and the log says this of it. `docs/configuration.md`
lists them.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["REMOVED"]

REMOVED: Mapping[str, str] = {
    "warmup_repeats": "each bucket is measured three times, and serving corrects what that found",
    "warmup_budget_s": "`warmup: background` serves before buckets are measured, `warmup: off` "
    "measures none",
    "learn_every_s": "`learn: serve` looks at the traffic after 10 seconds, then after twice as "
    "long each time, once a minute at least",
    "early_reply": "requests whose part of a batch ends early are answered at once where that "
    "gains more than a reply of its own costs",
}
