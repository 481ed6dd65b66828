"""What names a process, such as the server, in folders and sockets of ours."""

from __future__ import annotations

from pathlib import Path

__all__ = ["name_of"]

PROCESS_NAMESPACE = Path("/proc/self/ns/pid")


def name_of(pid: int) -> str:
    """Return what names a process of ours also where containers share a folder.

    Each container may have processes of the same numbers, so the inode of what the number holds in
    stands beside it, in hexadecimal. Source: pid_namespaces(7), namespaces(7).
    """
    try:
        space = PROCESS_NAMESPACE.stat().st_ino
    except OSError:  # no /proc, or a kernel that was built without them
        return str(pid)
    return f"{pid}-{space:x}"
