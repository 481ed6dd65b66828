"""Starting the processes of an address, in a clean environment, and what is left when they end."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath

import ge_backend
from ge_backend.errors import DeviceUnavailable
from ge_backend.executor.client.watch import STARTING_IDLE_S, Watch
from ge_backend.executor.process.address import ExecutorAddress
from ge_backend.executor.process.lock import address_lock, remove_lock

__all__ = [
    "SEARCH_PATHS",
    "arguments_of",
    "environment_of",
    "kept_paths",
    "reach",
    "reap",
    "remove_left",
    "report_pipe",
    "spawn",
]

# What glibc, from 2.35 on, asks the kernel for by: pages of 2 MiB for what is large, as weights
# are, where the system leaves that to those who ask (`transparent_hugepage/enabled`: `madvise`).
# https://www.gnu.org/software/libc/manual/html_node/Memory-Allocation-Tunables.html
HUGE_PAGES = "glibc.malloc.hugetlb"
# Errors that say nothing of the interpreter: descriptors, processes, memory are used up.
SPENT = {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM}
SEARCH_PATHS = ("LD_LIBRARY_PATH", "PYTHONPATH")
# What `set_env.sh` says about where CANN is; a folder of this name is the installer's default.
HOMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_NNAE_PATH", "ASCEND_NNRT_PATH")
FOLDER = "Ascend"
# Folders of the driver, of CUDA (`cuda`, `cuda-12.4`), and of the driver under WSL.
CUDA_FOLDERS = re.compile(r"nvidia|cuda(-[\d.]+)?|wsl")


def reach(path: Path) -> socket.socket | None:
    """Return a connection to the process that listens there; None if none does.

    Raises:
        DeviceUnavailable: what is there cannot be used.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.connect(str(path))
    except OSError as error:
        sock.close()
        if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
            return None
        raise DeviceUnavailable(f"the executor's socket {path} cannot be used: {error}") from error
    return sock


def arguments_of(address: ExecutorAddress) -> list[str]:
    """Return what an executor is told, but for the descriptors that it inherits."""
    return [
        f"--device={'cpu' if address.apart else address.device}",
        f"--socket={address.socket}",
        f"--owner={address.owner_pid}",
        f"--linger={address.linger_s}",
        f"--workspace-pool={address.pool_bytes}",
        f"--lanes={address.lanes}",
        f"--run-timeout={address.run_timeout_s}",
        f"--memory={address.memory_bytes}",
    ]


@contextlib.contextmanager
def report_pipe() -> Iterator[tuple[int, Callable[[int], str]]]:
    """Yield the descriptor for a starting process's report, and a function that waits for that.

    The function is called once, with the id of the process that has the descriptor, and returns ""
    if the process ended without a report. It ends one that hangs, or cannot be watched: the process
    that starts another holds the lock of its address meanwhile, and others wait for that.
    """
    reading, writing = os.pipe()
    with os.fdopen(reading) as ready, os.fdopen(writing, "w") as theirs:

        def report_of(pid: int) -> str:
            theirs.close()  # or the pipe would not end with the process
            try:
                watch = Watch(pid, most_idle_s=STARTING_IDLE_S)
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                ready.read()  # until it has ended: the next one is to be alone on the device
                raise
            with contextlib.closing(watch):
                return ready.read()

        yield writing, report_of


