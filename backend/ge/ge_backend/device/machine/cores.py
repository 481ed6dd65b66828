"""How many cores this process may use: its affinity mask, and its control group's quota."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ge_backend.device.machine.control_groups import control_groups, read_text

__all__ = ["usable_cores"]


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of cores, at least 1; a quota of 1.5 cores counts as one.

    A container is often given less than the machine has by quota alone, and then as many threads
    as cores would all be stopped together for the rest of each period.

    Args:
        root: where `proc` and `sys` are looked for; another one in tests.
    """
    cores = len(os.sched_getaffinity(0))
    return max(1, min([cores, *(int(quota) for quota in _quotas(root))]))


def _quotas(root: Path) -> Iterator[float]:
    """Yield the quota in cores of each control group this process is in, inner ones first.

    Source: Linux Documentation/admin-guide/cgroup-v2.rst (`cpu.max`) and
    Documentation/scheduler/sched-bwc.rst (`cpu.cfs_quota_us`).
    """
    for folder in control_groups(root, "cpu"):
        words = read_text(folder / "cpu.max").split()
        if not words:
            words = [
                read_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")
            ]
        if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):  # noqa: PLR2004 - quota and period
            yield int(words[0]) / int(words[1])
