"""From a model's configuration to a session with its device's executor."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

from ge_backend.config import MachineConfig, ModelConfig
from ge_backend.device.base import GraphSource
from ge_backend.device.model_file import find_model_file
from ge_backend.executor.launch import ExecutorAddress, connect, connect_inline
from ge_backend.executor.session import Session

__all__ = ["open_session"]

ARENA_BYTES = 1 << 20


def open_session(config: ModelConfig, *, on_restart: Callable[[], None]) -> Session:
    """Load the model into its device's executor, starting that if it does not run yet.

    The server is this process's parent (Triton starts its stubs itself), and the executor ends
    with it.

    Raises:
        ModelError: there is no model file, or it cannot be loaded.
        DeviceUnavailable: the device or its engine is not there.
    """
    path = find_model_file(config.directory, config.filename, config.device)
    source = GraphSource.of(
        path,
        precision=config.precision,
        threads=config.threads,
        options=config.options,
    )
    if config.executor == "inline":
        link = functools.partial(connect_inline, config.device)
    else:
        owner_pid = os.getppid()
        machine = MachineConfig.read(os.environ, owner_pid=owner_pid)
        address = ExecutorAddress(
            device=config.device,
            directory=machine.runtime_dir,
            owner_pid=owner_pid,
            python=machine.python,
            library_path=machine.library_path,
            linger_s=machine.linger_s,
        )
        link = functools.partial(connect, address)
    return Session(link, source, arena_bytes=ARENA_BYTES, on_restart=on_restart)
