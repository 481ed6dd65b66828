"""`ge-backend serve`: a real tritonserver with our backend, from start to a clean end."""

from __future__ import annotations

import argparse
import contextlib
import resource
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from ge_backend.errors import ConfigError
from ge_backend.model.config.sizes import parse_device_bytes
from ge_tools.openai import add_front_options, open_front, read_front_options
from ge_tools.tritonserver import ServerOptions, TritonServer, find_server
from ge_tools.tritonserver.model_reloader import ModelReloader
from ge_tools.tritonserver.parent_death import die_with_parent
from ge_tools.tritonserver.stranded import Stranded

__all__ = ["register"]

# What is added to the number of the signal that has ended the server.
BY_SIGNAL = 128
# Descriptors; a limit may be so high that programs which close each in turn take minutes.
MAX_FILES = 65536

DESCRIPTION = """\
Starts tritonserver with this backend, says when it is ready, and passes SIGTERM, SIGINT and SIGHUP
on to it (SIGHUP not under nohup); a second one ends it at once. A model whose stub has died is
loaded anew; for that models are served in explicit control, all loaded, unless a further argument
says otherwise. Clients cannot list, load and unload them; -- --model-control-mode=explicit
--load-model=* lets them, and anything that such a load brings along. It ends when the process that
started it ends. The exit code is the server's; 0 where all that it waited for at its end had died
with a stub.
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "serve",
        help="start tritonserver with this backend",
        description=DESCRIPTION,
        epilog="Arguments after -- go to tritonserver as they are.",
    )
    _add_server_options(parser)
    parser.add_argument(
        "--device", help="for models that name none: cpu, cuda:0, npu, ... (sets GE_DEVICE)"
    )
    parser.add_argument(
        "--workspace-pool",
        metavar="SIZE",
        help="scratch memory that all models of a device share, such as 12GiB, or per device: "
        "npu:0=12GiB,cuda=8GiB,2GiB (GE_WORKSPACE_POOL)",
    )
    parser.add_argument("--log-verbose", type=int, default=0, metavar="N", help="default: 0")
    parser.add_argument("--log-file", type=Path, help="default: this terminal")
    parser.add_argument(
        "--outlive-parent", action="store_true", help="go on when the starting process ends"
    )
    parser.add_argument("server_arguments", nargs="*", metavar="-- ...", help="for tritonserver")
    parser.set_defaults(func=serve)


def _add_server_options(parser: argparse.ArgumentParser) -> None:
    default = ServerOptions(repositories=())
    parser.add_argument(
        "--model-repository",
        type=Path,
        action="append",
        required=True,
        metavar="DIR",
        help="folder of models; may be repeated",
    )
    parser.add_argument(
        "--host", default=default.host, help="0.0.0.0 for all interfaces; default: %(default)s"
    )
    for name, port in (("http", 8000), ("grpc", 8001), ("metrics", 8002)):
        parser.add_argument(
            f"--{name}-port",
            type=int,
            default=port,
            metavar="PORT",
            help="0 takes a free one; default: %(default)s",
        )
    parser.add_argument(
        "--openai-port",
        type=int,
        metavar="PORT",
        help="serve OpenAI's API too, see ge-backend openai; 0 takes a free one; default: do not",
    )
    add_front_options(parser)
    parser.add_argument(
        "--tritonserver",
        type=Path,
        metavar="PATH",
        help="its binary or folder; default: GE_TRITONSERVER, /opt/tritonserver, the wheel",
    )
    parser.add_argument(
        "--client-shm",
        action="store_true",
        help="let clients use shared memory, which Triton allows by itself before 2.69 only; "
        "whoever reaches its ports can then have memory of this machine read by name",
    )
    parser.add_argument(
        "--grpc-threads",
        type=int,
        default=default.grpc_threads,
        metavar="N",
        help="that take gRPC requests, for many streams; Triton 2.57 or newer; default: its own, 2",
    )
    parser.add_argument(
        "--grpc-response-pool",
        type=int,
        default=default.grpc_response_pool,
        metavar="N",
        help="responses of a gRPC stream that may wait for their client; Triton 2.56 or newer; "
        "default: its own, no bound",
    )
    parser.add_argument(
        "--start-timeout",
        type=float,
        default=default.start_timeout_s,
        metavar="SECONDS",
        help="for loading and warm-up; default: %(default)g",
    )
    parser.add_argument(
        "--exit-timeout",
        type=int,
        default=default.exit_timeout_s,
        metavar="SECONDS",
        help="for requests in flight at the end; default: %(default)s",
    )


def serve(arguments: argparse.Namespace) -> int:
    """Run the server until it ends; return its exit code."""
    if not arguments.outlive_parent:
        die_with_parent()
    _allow_files()
    server = TritonServer(find_server(arguments.tritonserver), _options(arguments))
    _warn_of_nothing(arguments.model_repository)
    _pass_signals_on(server)
    front = _front(arguments, server) if arguments.openai_port is not None else None
    begin = time.monotonic()
    with server, contextlib.ExitStack() as stack:
        if not server.stopping:
            _announce(server, time.monotonic() - begin)
            if server.abilities.note:
                _say(server.abilities.note)
            if front is not None:
                stack.enter_context(front)
                print(f"  openai   {front.url}/v1", flush=True)
        reloader = ModelReloader(server.options.api, server.pid, server.directory.run, _say)
        stack.enter_context(contextlib.closing(reloader))
        metrics = server.metrics if server.options.has_metrics else ""
        stranded = Stranded(server.pid, metrics, reloader.stubbed)
        code = server.wait(lambda: _report_stranded(stranded.models()))
        if not server.stopping:
            _report_signal(code - BY_SIGNAL)
        return code


def _allow_files() -> None:
    """Let the server open more files than the usual soft limit says, 1024, where it may.

    It logs a line for each connection that it cannot accept, again and again: without a descriptor
    that is 18 MB a second (seen on 2.51 with 1100 idle connections).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < enough:
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))


