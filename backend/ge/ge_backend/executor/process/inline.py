"""An executor inside this process: one protocol, another transport."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

from ge_backend.executor.client.link import Link

if TYPE_CHECKING:
    from ge_backend.executor.server.executor import Executor

__all__ = ["connect_inline"]


def connect_inline(device: str, pool_bytes: int = 0, lanes: int = 0) -> Link:
    """Return a connection to an executor inside this process, which lives as long as that does.

    For debugging, and for tests. A stub that has its executor elsewhere does not import one.
    """
    from ge_backend.device.base import open_device  # noqa: PLC0415
    from ge_backend.executor.server.executor import Executor  # noqa: PLC0415

    executor = Executor(open_device(device, lanes=lanes), linger_s=0.0, pool_bytes=pool_bytes)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    executor.accept(theirs)
    threading.Thread(target=_retire, args=(executor,), daemon=True).start()
    return Link(ours)


def _retire(executor: Executor) -> None:
    executor.join()
    executor.close()
