"""Where the time of a request goes: our backend under load, taken apart.

CPU time by process comes from /proc, times inside the backend from the `ge_*` metrics on the
server's own `/metrics`; both as differences over one window. `python -m benchmarks.where`.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.encoder.mixes import MIXES
from benchmarks.load import Report
from benchmarks.random_encoder import SIZES
from benchmarks.rivals.forward import ENGINES
from benchmarks.served import MINILM, Served, Window, make_traffic, serve
from benchmarks.systems import OURS, UNASKED, System, systems

__all__ = ["budget", "main", "sums"]

# The backend publishes its metrics four times a second.
PUBLISHED_S = 0.4


def sums(text: str, model: str) -> dict[str, float]:
    """Return a model's metrics from the text of `/metrics`, summed over instances and labels."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.labels.get("model") == model:
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def budget(
    report: Report, metrics: Mapping[str, float], cores: int
) -> list[tuple[str, float, str]]:
    """Return lines (what, microseconds per request, remark) that account for the cores' time.

    Args:
        report: the window, for CPU time.
        metrics: differences of the `ge_*` metrics over the same load, settling included.
        cores: of this machine.
    """
    used = {role: 1e6 * seconds / report.requests for role, seconds in report.cpu_s.items()}
    whole = 1e6 * cores * report.wall_s / report.requests
    lines = [("all cores", whole, f"{cores} cores at {report.throughput:.0f} requests/s")]
    names = {"client": "load generator", "host": "tritonserver", "others": "other programs"}
    lines += [(f"  {names.get(role, role)} CPU", spent, "") for role, spent in used.items()]
    lines.append(("  idle", whole - sum(used.values()), ""))
    requests = metrics["ge_requests_total"]
    for name in ("read", "plan", "stage", "wait", "split"):
        seconds = metrics.get(f"ge_{name}_seconds_total", 0.0)
        lines.append((f"stub: {name}", 1e6 * seconds / requests, ""))
    runs = metrics["ge_sub_batches_total"]
    for name in ("queue", "run"):
        seconds = metrics[f"ge_{name}_seconds_total"]
        lines.append(
            (f"executor: {name}", 1e6 * seconds / requests, f"{1e3 * seconds / runs:.2f} ms a run")
        )
    return lines


def shape(metrics: Mapping[str, float]) -> str:
    """Return how the requests were batched, in a line."""
    requests, runs = metrics["ge_requests_total"], metrics["ge_sub_batches_total"]
    real, ran = metrics["ge_elements_real_total"], metrics["ge_elements_run_total"]
    return (
        f"{requests / metrics['ge_batches_total']:.1f} requests a batch, "
        f"{requests / runs:.1f} a run; padding {ran / real - 1:.0%} "
        f"(to the longest: {metrics['ge_elements_longest_total'] / real - 1:.0%}); "
        f"early replies {metrics.get('ge_early_replies_total', 0.0) / requests:.0%}"
    )


def main() -> None:
    """Load our backend and print the budget per mix."""
    parser = argparse.ArgumentParser(prog="where", description=__doc__)
    add = parser.add_argument
    add("--system", choices=UNASKED, default=OURS)
    add(
        "--engine",
        choices=tuple(ENGINES),
        default="onnx",
        help=f"what {OURS} runs, and the precision of all",
    )
    add("--mix", nargs="+", choices=tuple(MIXES), default=["lognormal"])
    add("--concurrency", nargs="+", type=int, default=[32])
    add("--seconds", type=float, default=6.0)
    add("--instances", type=int, default=2)
    add("--protocol", choices=("http", "grpc"), default="http")
    add("--device", default="cpu", help="with torch also cuda:0")
    add("--encoder", choices=(MINILM, *SIZES), default=MINILM, help="others have random weights")
    options = parser.parse_args()
    ours = next(s for s in systems(options.instances) if s.name == options.system)
    with tempfile.TemporaryDirectory(prefix="ge-bench-") as temporary:
        traffic = make_traffic(
            options.engine, options.mix, 1, Path(temporary), encoder=options.encoder
        )
        with serve(
            (ours,), options.engine, traffic, options.protocol, device=options.device
        ) as served:
            for mix, concurrency in itertools.product(options.mix, options.concurrency):
                window = Window(
                    system=ours,
                    mix=mix,
                    concurrency=concurrency,
                    offset=0,
                    settle_s=1.0,
                    measure_s=options.seconds,
                )
                _print(window, served)


def _print(window: Window, served: Served) -> None:
    before = _metrics(served, window.system)
    report = served.measure(window)
    after = _metrics(served, window.system)
    metrics = {name: value - before.get(name, 0.0) for name, value in after.items()}
    print(f"\n{MIXES[window.mix].help}, {window.concurrency} in flight: microseconds per request")
    for name, spent, remark in budget(report, metrics, os.cpu_count() or 1):
        print(f"{name:24} {spent:8.0f}  {remark}".rstrip())
    print(shape(metrics), flush=True)


def _metrics(served: Served, system: System) -> dict[str, float]:
    time.sleep(PUBLISHED_S)
    with urllib.request.urlopen(served.server.metrics, timeout=10) as page:
        return sums(page.read().decode(), system.model)


if __name__ == "__main__":
    main()
