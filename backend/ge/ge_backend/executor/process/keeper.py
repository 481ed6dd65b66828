"""Keeping a spare executor beside one that serves; every stub does it, some time after it connects.

Not at once: a server that starts has better to do.
"""

from __future__ import annotations

import logging
import subprocess
import threading
import time

from ge_backend.errors import GeError
from ge_backend.executor.process.address import ExecutorAddress
from ge_backend.executor.process.lock import address_lock, remove_lock
from ge_backend.executor.process.owner import has_ended
from ge_backend.executor.process.spare import spare_path, tell
from ge_backend.executor.process.spawn import reach, reap, report_pipe, spawn

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
    except (GeError, OSError) as error:
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
    """Start a spare, and return once it listens or has ended: the lock is ours to give back."""
    more = ["--spare", *(f"--act={act}" for act in address.acts)]
    with report_pipe() as (ready, report_of):
        process = spawn(address, ready=ready, lock=lock, more=more)
        if not report_of(process.pid):
            spare_path(address.socket).unlink(missing_ok=True)
            log.warning("the spare executor for %s ended while it started", address.device)
    return process