def spawn(
    address: ExecutorAddress, *, ready: int, lock: int, more: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start a process that reports on `ready` and keeps the lock until it listens.

    Its output goes where the server's goes. It has its own session, so that a terminal's ^C, meant
    for the server, lets it finish; it ends by itself when the server does.

    Raises:
        DeviceUnavailable: the interpreter does not start.
        OSError: this process may not start another now, whichever it is.
    """
    python = address.python or sys.executable
    command = [
        python,
        "-m",
        "ge_backend.executor.process.main",
        *arguments_of(address),
        f"--ready={ready}",
        f"--lock={lock}",
        *more,
    ]
    try:
        return subprocess.Popen(
            command,
            env=environment_of(address, os.environ),
            cwd=address.directory,
            stdin=subprocess.DEVNULL,
            pass_fds=[ready, lock],
            start_new_session=True,
        )
    except OSError as error:
        if error.errno in SPENT:
            raise
        raise DeviceUnavailable(
            f"the executor's interpreter {python!r} does not start: {error}; "
            "set GE_PYTHON to a Python that has the engine"
        ) from error


def environment_of(address: ExecutorAddress, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the server's environment without its private libraries, with only our own package.

    The server's PYTHONPATH is for its stubs' Python, which need not be the executor's. Of both only
    what the device's own libraries are found by is kept. torch refuses to import where torch_npu is
    installed without CANN unless autoload is off. Memory comes in huge pages, unless the server's
    environment says otherwise: ONNX Runtime's runs of an encoder take a little less CPU time
    then (`python -m tools.probes.bench_engines`, with and without it in GLIBC_TUNABLES).
    """
    environment = dict(inherited)
    kept = {name: kept_paths(address.device, inherited, name) for name in SEARCH_PATHS}
    for name in ("LD_LIBRARY_PATH", "PYTHONHOME"):
        environment.pop(name, None)
    libraries = [*filter(None, [address.library_path]), *kept["LD_LIBRARY_PATH"]]
    if libraries:
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(libraries)
    package = str(Path(ge_backend.__file__).resolve().parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join([package, *kept["PYTHONPATH"]])
    # No working directory on sys.path (from Python 3.11 on; before, it is our private folder).
    environment["PYTHONSAFEPATH"] = "1"
    environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    tunables = environment.get("GLIBC_TUNABLES", "")
    if HUGE_PAGES not in tunables:
        environment["GLIBC_TUNABLES"] = ":".join(filter(None, [tunables, f"{HUGE_PAGES}=1"]))
    return environment | dict(address.environment)


def reap(process: subprocess.Popen[bytes], address: ExecutorAddress) -> None:
    """Reap the executor whenever it ends, and remove what it could not if it was killed.

    An unreaped child stays a zombie as long as this process lives.
    """
    process.wait()
    if address.socket.exists():
        remove_left(address)


def remove_left(address: ExecutorAddress) -> None:
    """Remove an address's socket and lock, unless a process listens there or has the lock."""
    with contextlib.suppress(BlockingIOError), address_lock(address.socket, wait=False):
        successor = reach(address.socket)
        if successor is None:
            address.socket.unlink(missing_ok=True)
            remove_lock(address.socket)
        else:
            successor.close()


def kept_paths(device: str, environment: Mapping[str, str], variable: str) -> list[str]:
    """Return the entries of a search path that a device's executor needs, in order.

    The server's LD_LIBRARY_PATH holds private libraries that break other programs, and its
    PYTHONPATH is for another Python. But CANN is only found through both: its `set_env.sh` puts it
    there. And in NVIDIA's containers the driver and CUDA's compatibility libraries may be found by
    the former only. Source: CANN's `set_env.sh`, and its installation guide for the places; the
    Dockerfiles of NVIDIA's CUDA images, which set LD_LIBRARY_PATH to
    /usr/local/nvidia/lib:/usr/local/nvidia/lib64.

    Args:
        device: `cpu`, `cuda:0`, `npu:0`.
        environment: the server's.
        variable: one of `SEARCH_PATHS`.
    """
    entries = [entry for entry in environment.get(variable, "").split(os.pathsep) if entry]
    kind = device.partition(":")[0]
    if kind == "npu":
        homes = [PurePath(environment[name]) for name in HOMES if environment.get(name)]
        return [entry for entry in entries if _is_cann(PurePath(entry), homes)]
    if kind == "cuda" and variable == "LD_LIBRARY_PATH":
        return [entry for entry in entries if _is_cuda(PurePath(entry))]
    return []


def _is_cann(path: PurePath, homes: list[PurePath]) -> bool:
    return FOLDER in path.parts or any(path.is_relative_to(home) for home in homes)


def _is_cuda(path: PurePath) -> bool:
    return any(CUDA_FOLDERS.fullmatch(part) for part in path.parts)
