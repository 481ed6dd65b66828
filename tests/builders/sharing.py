"""One executor inside the test's process with a workspace pool, shared by several sessions."""

import socket
import threading
from dataclasses import replace

import numpy as np

from builders.null_models import fleet_of, order, running, write_null
from fakes.null_device import NullDevice
from ge_backend.executor.client.executor_connection import ExecutorConnection
from ge_backend.executor.client.session import Session
from ge_backend.executor.server.executor import Executor
from ge_backend.executor.server.graphs import defects, loaded_graphs


class Sharing:
    """Models of one null device; `close` sees that everything was given back and nothing spoilt."""

    def __init__(self, folder, *, pool_bytes, memory_bytes=2**30, lanes=2, linger_s=60):
        self.device = NullDevice(lanes=lanes, memory_bytes=memory_bytes)
        self.executor = Executor(self.device, linger_s=linger_s, pool_bytes=pool_bytes)
        self._folder, self._sessions = folder, []

    def connect(self):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.executor.accept(theirs)
        return ExecutorConnection(ours)

    def load(self, name, *, priority=2, **given):
        """Return a session with a new model of this name."""
        folder = self._folder / name / "1"
        folder.mkdir(parents=True, exist_ok=True)
        source = write_null(folder / "model.null", **given)
        return self.session(source, priority=priority)

    def session(self, source, *, priority=2):
        session = Session(
            self.connect, source, arena_bytes=4096, on_restart=lambda: None, priority=priority
        )
        self._sessions.append(session)
        return session

    def leave(self, session):
        """Close a session, and wait until the executor has noticed."""
        self._sessions.remove(session)
        fleet_of(session).close()

    def figures(self):
        return self.executor.pool.figures()

    def defects(self):
        return [*self.executor.pool.integrity(), *defects(self.executor)]

    def close(self):
        for session in list(self._sessions):
            self.leave(session)
        self.executor.join()
        self.executor.close()
        assert loaded_graphs(self.executor) == []
        assert self.defects() == []
        assert (self.figures().leased_bytes, self.figures().holders) == (0, {})
        assert self.device.counts.overwritten == 0
        assert self.device.memory().free_bytes + self.figures().size_bytes == (
            self.device.memory().total_bytes
        )


class Runner:
    """Runs in a thread of its own over one session."""

    def __init__(self, session, values, *, unwanted=lambda: False, **terms):
        self.outcomes = []
        self._unwanted = unwanted
        self._session, self._values, self._terms = session, values, terms
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self):
        for value in self._values:
            self._session.reserve(1024)
            placed = order(self._session, value, **self._terms)
            for _, outcome in running(self._session, [placed], lambda _: self._unwanted()):
                kept = {name: np.array(output) for name, output in outcome.outputs.items()}
                self.outcomes.append(replace(outcome, outputs=kept))

    def join(self):
        self._thread.join()
        return self.outcomes
