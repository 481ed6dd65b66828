"""The messages to one stub, from any thread, however slowly the stub reads them.

Where the socket has room, the calling thread sends its message itself: no other has to wake up.
What does not fit stays here, and is sent in order by a thread that lives for as long as that takes.
So a thread that serves other stubs, too, never waits for this one. A stub that is stopped for a
while finds all its answers; one that leaves too many unread, or reads none for too long, is
dropped.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import threading
from collections import deque

from ge_backend.errors import ExecutorLost, GeError
from ge_backend.executor.protocol import wire
from ge_backend.executor.protocol.descriptors import close_all
from ge_backend.executor.protocol.messages import Failed, Message

__all__ = ["Outgoing", "Reply"]

log = logging.getLogger(__name__)

# What may wait here beside what the socket holds, which is some hundreds of answers. A descriptor
# is of memory for outputs that had no place in the stub's.
MAX_BYTES = 16 << 20
MAX_DESCRIPTORS = 64
# How long a stub may take nothing while something waits for it.
SILENT_S = 300.0
# What an answer takes here beside its bytes, about.
EACH_BYTES = 200
# An engine's message may hold a whole model's listing; what is sent has to fit into one record.
MAX_ERROR_CHARACTERS = 8192

# A message, and a descriptor that goes with it and is then closed.
Reply = tuple[Message, int | None]


class Outgoing:
    """The way out of a connection.

    Args:
        sock: becomes its own to close; others read from it.
        pid: of the stub, for the log.

    Attributes:
        open: whether what is said can still arrive.
    """

    def __init__(self, sock: socket.socket, pid: int) -> None:
        self.open = True
        self._sock = sock
        self._pid = pid
        self._unsent: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._nbytes = self._num_descriptors = 0  # of the unsent
        self._sending = False  # a thread sends them, or is about to
        self._lock = threading.Lock()
        self._sent = threading.Condition(self._lock)
        limit = struct.pack("ll", int(SILENT_S), int(SILENT_S % 1 * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def send(
        self, message: Message, descriptors: tuple[int, ...] = (), *, wait: bool = False
    ) -> None:
        """Say something, from any thread; a stub that has left misses nothing.

        One that is connected and cannot be sent it is dropped: it would wait for ever.

        Args:
            message: what to say.
            descriptors: sent with it, and closed in every case.
            wait: for the stub to have taken what was said before, and, as far as the socket has no
                room for it, this. For threads that serve this stub alone.

        Raises:
            ProtocolError: the message is too long; nothing is said.
        """
        try:
            block = wire.encode(message)
            with self._lock:
                if wait:
                    self._sent.wait_for(lambda: not self._sending)
                if self._settled(block, descriptors):
                    return
                sending, self._sending = self._sending, True
                self._keep(block, descriptors)
                descriptors = ()
        finally:
            if descriptors:
                close_all(descriptors)
        if not sending:
            self._begin_sending(here=wait)

    def answer(
        self, number: int, outcome: Message | Reply | GeError, *, wait: bool = False
    ) -> None:
        """Answer the message of this number, or say why it has no answer; `wait` as in `send`.

        Where that does not fit into a message, this is said instead.
        """
        message, descriptor = outcome if isinstance(outcome, tuple) else (outcome, None)
        if isinstance(message, GeError):
            message = _failed(number, message)
        try:
            self.send(message, () if descriptor is None else (descriptor,), wait=wait)
        except GeError as error:
            self.send(_failed(number, error), wait=wait)

    def close(self) -> None:
        """Close the socket, once no thread sends any more; what was not sent is lost."""
        with self._lock:
            self._drop("")
            self._sent.wait_for(lambda: not self._sending)
            self._sock.close()

    def _settled(self, block: bytes, descriptors: tuple[int, ...]) -> bool:
        """Send at once, if that can be; return whether nothing is left to do. The lock is held."""
        if not self.open:
            return True
        if self._sending:
            return False
        try:
            return wire.send_encoded(self._sock, block, descriptors, wait=False)
        except ExecutorLost:
            self._drop("")
            return True

    def _keep(self, block: bytes, descriptors: tuple[int, ...]) -> None:
        self._unsent.append((block, descriptors))
        self._nbytes += len(block) + EACH_BYTES
        self._num_descriptors += len(descriptors)
        if self._nbytes > MAX_BYTES or self._num_descriptors > MAX_DESCRIPTORS:
            self._drop(f"it leaves {len(self._unsent)} answers unread")

    def _begin_sending(self, *, here: bool) -> None:
        if not here:
            sending = threading.Thread(target=self._send_unsent, name="outgoing", daemon=True)
            try:
                sending.start()
            except RuntimeError as error:
                with self._lock:
                    self._drop(f"no thread can be started that sends its answers: {error}")
            else:
                return
        self._send_unsent()

    def _send_unsent(self) -> None:
        """Send what is kept, until there is nothing more."""
        while (first := self._first()) is not None:
            reason = ""
            try:
                if wire.send_encoded(self._sock, *first, wait=True):
                    continue
                reason = f"it has taken nothing for {SILENT_S:g} s"
            except ExecutorLost:
                pass
            finally:
                close_all(first[1])
            with self._lock:
                self._drop(reason)

    def _first(self) -> tuple[bytes, tuple[int, ...]] | None:
        """Take what is to be sent next; None: there is nothing, and the sending thread ends."""
        with self._lock:
            if not self._unsent:
                self._sending = False
                self._sent.notify_all()
                return None
            block, descriptors = self._unsent.popleft()
            self._nbytes -= len(block) + EACH_BYTES
            self._num_descriptors -= len(descriptors)
            return block, descriptors

    def _drop(self, reason: str) -> None:
        """Stop all sending, and let the thread that reads find the end; the lock is held."""
        if self.open and reason:
            log.warning("the stub of process %d is dropped: %s", self._pid, reason)
        self.open = False
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        for _, descriptors in self._unsent:
            close_all(descriptors)
        self._unsent.clear()
        self._nbytes = self._num_descriptors = 0


def _failed(number: int, error: GeError) -> Failed:
    text = str(error)[:MAX_ERROR_CHARACTERS]
    return Failed(id=number, error=type(error).__name__, message=text)
