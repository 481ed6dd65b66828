"""`ge-backend top`: what a running server is doing, live."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ge_backend.model.config.sizes import format_bytes
from ge_tools.report.table import table
from ge_tools.watch.models import ModelNumbers, model_numbers
from ge_tools.watch.readings import DeviceLine, device_lines
from ge_tools.watch.scrape import scrape
from ge_tools.watch.text import QUANTILES, TextLine, text_lines

__all__ = ["register", "screen"]

URL = "http://localhost:8002/metrics"
LONGEST_S = 86_400  # between two looks
MODELS = (
    *("model", "req/s", "failed/s", "rows/batch", "padding", "queue ms", "run ms", "plan off"),
    "buckets",
)
TEXTS = (
    *("text", "tokens/s", "prompt/s", "first ms p50/p99", "next ms p50/p99", "step ms"),
    *("running", "waiting", "cache", "preempted"),
)
SHOWN_BUCKETS = 3
DEVICES = ("device", "state", "waiting ms", "busy", "pool", "used", "peak")


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


def screen(
    models: Sequence[ModelNumbers], texts: Sequence[TextLine], devices: Sequence[DeviceLine]
) -> str:
    """Return the tables as text; models that generate text have a line in the last, too.

    Devices are first: where there are many models, a terminal shows no more than its height.
    """
    if not models and not texts:
        return "no model of this backend has served anything yet"
    lines = table(DEVICES, [_device(line) for line in devices], names=1)
    lines += ["", *table(MODELS, [_model(line) for line in models], names=1, left=1)]
    if texts:
        lines += ["", *table(TEXTS, [_text(line) for line in texts], names=1)]
    return "\n".join(lines)


def _model(line: ModelNumbers) -> tuple[str, ...]:
    return (
        line.model,
        f"{line.requests_per_s:.1f}",
        f"{line.failures_per_s:.1f}",
        _number(line.rows_per_batch, 1),
        "-" if line.padding is None else f"{line.padding:.2f}x",
        _number(line.queue_ms, 2),
        _number(line.run_ms, 2),
        "-" if line.plan_error is None else f"{line.plan_error:.0%}",
        "  ".join(bucket for bucket, _ in line.buckets[:SHOWN_BUCKETS]) or "-",
    )


def _text(line: TextLine) -> tuple[str, ...]:
    return (
        line.model,
        f"{line.tokens_per_s:.1f}",
        f"{line.prompt_tokens_per_s:.1f}",
        _spread(line.first_ms),
        _spread(line.next_ms),
        _number(line.step_ms, 1),
        f"{line.running:.0f}",
        f"{line.waiting:.0f}",
        "-" if line.cache is None else f"{100 * line.cache:.0f}%",
        f"{line.preempted:.0f}",
    )


def _spread(quantiles: Mapping[float, float]) -> str:
    return "/".join(f"{quantiles[share]:.0f}" for share in QUANTILES) if quantiles else "-"


def _device(line: DeviceLine) -> tuple[str, ...]:
    pool = (line.pool_bytes, line.used_bytes, line.peak_bytes)
    return (
        line.device,
        "up" if line.up else "LOST",
        f"{line.outstanding_ms:.1f}",
        f"{line.busy:.2f}",
        *(format_bytes(int(size)) if line.pool_bytes else "-" for size in pool),
    )


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
