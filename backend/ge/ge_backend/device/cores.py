"""How many cores this process may use: its affinity mask, and its control group's quota."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

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
    for folder in _groups(root):
        words = _read(folder / "cpu.max").split()
        if not words:
            words = [_read(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
        if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):  # noqa: PLR2004 - quota and period
            yield int(words[0]) / int(words[1])


def _groups(root: Path) -> Iterator[Path]:
    """Yield the folders of this process's control groups, of version 2 and of version 1."""
    mount = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = mount / "cpu" if controllers else mount
        folder = top / path.lstrip("/")
        while folder != top and top in folder.parents:
            yield folder
            folder = folder.parent
        yield top


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
