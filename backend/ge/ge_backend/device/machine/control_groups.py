"""The control groups that this process is in, which is how a container is given less than all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["control_groups", "read_text"]


def control_groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's groups, inner ones first, of version 2 and of version 1.

    Source: cgroups(7).

    Args:
        root: where `proc` and `sys` are looked for.
        controller: what is asked about, such as `cpu`; a folder's files need not be there.
    """
    mount = root / "sys/fs/cgroup"
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        top = mount / controller if controllers else mount
        folder = top / path.lstrip("/")
        while folder != top and top in folder.parents:
            yield folder
            folder = folder.parent
        yield top


def read_text(path: Path) -> str:
    """Return what a file says; "" where there is none."""
    try:
        return path.read_text()
    except OSError:
        return ""
