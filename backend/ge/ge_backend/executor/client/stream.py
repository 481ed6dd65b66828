"""A stub's end of a service that answers when it likes: a thread takes what it posts."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from ge_backend.errors import GeError, ProtocolError, error_from_name
from ge_backend.executor.client.link import Link
from ge_backend.executor.protocol.messages import Failed, OpenService, Post, ServiceOpened

__all__ = ["ServiceStream"]


class ServiceStream:
    """A service that is open, on a connection of its own.

    Args:
        link: becomes the stream's; closed if the service cannot be opened.
        kind: as in `OpenService`.
        key: as in `OpenService`.
        take: called with each body that the service posts, in order, by one thread.
        ended: called last by that thread, once: with why the stream is of no use any more, which is
            ExecutorLost where the executor is gone. Not called after `close`.

    Attributes:
        told: what the service has said of itself.
        outstanding: what the executor shows of itself.

    Raises:
        GeError: what the executor answered.
    """

    def __init__(
        self,
        link: Link,
        *,
        kind: str,
        key: str,
        take: Callable[[bytes], None],
        ended: Callable[[GeError], None],
    ) -> None:
        self._link = link
        self.outstanding = link.outstanding
        self._number = link.next_id()
        self._take = take
        self._ended = ended
        self._closed = False
        self._sending = threading.Lock()
        try:
            asked = OpenService(id=self._number, kind=kind, key=key)
            self.told = link.ask(asked, ServiceOpened).spec
        except BaseException:
            link.close()
            raise
        self._thread = threading.Thread(target=self._read, name=f"read {kind}", daemon=True)
        self._thread.start()

    def post(self, body: bytes) -> None:
        """Send something to the service, from any thread.

        Raises:
            ExecutorLost: the executor is gone; `ended` is called as well.
            ProtocolError: the body is too long.
        """
        with self._sending:
            self._link.send(Post(id=self._number, body=body))

    def close(self) -> None:
        """Leave the service; it drops what it was asked for. Not from within `take`."""
        self._closed = True
        self._link.shut()
        self._thread.join()
        self._link.close()

    def _read(self) -> None:
        try:
            while True:
                self._take(self._received())
        except GeError as error:
            if not self._closed:
                self._ended(error)

    def _received(self) -> bytes:
        message, descriptors = self._link.inbox.receive()
        for descriptor in descriptors:
            os.close(descriptor)
        if isinstance(message, Failed):
            raise error_from_name(message.error, message.message)
        if not isinstance(message, Post) or message.id != self._number:
            raise ProtocolError(f"expected something from service {self._number}, got {message}")
        return message.body
