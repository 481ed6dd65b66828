"""Executor processes for tests: every test ends with none of them left."""

import contextlib
import os
import signal
import subprocess
import sys

import psutil
import pytest

from builders.null_models import address_in, comes_true, fleet_of
from ge_backend.executor.client.session import Session
from ge_backend.executor.process.launch import connect

ENTRY = "ge_backend.executor.process.main"


class Machine:
    """Executors, sessions and owners in one runtime folder."""

    def __init__(self, folder):
        self.folder = folder
        self.restarts = 0
        self._sessions, self._processes = [], []

    def address(self, **changes):
        return address_in(self.folder, **changes)

    def connect(self, **changes):
        return connect(self.address(**changes))

    def session(self, source, *, arena_bytes=4096, on_restart=None, **changes):
        session = Session(
            lambda: self.connect(**changes),
            source,
            arena_bytes=arena_bytes,
            on_restart=on_restart or self._restarted,
        )
        self._sessions.append(session)
        return session

    def spawn(self, *arguments, **options):
        process = subprocess.Popen(arguments, **options)
        self._processes.append(process)
        return process

    def python(self, code, *arguments, **options):
        return self.spawn(sys.executable, "-c", code, *arguments, **options)

    def executors(self):
        """Return the executor processes of this folder, zombies not among them."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if ENTRY in words and any(str(self.folder) in word for word in words):
                found.append(process)
        return found

    def spares(self):
        """Return those that were started as spares, whatever has become of them."""
        return [process for process in self.executors() if "--spare" in process.cmdline()]

    def pid(self):
        """Return the pid of the one executor there is."""
        (process,) = self.executors()
        return process.pid

    def kill(self, number=signal.SIGKILL):
        os.kill(self.pid(), number)

    def is_empty(self):
        """Return whether no executor runs and the folder is gone, with all sockets and locks."""
        return not self.executors() and not self.folder.exists()

    def _restarted(self):
        self.restarts += 1

    def close(self):
        for session in self._sessions:
            fleet_of(session).close()
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path / "run")
    yield machine
    machine.close()
    left = comes_true(machine.is_empty, 10)
    executors = machine.executors()
    for process in executors:
        process.kill()
    assert executors == []
    assert left, f"left behind: {list(machine.folder.iterdir())}"
    assert comes_true(lambda: zombies() == []), "executors were not reaped"


def zombies():
    """Return this process's children that ended and were not reaped."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # reaped meanwhile
            if child.status() == psutil.STATUS_ZOMBIE:
                found.append(child)
    return found
