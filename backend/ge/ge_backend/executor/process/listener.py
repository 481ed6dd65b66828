"""The executor's address: opened once, and left behind clean whichever way the executor ends."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from ge_backend.executor.client.watch import SILENT_S
from ge_backend.executor.process.lock import address_lock, remove_lock
from ge_backend.executor.process.spare import dismiss
from ge_backend.executor.server.executor import Executor

__all__ = ["Listener", "bounded"]

BACKLOG = 128


class Listener:
    """A listening socket at a path, with the lock beside it and the folder around it.

    Attributes:
        sock: the socket.
    """

    def __init__(self, address: Path) -> None:
        self._address = address
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._bound: os.stat_result | None = None
        # No thread may abandon the socket between `bind`, which makes its file, and the `stat` by
        # which that is known to be ours.
        self._opening = threading.RLock()
        self.retiring = False

    def open(self) -> None:
        """Listen at the address; called while the starter's lock is held."""
        with self._opening:
            self._address.unlink(missing_ok=True)
            self.sock.bind(str(self._address))
            self._bound = self._address.stat()
            self.sock.listen(BACKLOG)

    def serve(self, executor: Executor) -> None:
        """Serve until the executor is no longer needed, then close it and remove its files.

        It leaves only when no connection waits, and holds the lock until the device is given
        back, so that the next executor finds the device free.
        """
        while not self.retiring:
            executor.serve(self.sock)
            with address_lock(self._address):
                if self._late():
                    executor.accept_from(self.sock)
                    continue
                self.retiring = True
                dismiss(self._address)
                self.close()
                try:
                    with bounded():
                        executor.close()
                finally:
                    remove_lock(self._address)

    def close(self) -> None:
        """Stop listening; the lock is not given back here."""
        self._remove_socket()
        self.sock.close()

    def abandon(self) -> None:
        """Remove the socket, and the lock unless another process holds it, without waiting."""
        self._remove_socket()
        if self.retiring:
            remove_lock(self._address)
            return
        with contextlib.suppress(BlockingIOError), address_lock(self._address, wait=False):
            remove_lock(self._address)

    def _late(self) -> bool:
        """Whether a connection came after the executor had decided to leave."""
        return bool(select.select([self.sock], [], [], 0)[0])

    def _remove_socket(self) -> None:
        """Remove the socket unless the path has become another executor's."""
        with self._opening, contextlib.suppress(FileNotFoundError):
            if self._bound and os.path.samestat(self._bound, self._address.stat()):
                self._address.unlink()


@contextlib.contextmanager
def bounded(seconds: float = SILENT_S) -> Iterator[None]:
    """End this process if the block takes longer; each thread's traceback is then in its output.

    For a block that holds an address's lock: the process that started this one ends it sooner, but
    may have been killed. It is not done by a Python thread, which a library could keep from
    running. There is one such block at a time.
    """
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
