"""`ge-backend report`: a page about what a running server does, watched for a while."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from ge_backend.errors import ConfigError
from ge_tools.page.drawing import check_libraries
from ge_tools.page.page import render
from ge_tools.page.recording import record
from ge_tools.page.trace import trace
from ge_tools.top import URL

__all__ = ["register"]


def register(subparsers: Any) -> None:
    """Add the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "report",
        help="watch a running server and write a page about what it did",
        description="Watches a running server while others send it requests, and writes one HTML "
        "page: requests, lengths, buckets, padding, latencies, where the time goes, and what the "
        "executors ran when. It sends no requests itself.",
    )
    parser.add_argument("--url", default=URL, help="the server's metrics (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=_seconds, default=10.0, help="how long to watch (default: %(default)g)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("ge-report.html"),
        metavar="FILE",
        help="default: %(default)s",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write all runs of the executors too, as JSON for ui.perfetto.dev",
    )
    parser.set_defaults(func=_run)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 1 <= seconds <= 3600:  # noqa: PLR2004 - the readings of an hour are still few
        raise argparse.ArgumentTypeError(f"{text} seconds; expected 1 to 3600")
    return seconds


def _run(arguments: argparse.Namespace) -> int:
    check_libraries()
    _check_place(arguments.output, "--output")
    if arguments.trace:
        _check_place(arguments.trace, "--trace")
        if arguments.trace.resolve() == arguments.output.resolve():
            raise ConfigError(f"--output and --trace are one file, {arguments.output}; name two")
    try:
        recording = record(arguments.url, arguments.seconds, _say)
    finally:
        if sys.stderr.isatty():
            print(file=sys.stderr)
    _write(arguments.output, render(recording), "--output")
    if arguments.trace:
        _write(arguments.trace, trace(recording.devices), "--trace")
    if recording.note:
        print(recording.note, file=sys.stderr)
    return 0


def _check_place(path: Path, option: str) -> None:
    """Raise where no file can be written, before anything is watched; nothing is written yet."""
    # With the slash nothing but a folder will do.
    if path.is_dir() or not os.access(path if path.exists() else f"{path.parent}/", os.W_OK):
        raise ConfigError(f"{path} cannot be written; see {option}")


def _write(path: Path, text: str, option: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}; see {option}") from error
    print(f"wrote {path}")


def _say(text: str) -> None:
    """Show how it goes: in one line on a terminal, else line by line."""
    live = sys.stderr.isatty()
    print(
        f"\r\033[K{text}" if live else text, end="" if live else "\n", file=sys.stderr, flush=True
    )
