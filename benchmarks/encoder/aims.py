"""What the backend aims at beside its best rival, by precision."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.harness.aims import Aims

__all__ = ["AIMS"]

AIMS: Mapping[str, Aims] = {
    "fp32": Aims(least={1: 1.0, 8: 1.05, 32: 1.1, 64: 1.15}, p99=1.1, random_p99=1.0),
    "bf16": Aims(least={1: 1.05, 8: 1.15, 32: 1.4, 64: 1.4}, p99=1.0, random_p99=1.0),
}
