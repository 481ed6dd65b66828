"""`ge-backend top`: what a running server is doing, live."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from typing import Any

from ge_backend.cli.watch.models import model_numbers
from ge_backend.cli.watch.readings import device_lines
from ge_backend.cli.watch.scrape import scrape
from ge_backend.cli.watch.screen import screen
from ge_backend.cli.watch.text import text_lines

__all__ = ["register"]

URL = "http://localhost:8002/metrics"
LONGEST_S = 86_400  # between two looks


def register(subparsers: Any) -> None:
    """Add the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "top",
        help="show what a running server is doing, live",
        description="Requests, batches, padding, buckets, text generation and devices of a running "
        "server, from its own metrics. Ends with ^C.",
    )
    parser.add_argument("--url", default=URL, help="the server's metrics (default: %(default)s)")
    parser.add_argument("--every", type=_seconds, default=1.0, metavar="SECONDS")
    parser.add_argument(
        "--times", type=_times, default=0, help="end after so many looks (0: never)"
    )
    parser.set_defaults(func=_run)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text} seconds; expected 0 to {LONGEST_S}")
    return seconds


def _times(text: str) -> int:
    times = int(text)
    if not 0 <= times <= sys.maxsize:
        raise argparse.ArgumentTypeError(f"{text} looks; expected 0 to {sys.maxsize}")
    return times


def _run(arguments: argparse.Namespace) -> int:
    screens = _screens(arguments.url, arguments.every)
    if arguments.times:
        screens = itertools.islice(screens, arguments.times)
    try:
        if sys.stdout.isatty():
            _show_live(screens)
        else:
            for text in screens:
                print(text, flush=True)
    except KeyboardInterrupt:
        pass
    return 0


def _screens(url: str, every_s: float) -> Iterator[str]:
    before = scrape(url)
    while True:
        time.sleep(every_s)
        after = scrape(url)
        yield screen(
            model_numbers(before, after), text_lines(before, after), device_lines(before, after)
        )
        before = after


def _show_live(screens: Iterator[str]) -> None:
    """Show each screen in the last one's place; below each other where rich is missing."""
    try:
        from rich.live import Live
        from rich.text import Text
    except ImportError:
        for text in screens:
            print(text, flush=True)
        return
    with Live(screen=True, auto_refresh=False) as live:
        for text in screens:
            live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
