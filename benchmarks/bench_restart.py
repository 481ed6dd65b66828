"""How long requests wait when an executor dies: without a spare one, and with one.

The encoder on the real server, asked without pause. Its executor is killed; the longest request is
the pause: found out, opened again, loaded again, repeated. With and without take turns. What a
spare costs is the memory that it shares with no other process while it waits.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import tritonclient.grpc as grpcclient
from demo.encoder import Encoder, prepare
from rich.console import Console

from benchmarks.bench_start import CACHE
from benchmarks.encoder.systems import Served, write_repository
from benchmarks.harness.compare import announce
from benchmarks.harness.servers import serve
from ge_tools.tritonserver import processes_of

__all__ = ["Pause", "lines", "main"]

FILES = {"onnx": "model.onnx", "torch": "model.pt2"}
ENTRY = "ge_backend.executor.process.main"
SPARES = ("off", "on")
AFTER_S, WITHIN_S = 1.0, 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """The longest request around one kill.

    Attributes:
        engine: of `FILES`.
        spare: `off` or `on`.
        longest_s: its seconds.
        spare_bytes: memory of the spare executor before the kill; 0 without one.
    """

    engine: str
    spare: str
    longest_s: float
    spare_bytes: int = 0


def main() -> None:
    """Kill executors and print the table."""
    options = _parse(sys.argv[1:])
    announce()
    encoder = prepare(CACHE, Console(stderr=True))
    with tempfile.TemporaryDirectory(prefix="ge-bench-") as folder:
        found = [
            pause
            for engine in options.engine
            for _ in range(options.rounds)
            for spare in SPARES
            for pause in _pauses(Path(tempfile.mkdtemp(dir=folder)), encoder, engine, spare)
        ]
    print("\n".join(lines(found)))


def lines(pauses: Sequence[Pause]) -> list[str]:
    """Return the table: medians, how often that was tried, and what the spare took."""
    rows = ["| engine | without a spare | with one | kills | memory of the spare |"]
    rows.append("| --- " * 5 + "|")
    for engine in dict.fromkeys(pause.engine for pause in pauses):
        by = [[p.longest_s for p in pauses if (p.engine, p.spare) == (engine, s)] for s in SPARES]
        medians = " | ".join(f"{statistics.median(each):.1f} s" for each in by)
        most = max(pause.spare_bytes for pause in pauses if pause.engine == engine)
        rows.append(f"| {engine} | {medians} | {sum(map(len, by))} | {most / 2**20:.0f} MiB |")
    return rows


def _pauses(folder: Path, encoder: Encoder, engine: str, spare: str) -> Iterator[Pause]:
    """Serve the encoder, and kill its executor twice; the second time a used spare was replaced."""
    files = dict(zip(FILES.values(), (encoder.onnx, encoder.program), strict=True))
    write_repository(folder / "models", [Served(name="ge", file=FILES[engine])], files)
    environment = {
        "GE_EXECUTOR": "process",
        "GE_SPARE": spare,
        "GE_CACHE_DIR": "off",
        "GE_WARMUP": "off",
    }
    with serve(folder / "models", environment) as server:
        for _ in range(2):
            executor, spare_bytes = _executor(server.run, spare=spare == "on")
            longest_s = _longest(server.grpc, executor)
            print(f"  {engine}, {spare}: {longest_s:.2f} s", file=sys.stderr, flush=True)
            yield Pause(engine=engine, spare=spare, longest_s=longest_s, spare_bytes=spare_bytes)


def _executor(run: Path, *, spare: bool) -> tuple[int, int]:
    """Return the executor's process id, once a spare is idle where there is to be one.

    And the bytes of memory that the spare has for itself.
    """
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        own = processes_of(run)
        everything = [p for p in psutil.process_iter(["cmdline"]) if p.pid in own]
        found = [p for p in everything if ENTRY in (p.info["cmdline"] or ())]
        waiting = [p for p in found if "--spare" in p.cmdline() and not _serves(p)]
        if len(found) == 1 + spare and all(p.cpu_percent(0.5) < 5 for p in waiting):
            (executor,) = [p for p in found if p not in waiting]
            return executor.pid, sum(p.memory_full_info().uss for p in waiting)
        time.sleep(0.2)
    raise TimeoutError(f"after {WITHIN_S:.0f} s there is no executor with spare={spare}")


def _serves(process: psutil.Process) -> bool:
    """Whether it has a stub: a connection that was accepted at an executor's address."""
    return any(c.laddr.endswith(".sock") for c in process.net_connections("unix") if c.laddr)


def _longest(address: str, executor: int) -> float:
    """Ask again and again; kill the executor after a while; return the longest answer's seconds."""
    timer = threading.Timer(AFTER_S, os.kill, (executor, signal.SIGKILL))
    timer.start()
    ids = grpcclient.InferInput("input_ids", [1, 24], "INT64")
    ids.set_data_from_numpy(np.full((1, 24), 7))
    with grpcclient.InferenceServerClient(address) as client:
        longest_s, end = 0.0, time.monotonic() + 2 * AFTER_S
        while time.monotonic() < end:
            begin = time.monotonic()
            client.infer("ge", [ids], client_timeout=WITHIN_S)
            longest_s = max(longest_s, time.monotonic() - begin)
    timer.join()
    return longest_s


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench_restart", description=__doc__)
    parser.add_argument("--engine", nargs="+", choices=tuple(FILES), default=list(FILES))
    parser.add_argument("--rounds", type=int, default=1, help="each kills twice with and without")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