def _options(arguments: argparse.Namespace) -> ServerOptions:
    further = arguments.server_arguments
    verbose = [f"--log-verbose={arguments.log_verbose}"] if arguments.log_verbose else []
    control = _control(further)
    return ServerOptions(
        repositories=tuple(arguments.model_repository),
        host=arguments.host,
        http_port=arguments.http_port,
        grpc_port=arguments.grpc_port,
        metrics_port=arguments.metrics_port,
        log_file=arguments.log_file,
        environment=_environment(arguments),
        arguments=(*verbose, *control, *further),
        control_key=secrets.token_hex() if control else "",
        client_shm=arguments.client_shm,
        grpc_threads=arguments.grpc_threads,
        grpc_response_pool=arguments.grpc_response_pool,
        start_timeout_s=arguments.start_timeout,
        exit_timeout_s=arguments.exit_timeout,
    )


def _warn_of_nothing(repositories: Sequence[Path]) -> None:
    """Say which repositories have no folder, as a server of nothing calls itself ready."""
    for repository in repositories:
        if repository.is_dir() and not any(entry.is_dir() for entry in repository.iterdir()):
            _say(f"{repository} has no models; expected a folder for each, with a config.pbtxt")


def _control(given: Sequence[str]) -> list[str]:
    """Return the flags with which models can be loaded anew, where no mode was chosen."""
    if any("model-control-mode" in argument for argument in given):
        return []
    named = any("load-model" in argument for argument in given)
    return ["--model-control-mode=explicit", *([] if named else ["--load-model=*"])]


def _front(arguments: argparse.Namespace, server: TritonServer) -> Any:
    """Return OpenAI's API in front of the server, its port taken."""
    taken = (server.options.http_port, server.options.grpc_port, server.options.metrics_port)
    if arguments.openai_port and arguments.openai_port in taken:
        raise ConfigError(
            f"port {arguments.openai_port} is the server's; choose another for --openai-port"
        )
    return open_front(
        read_front_options(
            arguments,
            url=server.grpc,
            metrics=server.metrics if server.options.has_metrics else "",
            port=arguments.openai_port,
        )
    )


def _environment(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the machine-wide settings, which reach stubs and executors as variables."""
    if arguments.workspace_pool:
        parse_device_bytes(arguments.workspace_pool, "--workspace-pool")  # refused here, not later
    given = {"GE_DEVICE": arguments.device, "GE_WORKSPACE_POOL": arguments.workspace_pool}
    return {name: value for name, value in given.items() if value}


def _pass_signals_on(server: TritonServer) -> None:
    """Have the signals that end us end the server; tritonserver would die of SIGHUP uncleanly."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        server.interrupt()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # nohup ignores SIGHUP as it was asked to; shells ignore SIGINT for any background job.
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, interrupt)


def _report_stranded(models: Sequence[str]) -> bool:
    """Say which models keep the server from ending, if any do; return whether any do."""
    if models:
        _say(
            f"{', '.join(models)} held requests when a stub died, and they are never answered; "
            "the server is ended without waiting for them"
        )
    return bool(models)


def _report_signal(number: int) -> None:
    """Say which signal has ended the server, if one has: there is no line of it in its log."""
    if number in signal.valid_signals():
        killed = number == signal.SIGKILL
        why = "; mostly the kernel does so, for want of memory" if killed else ""
        _say(f"tritonserver was ended by signal {number} ({signal.strsignal(number)}){why}")


def _say(text: str) -> None:
    """Tell people, if it is read and there is room: what is said is about to be done."""
    with contextlib.suppress(OSError):
        print(f"ge-backend: {text}", file=sys.stderr, flush=True)


def _announce(server: TritonServer, seconds: float) -> None:
    lines = [
        f"ge-backend: ready after {seconds:.1f} s",
        f"  http     http://{server.http}",
        f"  grpc     {server.grpc}",
    ]
    if server.options.has_metrics:
        lines.append(f"  metrics  {server.metrics}")
    print("\n".join(lines), flush=True)
