"""Which executor, where its socket is, and how to start it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ge_backend.errors import ConfigError

__all__ = ["ExecutorAddress", "name_of"]

# Source: unix(7): sun_path has 108 bytes, its terminating zero included.
MAX_SOCKET_PATH_BYTES = 107
PROCESS_NAMESPACE = Path("/proc/self/ns/pid")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorAddress:
    """Which executor, and how to start it.

    Attributes:
        device: `cpu`, `cuda:0`, …: one executor each.
        directory: private folder of the sockets; made with mode 0700.
        owner_pid: the process with which the executor ends: the server. Each server has executors
            of its own, even in one folder.
        python: the interpreter that has the engines.
        library_path: `LD_LIBRARY_PATH` for the executor, which must not see the server's own
            private libraries.
        linger_s: how long the executor stays after its last stub has left.
        pool_bytes: of the device's workspace pool; 0: none.
        lanes: how many runs the device executes at once; 0: as many as suit it.
        run_timeout_s: how long a run may take until the device counts as broken; 0: no limit.
        memory_bytes: at which the executor is replaced; 0: no limit.
        spare_after_s: how long after connecting a spare executor is seen to; None: none is kept.
        imports: what a spare preloads for the model that is opened; see `device/preload.py`.
        apart: names an executor that one model has for itself, because its engine opens the
            device; "" is the executor that all others share.
        environment: variables that it gets beside the server's.
    """

    device: str
    directory: Path
    owner_pid: int
    python: str
    library_path: str
    linger_s: float = 3.0
    pool_bytes: int = 0
    lanes: int = 0
    run_timeout_s: float = 0.0
    memory_bytes: int = 0
    spare_after_s: float | None = None
    imports: tuple[str, ...] = ()
    apart: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def socket(self) -> Path:
        """The address of the executor's socket, absolute: the executor has another directory.

        Raises:
            ConfigError: the folder's name leaves no room for it.
        """
        name = re.sub(r"[^A-Za-z0-9]", "-", f"{self.device}{self.apart and '-'}{self.apart}")
        path = self.directory.absolute() / f"{name}-{name_of(self.owner_pid)}.sock"
        length = len(bytes(path))
        if length > MAX_SOCKET_PATH_BYTES:
            raise ConfigError(
                f"socket address {path} has {length} bytes, the system takes "
                f"{MAX_SOCKET_PATH_BYTES}; set GE_RUNTIME_DIR to a folder with a shorter name"
            )
        return path


def name_of(pid: int) -> str:
    """Return what names a process of ours also where containers share a folder.

    Each container may have processes of the same numbers, so the inode of what the number holds in
    stands beside it, in hexadecimal. Source: pid_namespaces(7), namespaces(7).
    """
    try:
        space = PROCESS_NAMESPACE.stat().st_ino
    except OSError:  # no /proc, or a kernel that was built without them
        return str(pid)
    return f"{pid}-{space:x}"
