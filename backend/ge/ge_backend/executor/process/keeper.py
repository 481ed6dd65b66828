"""Keeping a spare executor beside one that serves; every stub does it, some time after it connects.

Not at once: a server that starts has better to do.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time

from ge_backend.errors import GeError
from ge_backend.executor.process.address import ExecutorAddress
from ge_backend.executor.process.lock import address_lock, remove_lock
from ge_backend.executor.process.owner import has_ended
from ge_backend.executor.process.spare import tell
from ge_backend.executor.process.spawn import reach, reap, spawn

__all__ = ["keep_spare"]

log = logging.getLogger(__name__)


def keep_spare(address: ExecutorAddress) -> None:
    """Wait, and have a spare rehearse what this stub's model needs; start one if there is none.

    Without an executor there is none to stand in for, and nothing is done.
    """
    time.sleep(address.spare_after_s or 0.0)
    try:
        if address.directory.is_dir() and not has_ended(address.owner_pid):
            with address_lock(address.socket) as lock:
                _keep(address, lock)
    except GeError as error:
        log.warning("there is no spare executor for %s: %s", address.device, error)


def _keep(address: ExecutorAddress, lock: int) -> None:
    executor = reach(address.socket)
    if executor is None:
        remove_lock(address.socket)  # which we hold: nothing else may be left of the address
        return
    executor.close()
    if tell(address.socket, address.acts):
        return
    process = _started(address, lock)
    threading.Thread(target=reap, args=(process, address), name="reap", daemon=True).start()


def _started(address: ExecutorAddress, lock: int) -> subprocess.Popen[bytes]:
    """Start a spare, and return once it listens: the lock is ours to give back then."""
    reading, writing = os.pipe()
    try:
        more = ["--spare", *(f"--act={act}" for act in address.acts)]
        process = spawn(address, ready=writing, lock=lock, more=more)
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    with os.fdopen(reading) as ready:
        ready.read()
    return process
