"""The private folder of the sockets, and the file lock that guards each address in it.

The process that holds the lock may start or retire the executor of that address.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ge_backend.errors import ConfigError

__all__ = ["address_lock", "lock_path", "make_private", "remove_lock"]

ATTEMPTS = 10


def make_private(folder: Path) -> None:
    """Make the folder with mode 0700, or check that no other user can write into an existing one.

    A folder under /tmp has a name that other users can guess: what they put there must not be used.

    Raises:
        ConfigError: it cannot be made, or is not ours alone.
    """
    state = _made(folder)
    writable = state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if state.st_uid != os.getuid() or writable or not stat.S_ISDIR(state.st_mode):
        raise ConfigError(
            f"folder {folder} for the executors' sockets must be a folder of user {os.getuid()} "
            f"that nobody else can write to; it belongs to {state.st_uid} and has mode "
            f"{stat.filemode(state.st_mode)}; remove it or set GE_RUNTIME_DIR to another"
        )


def _made(folder: Path) -> os.stat_result:
    failure: OSError | None = None
    for _ in range(ATTEMPTS):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return folder.lstat()
        except OSError as error:
            failure = error  # a retiring executor may have removed it, but not again and again
    raise ConfigError(
        f"folder {folder} for the executors' sockets cannot be made: {failure}; "
        "set GE_RUNTIME_DIR to one that can"
    ) from failure


@contextlib.contextmanager
def address_lock(address: Path, *, wait: bool = True) -> Iterator[int]:
    """Hold `<address>.lock`, waiting for it unless told not to, and give its descriptor.

    The lock goes with the last copy of the descriptor: a process that inherits one holds the lock
    too, and the kernel releases it however its holders end.

    Raises:
        BlockingIOError: another holds it, and `wait` is off.
        ConfigError: the folder cannot be used.
    """
    mode = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
    descriptor = _locked(lock_path(address), mode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def lock_path(address: Path) -> Path:
    """Return the file that is locked for an address."""
    return address.with_suffix(".lock")


def remove_lock(address: Path) -> None:
    """Remove the lock, which the caller holds, and the folder if it is empty then."""
    lock_path(address).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        address.parent.rmdir()


def _locked(path: Path, mode: int) -> int:
    while True:
        make_private(path.parent)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # a retiring executor removed the folder in between
        held = False
        try:
            fcntl.flock(descriptor, mode)
            # A retiring executor removes the file it locks: what we locked must still be the file.
            held = _is_file(path, descriptor)
        finally:
            if not held:
                os.close(descriptor)
        if held:
            return descriptor


def _is_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
