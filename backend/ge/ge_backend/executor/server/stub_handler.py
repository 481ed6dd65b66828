"""One stub's connection, as the executor sees it: it reads messages and routes them to services.

A thread per connection reads them; loading happens in it, so one stub's slow load does not hold up
another's requests.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from ge_backend.errors import ExecutorLost, OutOfMemory, ProtocolError
from ge_backend.executor.protocol import messages, wire
from ge_backend.executor.protocol.arena import Segment
from ge_backend.executor.protocol.descriptors import close_all, duplicate
from ge_backend.executor.protocol.peer import peer_pid
from ge_backend.executor.server.graphs import GraphClient
from ge_backend.executor.server.lanes import result_or_error
from ge_backend.executor.server.outgoing import Outgoing, Reply
from ge_backend.executor.server.services import Member

if TYPE_CHECKING:
    from ge_backend.executor.server.executor import Executor

__all__ = ["StubHandler"]

log = logging.getLogger(__name__)


class _NotHeld:
    """In place of the member that a message names, and there is not."""

    def receive(self, message: Any) -> NoReturn:
        if isinstance(message, messages.Post):
            raise ProtocolError(f"service {message.id} was not opened by this connection")
        raise ProtocolError.not_held(message.graph)


_NOT_HELD = _NotHeld()


class StubHandler:
    """One stub, a process `pid`: the services it is a member of.

    Attributes:
        graphs: those that it holds, by number.
        arenas: those that it has shown us, likewise.
        outgoing: the way to it.
    """

    def __init__(self, sock: socket.socket, executor: Executor) -> None:
        self.pid = peer_pid(sock)
        self.outgoing = Outgoing(sock, self.pid)
        self.arenas: dict[int, Segment] = {}
        self.graphs: dict[int, GraphClient] = {}
        self._inbox = wire.Inbox(sock)
        self._executor = executor
        self._posted_to: dict[int, Member] = {}  # other services, by the message that opened each
        self._leaving = contextlib.ExitStack()

    def serve(self) -> None:
        """Answer messages until the stub leaves."""
        while self.serve_one():
            pass

    def serve_one(self) -> bool:
        """Answer the next message; when the stub has left, give back what it held; return False."""
        left = True
        try:
            message, descriptors = self._inbox.receive()
            try:
                self._answer(message, descriptors)
            finally:
                if descriptors:
                    close_all(descriptors)
            left = False
        except ExecutorLost:
            pass  # the stub is gone: the normal end of a connection
        except ProtocolError as error:
            log.error("a connection is dropped: %s", error)
            self.outgoing.answer(0, error, wait=True)
        finally:
            if left:
                try:
                    self._close()
                finally:
                    self._executor.forget(self)
        return not left

    def _close(self) -> None:
        self.outgoing.close()
        self._executor.lanes.cancel(self)
        self._leaving.close()
        # Now, and not when circles are collected: each arena has a descriptor, the inbox memory.
        for held in (self.arenas, self.graphs, self._posted_to):
            held.clear()
        del self._inbox

    def _answer(self, message: messages.Message, descriptors: tuple[int, ...]) -> None:
        """Bring a message to whom it is for, and answer what is answered at once.

        A stub that reads no answers is not read; but for runs, it may itself be waiting to send us
        more of them.
        """
        take: Callable[[Any], messages.Message | Reply | None]
        if isinstance(message, messages.AboutGraph):
            take = self.graphs.get(message.graph, _NOT_HELD).receive
        elif isinstance(message, messages.Post):
            take = self._posted_to.get(message.id, _NOT_HELD).receive
        else:
            take = partial(self._control, descriptors)
        answer = result_or_error(take, self._executor.on_fault, message)
        if answer is not None:
            in_lanes = isinstance(message, messages.Run | messages.Prepare)
            self.outgoing.answer(message.id, answer, wait=not in_lanes)

    def _control(
        self, descriptors: tuple[int, ...], message: messages.Message
    ) -> messages.Message | Reply | None:
        """Do what is asked of the connection itself, or of the executor."""
        executor = self._executor
        own: dict[type, Callable[[Any], messages.Message | Reply | None]] = {
            messages.Cancel: lambda asked: executor.lanes.cancel(self, asked.run),
            messages.Load: self._open,
            messages.OpenService: self._open,
            messages.Attach: lambda asked: self._attach(asked, descriptors),
            messages.Detach: self._detach,
            messages.Hello: self._welcome,
            messages.Inspect: lambda asked: executor.report(asked.id),
            messages.HistoryRequest: lambda asked: executor.timeline.history(asked.id, asked.after),
        }
        if (answer := own.get(type(message))) is None:
            raise ProtocolError(f"{type(message).__name__} is not a message for an executor")
        return answer(message)

    def _open(self, message: messages.Load | messages.OpenService) -> messages.Message:
        """Join a service; one that was joined so before is not joined again."""
        services = self._executor.services
        member = services.join(message, self)
        joined: Member
        if isinstance(member, GraphClient):
            joined = self.graphs.setdefault(member.answer.graph, member)
        else:
            joined = self._posted_to.setdefault(message.id, member)
        if joined is member:
            self._leaving.callback(services.leave, message, member)
        else:
            services.leave(message, member)
        return member.answer

    def _attach(self, message: messages.Attach, descriptors: tuple[int, ...]) -> messages.Message:
        if self._inbox.dropped:
            raise OutOfMemory("no descriptor is left for an arena; raise RLIMIT_NOFILE")
        if len(descriptors) != 1:
            raise ProtocolError(f"Attach came with {len(descriptors)} descriptors, not 1")
        self.arenas[message.arena] = Segment.map(descriptors[0], message.nbytes)
        return messages.Ok(id=message.id)

    def _detach(self, message: messages.Detach) -> messages.Message:
        self.arenas.pop(message.arena, None)
        return messages.Ok(id=message.id)

    def _welcome(self, message: messages.Hello) -> Reply:
        if message.version != messages.VERSION:
            raise ProtocolError(
                f"the stub speaks protocol {message.version}, the executor {messages.VERSION}; "
                "restart the server after an update of the backend"
            )
        device = self._executor.device
        welcome = messages.Welcome(
            id=message.id,
            version=messages.VERSION,
            device=device.name,
            lanes=device.lanes,
            pid=os.getpid(),
        )
        return welcome, duplicate(self._executor.outstanding.descriptor)
