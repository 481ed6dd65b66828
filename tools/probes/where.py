"""Where the time of a request goes: our backend under load, taken apart.

CPU time by process comes from /proc, times inside the backend from the `ge_*` metrics on the
server's own `/metrics`; both as differences over one window. `python -m tools.probes.where`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from benchmarks.encoder.mixes import MIXES
from benchmarks.encoder.systems import PRECISIONS, served_systems, write_repository
from benchmarks.encoder.traffic import MINILM, load_encoder, pools_of, sequences
from benchmarks.harness.client import LoadProcess
from benchmarks.harness.figures import percentile
from benchmarks.harness.generator import Report
from benchmarks.harness.servers import Running, serve
from benchmarks.harness.turns import Load, one_window
from benchmarks.random_encoder import SIZES
from prometheus_client.parser import text_string_to_metric_families

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
    answered = report.per_s * report.wall_s
    used = {role: 1e6 * seconds / answered for role, seconds in report.cpu_s.items()}
    whole = 1e6 * cores * report.wall_s / answered
    lines = [("all cores", whole, f"{cores} cores at {report.per_s:.0f} requests/s")]
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
    add("--system", default="ge_checkpoint", help="one of ours in bench_serving")
    add("--precision", choices=PRECISIONS, default="fp32")
    add("--mix", nargs="+", choices=tuple(MIXES), default=["lognormal"])
    add("--concurrency", nargs="*", type=int, default=[32])
    add("--rate", nargs="*", type=float, default=[], help="requests at random, so many a second")
    add("--seconds", type=float, default=6.0)
    add("--instances", type=int, default=2)
    add("--device", default="cpu", help="in torch also cuda:0")
    add("--encoder", choices=(MINILM, *SIZES), default=MINILM, help="others have random weights")
    options = parser.parse_args()
    (ours,) = served_systems(
        options.precision,
        instances=options.instances,
        device=options.device,
        only=[options.system],
    )
    with tempfile.TemporaryDirectory(prefix="ge-bench-") as temporary:
        folder = Path(temporary)
        encoder = load_encoder(options.encoder, folder)
        pools = pools_of([ours.system], sequences(encoder, options.mix, 1), options.precision)
        write_repository(folder / "models", [ours], encoder.files, encoder.width)
        with serve(folder / "models") as server, LoadProcess(pools) as process:
            (system,) = server.systems([ours.system])
            for load in _loads(options):
                before = _metrics(server, system.model)
                report = one_window(process, system, load, options.seconds)
                after = _metrics(server, system.model)
                change = {name: value - before.get(name, 0.0) for name, value in after.items()}
                lengths = MIXES[load.traffic].help
                print(f"\n{lengths}, {load.label}: microseconds per request")
                _print(report, change)


def _loads(options: argparse.Namespace) -> list[Load]:
    loops = [{"in_flight": number} for number in options.concurrency]
    rates = [{"rate": number} for number in options.rate]
    return [Load(traffic=mix, **each) for mix in options.mix for each in (*loops, *rates)]


def _print(report: Report, metrics: Mapping[str, float]) -> None:
    for name, spent, remark in budget(report, metrics, os.cpu_count() or 1):
        print(f"{name:24} {spent:8.0f}  {remark}".rstrip())
    p50, p99 = (percentile(report.latencies_ms, percent) for percent in (50, 99))
    print(f"p50 {p50:.1f} ms, p99 {p99:.1f} ms; {shape(metrics)}", flush=True)


def _metrics(server: Running, model: str) -> dict[str, float]:
    time.sleep(PUBLISHED_S)
    with urllib.request.urlopen(server.metrics, timeout=10) as page:
        return sums(page.read().decode(), model)


if __name__ == "__main__":
    main()
