"""A long run under load: whether a server's processes grow."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np

from benchmarks.trust.load import Load
from benchmarks.trust.served import serving
from ge_backend.tritonserver import processes_of

__all__ = ["Sample", "sample", "slopes", "soak"]

PERIOD_S = 2.0
# The first part of a run fills caches and pools.
SKIPPED = 0.25


@dataclass(frozen=True, slots=True)
class Sample:
    """What all processes of a server have: MiB of memory of their own, descriptors, threads."""

    memory_mib: float
    descriptors: float
    threads: float


def sample(pids: Sequence[int]) -> Sample:
    """Return what these processes have now; those that have ended have nothing."""
    memory = descriptors = threads = 0
    for pid in pids:
        process = Path(f"/proc/{pid}")
        try:
            status = dict(
                line.split(":", 1) for line in (process / "status").read_text().splitlines()
            )
            memory += int(status["RssAnon"].split()[0])
            threads += int(status["Threads"])
            descriptors += len(list((process / "fd").iterdir()))
        except OSError:
            continue
    return Sample(memory / 1024, descriptors, threads)


def slopes(times_s: Sequence[float], samples: Sequence[Sample]) -> Sample:
    """Return by how much each figure grows in an hour: a straight line through the samples."""
    hours = np.asarray(times_s) / 3600
    columns = zip(*map(astuple, samples), strict=True)
    return Sample(*(float(np.polyfit(hours, np.asarray(column), 1)[0]) for column in columns))


def soak(clients: int, seconds: float) -> str:
    """Serve under load for so long; return what came of it in a line."""
    times, samples = [], []
    with serving() as server:
        load = Load(server.grpc, clients)
        begin = time.monotonic()
        while (now := time.monotonic() - begin) < seconds:
            if now > SKIPPED * seconds:
                times.append(now)
                samples.append(sample(processes_of(server.directory.run)))
            time.sleep(PERIOD_S)
        counts = Counter(answer.outcome for answer in load.close())
    growth, last = slopes(times, samples), samples[-1]
    return (
        f"soak of {seconds:.0f} s: {counts['right']} of {counts.total()} right; "
        f"memory {last.memory_mib:.0f} MiB {growth.memory_mib:+.0f} in an hour, "
        f"descriptors {last.descriptors:.0f} {growth.descriptors:+.0f}, "
        f"threads {last.threads:.0f} {growth.threads:+.0f}"
    )
