"""`ge-backend`: the table of commands, and how an error reaches the terminal."""

from __future__ import annotations

import argparse
import errno
import os
import select
import signal
import sys
from collections.abc import Sequence

from ge_backend.errors import GeError
from ge_openai.options import FrontError
from ge_tools import (
    buckets,
    check,
    health,
    importing,
    install,
    openai,
    plan,
    preset,
    reporting,
    serve,
    top,
    tune,
    version,
)
from ge_tools import compile as compile_

__all__ = ["build_parser", "main"]

# Each module has `register(subparsers)`, which adds one command and sets `func` to what runs it.
COMMANDS = (
    serve,
    openai,
    check,
    health,
    install,
    importing,
    buckets,
    tune,
    preset,
    plan,
    compile_,
    top,
    reporting,
)
USAGE_ERROR = 2
# What a shell says of a program that a signal has ended.
BY_SIGNAL = 128
# Of the file that stdout is.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; what it cannot do is one line on stderr, and 2.

    A command that ^C ends, or whose output is not read any more, ends without output.
    """
    _open_closed()
    parsed, unknown = build_parser().parse_known_args(arguments)
    if unknown:  # of which argparse would tell without the command's own usage
        parsed.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        code: int = parsed.func(parsed)
        sys.stdout.flush()
    except (GeError, FrontError, PermissionError) as error:  # or a path that its user may not enter
        print(f"ge-backend: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return BY_SIGNAL + signal.SIGINT
    except BrokenPipeError:
        if not _is_stdout_closed():
            raise
        return BY_SIGNAL + signal.SIGPIPE
    except OSError as error:
        if error.errno not in NO_ROOM or error.filename is not None:
            raise
        _throw_away(sys.stdout.fileno())
        print(f"ge-backend: the output cannot be written: {error.strerror}", file=sys.stderr)
        return USAGE_ERROR
    return code


def _open_closed() -> None:
    """Let what is written to a closed stream (`2>&-`) go nowhere: `print` would write to stdout.

    What is started, too, has a stream in its place, and no other file that it would write into.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)  # takes the first number that is free
            os.set_inheritable(nowhere, True)
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, os.fdopen(nowhere, mode, encoding="utf-8"))


def _is_stdout_closed() -> bool:
    """Whether the reader of stdout has gone; what waits to be written is then thrown away."""
    try:
        written = sys.stdout.fileno()
    except OSError:  # it is no file
        return False
    pipe = select.poll()
    pipe.register(written, 0)  # errors are always told
    if not any(events & select.POLLERR for _, events in pipe.poll(0)):
        return False
    _throw_away(written)
    return True


def _throw_away(written: int) -> None:
    """Let what waits to be written go nowhere: the interpreter would try again, and complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, written)
    os.close(nowhere)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="ge-backend", description="The `ge` backend for Triton Inference Server."
    )
    parser.add_argument("--version", action="version", version=f"ge-backend {version()}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.register(subparsers)
    for own in subparsers.choices.values():
        own.set_defaults(parser=own)
    return parser


if __name__ == "__main__":
    sys.exit(main())
