"""One server's private folder, and finding everything that belongs to it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shlex
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ge_backend.errors import ServerError
from ge_backend.executor.process.host_processes import processes

__all__ = ["ServerDirectory", "processes_of", "shared_memory_of"]

PREFIX = "ge-server-"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory is, by shm_overview(7)
# An AF_UNIX address has 108 bytes; the sockets' names need some of them.
LONGEST_PARENT = 60
# What begins the names of a server's regions: its folder's name, as `mkdtemp` makes it.
_NAME = re.compile(rf"{PREFIX}[a-z0-9_]{{8}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerDirectory:
    """A folder of mode 0700, locked as long as its maker or any process of the server lives.

    Attributes:
        path: the folder; its name is also the prefix of the server's shared-memory regions.
        locks: descriptors of its lock and of one beside its regions, inherited by the server and
            its stubs: the folder may be away while they live, and the other way round, where
            containers share one of the two. And of the folder itself, which is locked, too: what
            removes old files from temporary folders passes over it then. Source: tmpfiles.d(5).
    """

    path: Path
    locks: tuple[int, int, int]

    @classmethod
    def make(cls) -> ServerDirectory:
        """Make one, after clearing away those of servers whose maker was killed.

        Raises:
            ServerError: no program may be run from the folder that it would be in.
            OSError: it cannot be written.
        """
        parent = Path(tempfile.gettempdir())
        # The host gives the path to a shell unquoted, and its stub's Python may know ASCII alone.
        if len(str(parent)) > LONGEST_PARENT or shlex.quote(str(parent)) != str(parent):
            parent = Path("/tmp")  # noqa: S108 - mkdtemp makes a private folder in it
        if os.statvfs(parent).f_flag & os.ST_NOEXEC:
            raise ServerError(
                f"the server's stub is run from {parent}, which is mounted noexec; mount it exec; "
                "TMPDIR names another folder"
            )
        _sweep(parent)
        _sweep_regions(parent)
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        try:
            for folder in ("backends", "cwd", "run"):
                (path / folder).mkdir(mode=0o700)
            lock, beside = _locked(path / "lock"), _locked(_lock_of(path.name))
            whole = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(whole, fcntl.LOCK_SH)
        except OSError:
            _remove(path)
            raise
        return cls(path=path, locks=(lock, beside, whole))

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
        for lock in self.locks:
            os.close(lock)


def processes_of(run: Path) -> list[int]:
    """Return the processes that carry this `GE_RUNTIME_DIR`: server, stubs, executors, theirs.

    Executors have sessions of their own, so no process group finds them all; the environment does.
    """
    mark = f"GE_RUNTIME_DIR={run}".encode()
    return [
        int(path.name) for path in processes() if mark in _content(path / "environ").split(b"\0")
    ]


def shared_memory_of(prefix: str) -> list[Path]:
    """Return the shared-memory regions whose names begin so."""
    return sorted(SHARED_MEMORY.glob(f"{prefix}*"))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # the process has ended meanwhile, or is another user's


def _lock_of(name: str) -> Path:
    """Return the lock beside the regions of the server whose folder has this name."""
    return SHARED_MEMORY / f"{name}.lock"


def _locked(path: Path) -> int:
    """Make a file that is locked; it is never seen unlocked."""
    new = path.with_name(f"{path.name}.new")
    lock = os.open(new, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    new.rename(path)
    return lock


def _is_free(path: Path) -> bool:
    """Whether there is a lock of ours, and it is not held.

    A lock, not a process id: in another container that shares the folder ids mean other processes.
    """
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False  # another user's, or being made or removed
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False  # its server lives
    finally:
        os.close(lock)
    return True


def _sweep(parent: Path) -> None:
    """Remove our folders whose lock is not held, with their regions."""
    for path in parent.glob(f"{PREFIX}*"):
        if _is_free(path / "lock"):
            _remove(path)


def _sweep_regions(parent: Path) -> None:
    """Remove regions whose folder is gone, and whose server is.

    One that a dying stub has made once its server's were removed has no lock; it is removed if no
    process has it.
    """
    found = (_NAME.match(path.name) for path in SHARED_MEMORY.glob(f"{PREFIX}*"))
    for name in {match.group() for match in found if match}:
        lock = _lock_of(name)
        dead = _is_free(lock) if lock.exists() else not _is_used(name)
        if dead and not (parent / name).exists():
            _remove(parent / name)


def _is_used(name: str) -> bool:
    """Whether some process that can be seen has a region mapped, or names one as stubs do."""
    mark = f"{name}_".encode()
    return any(
        mark in content
        for process in processes()
        for content in (_content(process / "maps"), _content(process / "cmdline"))
    )


def _remove(path: Path) -> None:
    for region in (*shared_memory_of(f"{path.name}_"), _lock_of(path.name)):
        with contextlib.suppress(OSError):  # gone, or another user's
            region.unlink()
    shutil.rmtree(path, ignore_errors=True)
