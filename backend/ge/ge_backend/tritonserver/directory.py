"""One server's private folder, and finding everything that belongs to it."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ServerDirectory", "processes_of", "shared_memory_of"]

PREFIX = "ge-server-"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory is, by shm_overview(7)
# An AF_UNIX address has 108 bytes; the sockets' names need some of them.
LONGEST_PARENT = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerDirectory:
    """A folder of mode 0700, locked as long as its maker or any process of the server lives.

    Attributes:
        path: the folder; its name is also the prefix of the server's shared-memory regions.
        lock: descriptor of the lock, inherited by the server and its stubs.
    """

    path: Path
    lock: int

    @classmethod
    def make(cls) -> ServerDirectory:
        """Make one, after clearing away those of servers whose maker was killed."""
        parent = Path(tempfile.gettempdir())
        if len(str(parent)) > LONGEST_PARENT:
            parent = Path("/tmp")  # noqa: S108 - mkdtemp makes a private folder in it
        _sweep(parent)
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        for folder in ("backends", "cwd", "run"):
            (path / folder).mkdir(mode=0o700)
        lock = os.open(path / "lock.new", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        (path / "lock.new").rename(path / "lock")  # so nobody finds it unlocked
        return cls(path=path, lock=lock)

    @property
    def backends(self) -> Path:
        """For the assembled backend directory."""
        return self.path / "backends"

    @property
    def cwd(self) -> Path:
        """Empty: a `model.py` in the server's working directory would hijack every backend."""
        return self.path / "cwd"

    @property
    def run(self) -> Path:
        """For the executors' sockets: `GE_RUNTIME_DIR`, which marks the server's processes."""
        return self.path / "run"

    @property
    def shm_prefix(self) -> str:
        """How the names of this server's shared-memory regions begin."""
        return f"{self.path.name}_"

    def remove(self) -> None:
        """Remove the folder and the shared-memory regions; the server is gone by then."""
        _remove(self.path)
        os.close(self.lock)


def processes_of(run: Path) -> list[int]:
    """Return the processes that carry this `GE_RUNTIME_DIR`: server, stubs, executors, theirs.

    Executors have sessions of their own, so no process group finds them all; the environment does.
    """
    mark = f"GE_RUNTIME_DIR={run}".encode()
    entries = [path for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [int(path.name) for path in entries if mark in _environment(path)]


def shared_memory_of(prefix: str) -> list[Path]:
    """Return the shared-memory regions whose names begin so."""
    return sorted(SHARED_MEMORY.glob(f"{prefix}*"))


def _environment(process: Path) -> list[bytes]:
    try:
        return (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return []  # it ended meanwhile, or is somebody else's


def _sweep(parent: Path) -> None:
    """Remove our folders whose lock nobody holds.

    A lock, not a process id: in another container that shares this folder ids mean other processes.
    """
    for path in parent.glob(f"{PREFIX}*"):
        try:
            lock = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # somebody else's, or being made or removed
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(path)
        except BlockingIOError:
            pass  # its server lives
        finally:
            os.close(lock)


def _remove(path: Path) -> None:
    for region in shared_memory_of(f"{path.name}_"):
        region.unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)
