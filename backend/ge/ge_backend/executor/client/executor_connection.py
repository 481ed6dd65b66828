"""A stub's end of a connection to an executor: one question, one answer."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from ge_backend.errors import DeviceUnavailable, ProtocolError, error_from_name
from ge_backend.executor.client.watch import Watch
from ge_backend.executor.protocol import wire
from ge_backend.executor.protocol.descriptors import close_all
from ge_backend.executor.protocol.messages import (
    VERSION,
    DirectOutcome,
    Failed,
    Hello,
    Message,
    Run,
    Welcome,
)
from ge_backend.executor.protocol.outstanding import OutstandingView
from ge_backend.executor.protocol.peer import peer_pid, peer_uid
from ge_backend.tensors import Array

__all__ = ["ExecutorConnection", "InlineGraph"]

_Answer = TypeVar("_Answer", bound=Message)


class InlineGraph(Protocol):
    """A graph of an executor in this process, which takes arrays as they are."""

    def run_here(self, message: Run, inputs: Mapping[str, Array]) -> DirectOutcome:
        """Run it in the calling thread, or wait until another one has.

        Args:
            message: the run, without places for tensors.
            inputs: as `Graph.run` takes them.
        """

    def run_side_by_side(
        self, given: Sequence[tuple[Run, Mapping[str, Array]]]
    ) -> Iterator[tuple[int, DirectOutcome]]:
        """Have other threads run it several times at once; yield each one's place as it ends.

        Each is given, and ends, as with `run_here`.
        """


class ExecutorConnection:
    """A connection that has shaken hands.

    Args:
        sock: becomes the connection's, and is closed if the handshake fails.

    Attributes:
        welcome: what the executor said of itself.
        outstanding: how much work it holds, now and later.
        inbox: what arrives on the socket.
        sender_serves: a run that is awaited is made before sending it returns.
        here: the graphs that were loaded by it, by number, where the executor is in this process.

    Raises:
        DeviceUnavailable: the peer is another user's process, or another container's.
        ExecutorLost: the executor is gone.
        ProtocolError: it is of another version.
    """

    sender_serves = False
    here: Mapping[int, InlineGraph] | None = None

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.inbox = wire.Inbox(sock)
        self._last_id = 0
        self._watch: Watch | None = None
        try:
            if peer_uid(sock) != os.getuid():
                raise DeviceUnavailable(
                    f"the executor belongs to user {peer_uid(sock)}, not to {os.getuid()}; "
                    "set GE_RUNTIME_DIR to a folder of this user's"
                )
            if not (pid := peer_pid(sock)):  # the kernel has no number for it here
                raise DeviceUnavailable(
                    "the executor is a process of another container, whose models may be others; "
                    "set GE_RUNTIME_DIR to a folder of this container's"
                )
            if pid != os.getpid():  # or it hangs with us
                self._watch = Watch(pid)
            self.welcome, self.outstanding = self._shake_hands()
        except BaseException:
            self.close()
            raise
        if self._watch is not None:
            self._watch.follow(self.outstanding)

    def next_id(self) -> int:
        """Return an id for a message that has not been used on this connection."""
        self._last_id += 1
        return self._last_id

    def send(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        """Send a message and its descriptors, which stay the caller's; wait while the way is full.

        Raises:
            ExecutorLost: the executor is gone.
            ProtocolError: the message is too long.
        """
        wire.send(self.sock, message, descriptors)

    def send_unless_full(self, message: Message) -> bool:
        """Send a message, or return False where an answer has to be taken first; else as `send`."""
        return wire.send(self.sock, message, wait=False)

    def ask(
        self, message: Message, expected: type[_Answer], descriptors: tuple[int, ...] = ()
    ) -> _Answer:
        """Send a message and return its answer; no runs are in flight meanwhile.

        Raises:
            GeError: what the executor answered, if it failed.
            ExecutorLost: the executor is gone.
            ProtocolError: it answered something else; the connection is closed.
        """
        answer, strays = self._exchange(message, expected, descriptors)
        close_all(strays)
        return answer

    def broken(self) -> bool:
        """Whether the executor has left; nothing is waited for."""
        poll = select.poll()
        poll.register(self.sock, select.POLLRDHUP)
        return bool(poll.poll(0))

    def shut(self) -> None:
        """Wake the threads that wait for a message: nothing comes any more."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Leave the executor."""
        if self._watch is not None:
            self._watch.close()
        self.sock.close()

    def _shake_hands(self) -> tuple[Welcome, OutstandingView]:
        hello = Hello(id=self.next_id(), version=VERSION)
        welcome, pages = self._exchange(hello, Welcome, ())
        try:
            if len(pages) != 1:
                raise ProtocolError(f"Welcome came with {len(pages)} descriptors, not 1")
            return welcome, OutstandingView(pages[0])
        finally:
            close_all(pages)

    def _exchange(
        self, message: Message, expected: type[_Answer], descriptors: tuple[int, ...]
    ) -> tuple[_Answer, tuple[int, ...]]:
        """Send a message; return its answer and the descriptors that came along, now ours."""
        self.send(message, descriptors)
        answer, received = self.inbox.receive()
        if isinstance(answer, expected) and answer.id == message.id:
            return answer, received
        close_all(received)
        if isinstance(answer, Failed):
            raise error_from_name(answer.error, answer.message)
        self.close()  # out of step: whatever is used next finds it lost and connects again
        raise ProtocolError(f"expected {expected.__name__} to {message.id}, got {answer}")
