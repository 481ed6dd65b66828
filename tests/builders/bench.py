"""Executors inside the test's process, and sessions with them."""

import socket

from builders.null_models import connected_to, fleet_of
from fakes.null_device import NullDevice
from ge_backend.executor.client.session import Session
from ge_backend.executor.server.graphs import loaded_graphs


class Bench:
    """Executors of one device, one per connection, and sessions with them."""

    def __init__(self, source, index=0):
        self.source = source
        self.device = NullDevice(index=index)
        self.executors, self.connections, self.sessions = [], [], []
        self.restarts = 0
        self.refuse = None

    def connect(self):
        if self.refuse is not None:
            raise self.refuse
        executor, connection = connected_to(self.device)
        self.executors.append(executor)
        self.connections.append(connection)
        return connection

    def session(self, source=None, connect=None):
        session = Session(
            connect or self.connect,
            source or self.source,
            arena_bytes=4096,
            on_restart=self.restarted,
        )
        self.sessions.append(session)
        return session

    def restarted(self):
        self.restarts += 1

    def cut(self):
        """Cut the newest connection, as a dying executor does."""
        self.connections[-1].sock.shutdown(socket.SHUT_RDWR)

    def close(self):
        for session in self.sessions:
            fleet_of(session).close()
        for executor in self.executors:
            executor.join()
            executor.close()
            assert loaded_graphs(executor) == []
