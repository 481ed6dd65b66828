"""`ge-backend`: the table of commands, and how an error reaches the terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ge_backend.cli import (
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
from ge_backend.cli import compile as compile_
from ge_backend.errors import GeError

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; what it cannot do is one line on stderr, and 2."""
    parsed = build_parser().parse_args(arguments)
    try:
        code: int = parsed.func(parsed)
    except GeError as error:
        print(f"ge-backend: {error}", file=sys.stderr)
        return USAGE_ERROR
    return code


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="ge-backend", description="The `ge` backend for Triton Inference Server."
    )
    parser.add_argument("--version", action="version", version=f"ge-backend {version()}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.register(subparsers)
    return parser


if __name__ == "__main__":
    sys.exit(main())
