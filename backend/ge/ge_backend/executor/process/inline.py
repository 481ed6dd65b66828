"""An executor inside this process: one protocol, another transport."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
from typing import TYPE_CHECKING

from ge_backend.executor.client.executor_connection import ExecutorConnection
from ge_backend.executor.process.inline_address import InlineAddress

if TYPE_CHECKING:
    from ge_backend.executor.protocol.messages import Message
    from ge_backend.executor.server.executor import Executor
    from ge_backend.executor.server.stub_handler import StubHandler

__all__ = ["connect_inline"]

log = logging.getLogger(__name__)

# The host's log is written by another thread than the one that logs.
LOG_S = 1.0


def connect_inline(
    device: str, pool_bytes: int = 0, lanes: int = 0, run_timeout_s: float = 0.0
) -> ExecutorConnection:
    """Return a connection to an executor inside this process, which lives as long as that does.

    What is sent is answered, and a run that is awaited made, by the thread that sends it: no other
    has to wake up first. What kills the engine kills this process, too, and a run that takes longer
    than `run_timeout_s` ends it; 0 is no limit. A stub that has its executor elsewhere does not
    import one.
    """
    from ge_backend.device.base import open_device  # noqa: PLC0415
    from ge_backend.executor.server.executor import Executor  # noqa: PLC0415

    opened = open_device(device, lanes=lanes)
    try:
        executor = Executor(
            opened,
            linger_s=0.0,
            pool_bytes=pool_bytes,
            run_timeout_s=run_timeout_s,
            on_hang=_end_hung,
        )
    except BaseException:
        opened.close()
        raise
    guests = _Guests(executor, InlineAddress.fresh(device))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    handler = executor.attend(theirs)
    retiring = threading.Thread(target=_retire, args=(executor,), daemon=True)
    retiring.start()
    return _InlineConnection(ours, handler, guests, retiring)


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
    """

    sender_serves = True

    def __init__(
        self,
        sock: socket.socket,
        handler: StubHandler,
        guests: _Guests,
        retiring: threading.Thread,
    ) -> None:
        self._guests = guests
        self.here = self._handler = handler
        self._retiring = retiring
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
        super().close()
        self._guests.close()
        while self._stays:  # until it finds that we have left
            self._serve()
        self._retiring.join()  # an engine that is at work as the interpreter ends aborts it

    def _serve(self) -> None:
        with self._serving:
            stays, self._stays = self._stays, False  # what serving raises ends the connection
            try:
                if stays:
                    self._stays = self._handler.serve_one()
            finally:
                if not self._stays:  # nor does it run anything
                    self.here = None


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
