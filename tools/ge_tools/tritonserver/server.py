"""A real tritonserver as a context manager: running inside, gone without a trace outside."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import site
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import final

from ge_backend.errors import ServerError
from ge_backend.executor.process.reap_orphans import wait_for_end
from ge_openai.address import host_port
from ge_tools.tritonserver import parent_death
from ge_tools.tritonserver.abilities import Abilities
from ge_tools.tritonserver.api import ServerApi
from ge_tools.tritonserver.assemble import assemble_backends
from ge_tools.tritonserver.directory import ServerDirectory, processes_of
from ge_tools.tritonserver.installation import ServerInstallation
from ge_tools.tritonserver.options import ServerOptions

__all__ = ["TritonServer"]

# No process of a server is seen this many times in a row before it counts as gone with its family.
SEEN_GONE = 3
POLL_S = 0.05
LOOK_S = 1.0
# Beyond the exit timeout: unloading takes a second per model, and executors notice within one.
GRACE_S = 10.0
FAMILY_GRACE_S = 5.0
TAIL_LINES = 40
# What names files, and what names programs, which without a slash are looked for on PATH.
FILES = ("GE_CACHE_DIR", "GE_ACL_CONFIG")
PROGRAMS = ("GE_PYTHON", "GE_VLLM_PYTHON")
# What protobuf says of a config.pbtxt, with line and column; the host's next line has the file.
MISREAD = "Error parsing text-format"
# What getopt_long(3) says of a flag; the host prints all it knows behind it, some 400 lines.
FLAG = re.compile(
    r": (unrecognized option .*|option .* (?:is ambiguous|requires an|doesn't allow an).*)"
)


@final
class TritonServer:
    """One tritonserver process with its private folder.

    Leaving the context stops the server and removes every process, socket, folder and shared-memory
    region of it. Should the thread that started it end (kill -9 included), the server stops too;
    its folder is then removed by the next server that starts.

    Example:
        with TritonServer(find_server(), ServerOptions(repositories=(path,))) as server:
            client = tritonclient.grpc.InferenceServerClient(server.grpc)
    """

    def __init__(self, installation: ServerInstallation, options: ServerOptions) -> None:
        self.options = options.checked()
        self._installation = installation
        self._abilities: Abilities | None = None
        self._directory: ServerDirectory | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = False
        self._log_begin = 0  # where this start's part of the log file begins

    def __enter__(self) -> TritonServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def http(self) -> str:
        """`host:port` of HTTP."""
        return host_port(self.options.local_host, self.options.http_port)

    @property
    def grpc(self) -> str:
        """`host:port` of gRPC."""
        return host_port(self.options.local_host, self.options.grpc_port)

    @property
    def metrics(self) -> str:
        """URL of the metrics page."""
        return f"http://{host_port(self.options.local_host, self.options.metrics_port)}/metrics"

    @property
    def directory(self) -> ServerDirectory:
        """The private folder of the running server."""
        if self._directory is None:
            raise ServerError("the server is not running; start it first")
        return self._directory

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._running().pid

    @property
    def abilities(self) -> Abilities:
        """What the server can do; its release is known once it has started."""
        if self._abilities is None:
            raise ServerError("the server is not running; start it first")
        return self._abilities

    @property
    def stopping(self) -> bool:
        """Whether the server was asked to end."""
        return self._stopping

    def start(self) -> None:
        """Start the server and wait until it and its models are ready.

        Raises:
            ConfigError: an option is asked for that this release of the server has not.
            ServerError: it ended while it started, or was not ready in time; with the log's end.
                Or a file of it could not be written, or its release is not supported.
        """
        self._abilities = Abilities.of(self._installation)
        self._abilities.check()
        try:
            self._directory = ServerDirectory.make()
            assemble_backends(self._installation, self._directory.backends)
            with self.options.reserved():
                self._process = self._spawn()
                if self._stopping:
                    self._process.terminate()  # the interrupt came before there was a process
                self._wait_until_ready()
            if not self._stopping:
                self._abilities = self._abilities.at(self.options.api.version())
                self._abilities.check()
        except OSError as error:
            self.stop()
            raise ServerError(f"tritonserver cannot be started: {error}") from error
        except BaseException:
            self.stop()
            raise

    def interrupt(self) -> None:
        """Ask the server to end; the second time, make it. Safe in a signal handler."""
        asked, self._stopping = self._stopping, True
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL if asked else signal.SIGTERM)

    def wait(self, in_vain: Callable[[], bool] = lambda: False) -> int:
        """Wait for the server to end by itself; return its exit code, 128 + n for signal n.

        One that is asked to end is killed where it does not; and, with code 0, once `in_vain` says
        that what it still waits for will not come.
        """
        # It looks now and then: the kernel may give a signal to another thread, and what handles
        # it, which runs in the main one, would wait for the server as well. An end is seen at once.
        process = self._running()
        while process.poll() is None and not self._stopping:
            wait_for_end(process.pid, LOOK_S)
        code = self._end(process, in_vain)
        return 128 - code if code < 0 else code

    def stop(self) -> None:
        """End the server, gently at first, and remove what it leaves; again does nothing."""
        if self._directory is None:
            return
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._end(self._process)
            _see_off(self._directory.run)
        self._directory.remove()
        self._directory = None

    def _end(
        self, process: subprocess.Popen[bytes], in_vain: Callable[[], bool] = lambda: False
    ) -> int:
        """Return the code of a server that has been asked to end, killed where it hangs."""
        deadline = time.monotonic() + self.options.exit_timeout_s + GRACE_S
        while process.poll() is None and time.monotonic() < deadline:
            if in_vain():
                process.kill()
                process.wait()
                return 0
            time.sleep(POLL_S)
        process.kill()
        return process.wait()

    def log_tail(self, lines: int = TAIL_LINES) -> str:
        """Return the last lines that this start has logged; "" where there is no log file."""
        return "\n".join(self._logged().splitlines()[-lines:])

    def _logged(self) -> str:
        """Return what the log file holds since this start; earlier ones are before that."""
        path = self.options.log_file
        if path is None or not path.is_file():
            return ""
        with path.open("rb") as file:
            file.seek(self._log_begin)
            return file.read().decode(errors="replace")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerError("the server is not running; start it first")
        return self._process

    def _spawn(self) -> subprocess.Popen[bytes]:
        log_file = self.options.log_file
        if log_file is not None and log_file.is_file():
            self._log_begin = log_file.stat().st_size
        with contextlib.ExitStack() as stack:
            output = stack.enter_context(log_file.open("ab")) if log_file is not None else None
            return subprocess.Popen(
                self._command(),
                cwd=self.directory.cwd,
                env=self._environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=self.directory.locks,
                start_new_session=True,
            )

    def _command(self) -> list[str]:
        caches = self._installation.caches
        return [
            *(
                sys.executable,
                "-I",
                "-S",
                str(Path(parent_death.__file__).resolve()),
                str(os.getpid()),
            ),
            str(self._installation.binary),
            f"--backend-directory={self.directory.backends}",
            f"--backend-config=python,shm-region-prefix-name={self.directory.shm_prefix}",
            *([f"--cache-directory={caches}"] if caches is not None else []),
            *self.options.flags(self.abilities),
        ]

    def _environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the server's environment, which stubs and executors get from it.

        A stub becomes the interpreter that `python3` means on PATH; it must be this one.
        """
        environment = {**inherited, **self.options.environment}
        libraries = environment.get("LD_LIBRARY_PATH", "")
        environment.setdefault("GE_LIBRARY_PATH", libraries)
        environment.setdefault("GE_PYTHON", sys.executable)
        if self.abilities.has("numpy_2"):
            environment.setdefault("GE_NUMPY_2", "allow")
        environment["GE_RUNTIME_DIR"] = str(self.directory.run)
        private = [str(path) for path in self._installation.libraries]
        environment["LD_LIBRARY_PATH"] = os.pathsep.join([*private, libraries]).rstrip(os.pathsep)
        binaries = [str(Path(sys.executable).parent), environment.get("PATH", os.defpath)]
        environment["PATH"] = os.pathsep.join(binaries)
        if not site.ENABLE_USER_SITE:
            environment["PYTHONNOUSERSITE"] = "1"
        return environment | _anchored(environment)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self.options.start_timeout_s
        while not self._is_ready():
            if self._stopping:
                return
            code = self._running().poll()
            if code is not None:
                raise ServerError(
                    self._with_reasons(f"tritonserver ended with code {code} as it started")
                )
            if time.monotonic() > deadline:
                limit = self.options.start_timeout_s
                raise ServerError(
                    self._with_reasons(f"tritonserver was not ready after {limit:g} s")
                )
            time.sleep(POLL_S)

    def _with_reasons(self, message: str) -> str:
        """Return the message with the reasons that the log gives, else with its last lines."""
        lines = self._logged().splitlines()
        reasons = [_reason(line) for line in lines if '"failed to load' in line]
        found = [
            *(match[1] for line in lines if (match := FLAG.search(line))),
            *(line[line.index(MISREAD) :] for line in lines if MISREAD in line),
            *(_reason(line) for line in lines if '"Poll failed for' in line),
            *(reason for reason in reasons if " version " in reason),
        ]
        if found:
            return "\n  ".join([f"{message}:", *found])
        tail = self.log_tail()
        return f"{message}; its log ends:\n{tail}" if tail else f"{message}; see its output above"

    def _is_ready(self) -> bool:
        if not self.options.has_metrics:
            return self.options.api.is_ready()
        # The metrics port opens last, some 40 ms after HTTP says ready.
        metrics = ServerApi(self.options.local_host, self.options.metrics_port)
        return self.options.api.is_ready() and metrics.answers("/metrics")


def _anchored(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that name files, as the server finds these from its own folder."""
    given = {name: environment.get(name, "") for name in (*FILES, *PROGRAMS)}
    return {
        name: str(Path(path).absolute())
        for name, path in given.items()
        if os.sep in path or (name in FILES and path not in {"", "off"})
    }


def _reason(line: str) -> str:
    """Return what a "failed to load" line says, without its time stamp and traceback."""
    return line.partition('"')[2].rstrip('"').partition("\\n\\nAt:")[0]


def _see_off(run: Path) -> None:
    """Wait for a dead server's stubs and executors to follow it, and kill those that do not."""
    _wait_until(lambda: _gone(run), FAMILY_GRACE_S)
    for pid in processes_of(run):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _wait_until(lambda: _gone(run), FAMILY_GRACE_S)


def _gone(run: Path) -> bool:
    """Whether no process is left; one that is being started cannot be seen for a moment."""
    for _ in range(SEEN_GONE):
        if processes_of(run):
            return False
        time.sleep(POLL_S)
    return True


def _wait_until(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(POLL_S)
