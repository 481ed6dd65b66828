"""The files of a model as they were when it was loaded, for the executor that comes after a crash.

They lie in a folder beside the executors' sockets, one for all stubs that serve the same files.
Each of these stubs has a shared lock on the folder, which the kernel releases however the stub
ends. The last stub to release its lock removes the folder; when the server has ended, its executor
does. What is left where all of them were killed, the next server removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ge_backend.errors import GeError
from ge_backend.executor.client.watch import still_runs
from ge_backend.executor.process.address import name_of
from ge_backend.executor.process.lock import address_lock, make_private, remove_lock
from ge_backend.model.files.copying import copy_files
from ge_backend.model.files.model_file import stamp_of

__all__ = ["KeptFiles", "kept_root"]

log = logging.getLogger(__name__)


def kept_root(runtime_dir: Path, owner_pid: int) -> Path:
    """Return the folder of what is kept for the models of one server."""
    return runtime_dir / f"kept-{name_of(owner_pid)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFiles:
    """A copy of a model's files.

    Attributes:
        folder: holds them as their own folder does.
        lock: descriptor of the folder, with the lock.
    """

    folder: Path
    lock: int

    @classmethod
    def of(
        cls,
        original: Path,
        files: Callable[[], Sequence[Path]],
        stamp: str,
        *,
        root: Path,
        most_bytes: int,
    ) -> KeptFiles | None:
        """Return a copy of what was loaded; None, and a warning, where there can be none.

        Args:
            original: the folder of the files.
            files: returns those that the stamp was taken of; they have just been loaded.
            stamp: see `stamp_of`.
            root: see `kept_root`.
            most_bytes: larger ones are linked and not copied.
        """
        name = hashlib.sha256(f"{original}\n{stamp}".encode()).hexdigest()[:16]
        folder = root / name
        if not root.exists():
            _remove_abandoned(root)
        try:
            with address_lock(folder):
                if not folder.is_dir():
                    _copy(original, files, stamp, folder, most_bytes)
                lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                fcntl.flock(lock, fcntl.LOCK_SH)
        except (OSError, GeError) as error:
            log.warning(
                "the files in %s are not kept (%s): should they be replaced by something that "
                "cannot be loaded, the model is away once its executor ends",
                original,
                error,
            )
            return None
        return cls(folder=folder, lock=lock)

    def close(self) -> None:
        """Release the copy; its last holder removes it."""
        with address_lock(self.folder):
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(self.folder)
                remove_lock(self.folder)
            except BlockingIOError:
                pass  # others hold it
            finally:
                os.close(self.lock)


def _remove_abandoned(root: Path) -> None:
    """Remove the files that servers which have ended kept, except where a process holds them.

    Args:
        root: of a server that begins; the others' are beside it, or in a run folder beside its own.
    """
    _, *server = root.name.split("-")
    if len(server) == 1:  # without /proc it cannot be seen whether a server has ended
        return
    runs = {root.parent, *root.parent.parent.glob(f"ge-backend-{os.getuid()}-*")}
    for other in [other for run in runs for other in run.glob(f"kept-*-{server[1]}")]:
        with contextlib.suppress(OSError, GeError, ValueError):
            if still_runs(int(other.name.split("-")[1])):
                continue
            for folder in (other.parent, other):
                make_private(folder)
            for folder in filter(Path.is_dir, list(other.iterdir())):
                lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                KeptFiles(folder=folder, lock=lock).close()
            if other.parent != root.parent:
                other.parent.rmdir()


def _copy(
    original: Path,
    files: Callable[[], Sequence[Path]],
    stamp: str,
    folder: Path,
    most_bytes: int,
) -> None:
    """Make the folder, complete from the moment on at which it is there."""
    new = _part(folder)
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(mode=0o700)
    try:
        copy_files(files(), original, new, most_bytes)
        if stamp_of(files()) != stamp:
            raise OSError("they have changed since they were loaded")
        new.rename(folder)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _remove(folder: Path) -> None:
    """Remove the folder, complete up to the moment from which on it is not there."""
    old = _part(folder)
    shutil.rmtree(old, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.rename(old)
    shutil.rmtree(old, ignore_errors=True)


def _part(folder: Path) -> Path:
    """Return where a copy lies that is not complete, or not any more; it is never loaded from."""
    return folder.with_suffix(".part")
