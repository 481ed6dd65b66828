"""An executor inside this process: one protocol, another transport."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ge_backend.executor.client.executor_connection import ExecutorConnection
from ge_backend.executor.process import reap_orphans
from ge_backend.executor.process.address import name_of
from ge_backend.executor.process.inline_address import InlineAddress

if TYPE_CHECKING:
    from ge_backend.executor.protocol.messages import Message
    from ge_backend.executor.server.executor import Executor
    from ge_backend.executor.server.stub_handler import StubHandler

__all__ = ["InlineExecutors", "connect_inline", "reap_with_server"]

log = logging.getLogger(__name__)

# The host's log is written by another thread than the one that logs.
LOG_S = 1.0
# The abstract socket of what ends the stubs of a server that was killed: a server has one.
REAPER = "ge-backend-reaper"


class InlineExecutors:
    """The executors inside this process that share their device, graphs and lanes.

    What is sent is answered, and a run that is awaited made, by the thread that sends it: no other
    has to wake up first. What kills the engine kills this process, too, and a run that takes longer
    than `run_timeout_s` ends it; 0 is no limit. A stub that has its executor elsewhere does not
    import one.
    """

    def __init__(self) -> None:
        self._running: dict[tuple[str, int, int, float], _Running] = {}
        # One for each, so that none is joined as its last connection leaves, nor opened twice.
        self._locks: dict[tuple[str, int, int, float], threading.Lock] = {}

    def connect(
        self, device: str, pool_bytes: int = 0, lanes: int = 0, run_timeout_s: float = 0.0
    ) -> ExecutorConnection:
        """Return a connection to the executor of this device, which lives as long as it has one."""
        key = device, pool_bytes, lanes, run_timeout_s
        lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._running:
                reap_with_server()
                self._running[key] = _Running(*key)
            running = self._running[key]
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            handler = running.attend(theirs)

        def leave() -> bool:
            with lock:
                if not running.leave(handler):
                    return False
                del self._running[key]
                return True

        return _InlineConnection(ours, handler, running, leave)


def connect_inline(
    device: str, pool_bytes: int = 0, lanes: int = 0, run_timeout_s: float = 0.0
) -> ExecutorConnection:
    """Return a connection to an executor of its own; see `InlineExecutors`."""
    return InlineExecutors().connect(device, pool_bytes, lanes, run_timeout_s)


def reap_with_server() -> None:
    """Start `reap_orphans` for this stub's server, unless it runs; do nothing in other processes.

    A stub whose server was killed may wait for it for ever with Python's own lock, so no thread of
    its own can end it.
    """
    server = reap_orphans.server_of(os.getpid())
    if not server:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as name, contextlib.suppress(OSError):
        name.bind(f"\0{REAPER}/{name_of(server)}")  # fails where it runs
        subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(reap_orphans.__file__).resolve()), str(server)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[name.fileno()],
            start_new_session=True,
            cwd="/",
        )


class _Running:
    """An executor, the threads that are its own, and its connections but for guests.

    These come and go under its lock of `InlineExecutors`.
    """

    def __init__(self, device: str, pool_bytes: int, lanes: int, run_timeout_s: float) -> None:
        from ge_backend.device.base import open_device  # noqa: PLC0415
        from ge_backend.executor.server.executor import Executor  # noqa: PLC0415

        self._handlers: set[StubHandler] = set()
        opened = open_device(device, lanes=lanes)
        try:
            self._executor = Executor(
                opened,
                linger_s=0.0,
                pool_bytes=pool_bytes,
                run_timeout_s=run_timeout_s,
                idle_ns=0,  # one batch at a time
                on_hang=_end_hung,
            )
        except BaseException:
            opened.close()
            raise
        self._guests = _Guests(self._executor, InlineAddress.fresh(device))
        self._retiring = threading.Thread(target=_retire, args=(self._executor,), daemon=True)

    def attend(self, sock: socket.socket) -> StubHandler:
        """Return a connection that the caller serves."""
        handler = self._executor.attend(sock)
        if not self._handlers:
            self._retiring.start()
        self._handlers.add(handler)
        return handler

    def leave(self, handler: StubHandler) -> bool:
        """Return whether this was the last connection; again returns False."""
        if handler not in self._handlers:
            return False
        self._handlers.discard(handler)
        return not self._handlers

    def turn_guests_away(self) -> None:
        """Accept no more guests, and have those leave who are there."""
        self._guests.close()

    def join(self) -> None:
        """Wait until the executor is closed, which it is when the last connection has left."""
        self._retiring.join()  # an engine that is at work as the interpreter ends aborts it


class _Guests:
    """Those who ask an executor inside a stub what it keeps anyway, as `ge-backend report` does."""

    def __init__(self, executor: Executor, address: InlineAddress) -> None:
        self._executor = executor
        self._guests: list[socket.socket] = []
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.bind(address.socket)
        self._sock.listen()
        self._accepting = threading.Thread(target=self._accept, name="guests", daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """Accept no more, and have those leave who are there; again does nothing."""
        if self._sock.fileno() < 0:
            return
        self._sock.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._sock.close()
        for guest in self._guests:
            with contextlib.suppress(OSError):  # it has left before
                guest.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                guest, _ = self._sock.accept()
            except OSError:  # closed
                return
            self._guests = [known for known in self._guests if known.fileno() >= 0] + [guest]
            try:
                self._executor.accept(guest)
            except (RuntimeError, MemoryError) as error:
                log.warning("a connection could not be accepted: %s", error)


class _InlineConnection(ExecutorConnection):
    """A connection whose sender also does the executor's part.

    So nothing may be sent on it while answers wait that no other thread reads: there might be no
    room for one more.

    Args:
        leave: leaves the executor; returns whether this was the last connection.
    """

    sender_serves = True

    def __init__(
        self,
        sock: socket.socket,
        handler: StubHandler,
        running: _Running,
        leave: Callable[[], bool],
    ) -> None:
        self.here, self._handler = handler.graphs, handler
        self._running, self._leave = running, leave
        self._serving = threading.Lock()
        self._stays = True
        self._answers = select.poll()
        self._answers.register(sock, select.POLLIN)
        super().__init__(sock)

    def send(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        super().send(message, descriptors)
        self._serve()

    def send_unless_full(self, message: Message) -> bool:
        if self._answers.poll(0) or not super().send_unless_full(message):
            return False
        self._serve()
        return True

    def close(self) -> None:
        last = self._leave()
        super().close()
        if last:
            self._running.turn_guests_away()
        while self._serve():  # after who serves now, until it finds that we have left
            pass
        if last:
            self._running.join()

    def _serve(self) -> bool:
        """Do the executor's part once, one thread after the other; return whether it goes on."""
        with self._serving:
            stays, self._stays = self._stays, False  # what serving raises ends the connection
            try:
                if stays:
                    self._stays = self._handler.serve_one()
            finally:
                if not self._stays:  # nor does it run anything
                    self.here = None
            return self._stays


def _retire(executor: Executor) -> None:
    executor.join()
    executor.close()


def _end_hung() -> None:
    """End this process: nothing less ends a call into an engine and the threads waiting for it."""
    log.critical(
        "the executor is inline and ends with this process: its model's requests fail until the "
        "model is loaded again, as `ge-backend serve` does by itself"
    )
    time.sleep(LOG_S)
    os._exit(1)
