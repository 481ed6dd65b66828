"""Where an executor inside a stub can be asked what it keeps, and how such are found.

The address is in Linux's abstract namespace: it is gone with its process, and needs no folder. Who
asks is checked by the executor, as everywhere: it turns other users' processes away.
Source: unix(7), "Abstract sockets"; /proc/net/unix shows the leading zero byte as `@`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["InlineAddress"]

PREFIX = "ge-inline"


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineAddress:
    """The address of one executor.

    Attributes:
        owner_pid: the server's.
        pid: the stub's.
        token: tells the executors of one stub apart, as a fused ensemble has them.
        device: what it has opened.
    """

    owner_pid: int
    pid: int
    token: str
    device: str

    @classmethod
    def fresh(cls, device: str) -> InlineAddress:
        """Return an address of this process that none has had."""
        return cls(
            owner_pid=os.getppid(), pid=os.getpid(), token=os.urandom(4).hex(), device=device
        )

    @property
    def socket(self) -> str:
        """What a socket is bound and connected to."""
        return f"\0{PREFIX}/{self.owner_pid}/{self.pid}/{self.token}/{self.device}"

    @classmethod
    def listed(cls, table: Path = Path("/proc/net/unix")) -> list[InlineAddress]:
        """Return those that listen on this machine, of any server and user."""
        found: dict[str, InlineAddress] = {}
        for line in table.read_text(errors="replace").splitlines():
            name = line.rpartition(" ")[2]
            parts = name.split("/")
            if parts[0] == f"@{PREFIX}" and len(parts) == 5 and parts[1].isdecimal():  # noqa: PLR2004
                owner, pid, token, device = parts[1:]
                found[name] = cls(owner_pid=int(owner), pid=int(pid), token=token, device=device)
        return list(found.values())
