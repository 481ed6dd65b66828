"""What a server takes of a core that is asked nothing, and how often it wakes up, by process.

Two of model_repository's models, one of them inside its stub, with three instances in all. Beside
them plain Python models of as many instances, which is the host's own part. Both are started by
`ge-backend serve`. It is CPU time: what else runs on the machine lengthens it by some tenths.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

from benchmarks.bench_start import write_plain
from benchmarks.harness.compare import announce
from benchmarks.harness.cpu import roles_of
from benchmarks.harness.report import ROOT, aligned
from benchmarks.harness.servers import serve_tree
from ge_tools.tritonserver.directory import processes_of

__all__ = ["main", "used"]

MODELS = {"mean_embedding": 2, "text_encoder": 1}  # and how many instances each has


def main() -> None:
    """Measure both and print a line for each kind of process."""
    parser = argparse.ArgumentParser(prog="bench_idle", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--settle", type=float, default=80.0, help="seconds that a start has")
    options = parser.parse_args(sys.argv[1:])
    announce()
    rows = [["system", "process", "cores", "wake-ups/s"]]
    with tempfile.TemporaryDirectory(prefix="ge-bench-") as temporary:
        made, ge, plain = (Path(temporary) / name for name in ("made", "ge", "plain"))
        make = [sys.executable, str(ROOT / "model_repository" / "make.py"), "--into", str(made)]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
        ge.mkdir()
        for name in MODELS:
            (made / name).rename(ge / name)
        write_plain(ge, plain)
        for name, count in MODELS.items():
            config = plain / name / "config.pbtxt"
            config.write_text(config.read_text().replace("count: 1", f"count: {count}"))
        for repository in (plain, ge):
            with serve_tree(ROOT, repository) as server:
                time.sleep(options.settle)
                before, begin = used(server.run), time.monotonic()
                time.sleep(options.seconds)
                spent, seconds = used(server.run) - before, time.monotonic() - begin
            for what in sorted({what for what, _ in spent}):
                cores = spent[what, "ns"] / seconds / 1e9
                wakes = spent[what, "wakes"] / seconds
                rows.append([repository.name, what, f"{cores:.5f}", f"{wakes:.1f}"])
            total = sum(ns for (_, kind), ns in spent.items() if kind == "ns") / seconds / 1e9
            rows.append([repository.name, "all", f"{total:.5f}", ""])
    print(aligned(rows, left=("system", "process")))


def used(run: Path) -> Counter[tuple[str, str]]:
    """Return what a server's processes have used so far, `serve` among them, by their roles.

    Source: proc(5), /proc/PID/task/TID/schedstat: nanoseconds on a core come first.
    """
    found: Counter[tuple[str, str]] = Counter()
    roles = roles_of(processes_of(run))
    serving = {psutil.Process(pid).ppid(): "serve" for pid, kind in roles.items() if kind == "host"}
    for pid, role in {**roles, **serving}.items():
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended
                found[role, "ns"] += int((task / "schedstat").read_text().split()[0])
                status = (task / "status").read_text()
                found[role, "wakes"] += int(
                    status.split("\nvoluntary_ctxt_switches:")[1].split()[0]
                )
    return found


if __name__ == "__main__":
    main()
