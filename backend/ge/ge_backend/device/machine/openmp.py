"""How threads of OpenMP wait for each other on a CPU, for what comes with torch."""

from __future__ import annotations

import os

__all__ = ["spin_briefly"]

SPINS = "10000"  # about 0.1 ms


def spin_briefly() -> None:
    """Let threads that wait spin for a moment and then sleep; called before torch is imported.

    libgomp reads the setting when it is loaded. By default it spins for 3 ms and more: beside other
    busy processes single runs took 1300 ms, not 90. Without spinning a step of text generation,
    which is hundreds of short parallel pieces, takes twice as long. Where OMP_WAIT_POLICY or
    GOMP_SPINCOUNT is already set, nothing changes.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
