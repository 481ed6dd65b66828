"""A stub's end of a service that answers at any time: one thread takes what the service posts.

A second thread sends what the connection to the service has no room for at once. So posting never
waits, even where the executor reads nothing for a while.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from ge_backend.errors import (
    DeviceUnavailable,
    ExecutorLost,
    GeError,
    ProtocolError,
    error_from_name,
)
from ge_backend.executor.client.executor_connection import ExecutorConnection
from ge_backend.executor.protocol.descriptors import close_all
from ge_backend.executor.protocol.messages import Failed, Message, Ok, OpenService, Post
from ge_backend.executor.protocol.wire import encode

__all__ = ["ServiceStream"]


class ServiceStream:
    """A service that is open, on a connection of its own.

    Args:
        connection: becomes the stream's; closed if the service cannot be opened.
        kind: as in `OpenService`.
        key: as in `OpenService`.
        take: called with each body that the service posts, in order, by one thread.
        ended: called last by that thread, once: with why the stream is of no use any more, which is
            ExecutorLost where the executor is gone. Not called after `close`.

    Attributes:
        outstanding: what the executor shows of itself.

    Raises:
        GeError: what the executor answered.
        DeviceUnavailable: this process may have no more threads.
    """

    def __init__(
        self,
        connection: ExecutorConnection,
        *,
        kind: str,
        key: str,
        take: Callable[[bytes], None],
        ended: Callable[[GeError], None],
    ) -> None:
        self._connection = connection
        self.outstanding = connection.outstanding
        self._number = connection.next_id()
        self._take = take
        self._ended = ended
        self._closed = False
        self._over = False  # nothing can be posted any more
        self._unsent: deque[Post] = deque()  # the first one may be under way
        self._changed = threading.Condition()
        self._reading = threading.Thread(target=self._read, name=f"read {kind}", daemon=True)
        self._writing = threading.Thread(target=self._write, name=f"write {kind}", daemon=True)
        try:
            connection.ask(OpenService(id=self._number, kind=kind, key=key), Ok)
            self._writing.start()
            self._reading.start()
        except BaseException as error:
            self._end()
            connection.close()
            if isinstance(error, RuntimeError):
                raise DeviceUnavailable(
                    f"no thread can be started for what {kind} says: {error}; see what this "
                    "process may have (ulimit -u), or serve fewer models in this server"
                ) from error
            raise

    def post(self, body: bytes) -> None:
        """Have something sent to the service, in order, from any thread; nothing is waited for.

        Raises:
            ExecutorLost: the executor is gone; `ended` is called as well.
            ProtocolError: the body is too long.
        """
        post = Post(id=self._number, body=body)
        with self._changed:
            if self._over:
                raise ExecutorLost("the connection broke before this could be sent")
            if not self._unsent and self._connection.send_unless_full(post):
                return
            encode(post)  # too long is the sender's fault, and not the stream's end
            self._unsent.append(post)
            self._changed.notify()

    def close(self) -> None:
        """Leave the service; it drops what it was asked for. Not from within `take`."""
        self._closed = True
        self._connection.shut()
        self._reading.join()
        self._end()
        self._writing.join()
        self._connection.close()

    def _read(self) -> None:
        try:
            while True:
                message, descriptors = self._connection.inbox.receive()
                if descriptors:
                    close_all(descriptors)
                if not isinstance(message, Post) or message.id != self._number:
                    raise self._end_by(message)
                self._take(message.body)
        except GeError as error:
            self._end()
            if not self._closed:
                self._ended(error)

    def _end(self) -> None:
        """Let nothing be posted any more, and the writing thread end."""
        with self._changed:
            self._over = True
            self._changed.notify()

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._unsent or self._over)
                if self._over:
                    return
                post = self._unsent[0]
            try:
                self._connection.send(post)
            except GeError:  # the reading thread finds out as well
                return
            with self._changed:
                self._unsent.popleft()

    def _end_by(self, message: Message) -> GeError:
        """Return why a message that is no post ends the stream."""
        if isinstance(message, Failed):
            return error_from_name(message.error, message.message)
        return ProtocolError(f"expected something from service {self._number}, got {message}")
