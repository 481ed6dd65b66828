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
from ge_tools.tritonserver import processes_of

__all__ = ["Sample", "sample", "slopes", "soak", "verdict"]

PERIOD_S = 2.0
# The first part of a run fills caches and pools.
SKIPPED = 0.25
# A line through fewer samples says nothing.
MIN_SAMPLES = 3


@dataclass(frozen=True, slots=True)
class Sample:
    """What all processes of a server have: MiB of memory, descriptors, threads.

    Memory is what is no file's: their own and shared, which counts in each process that has it.
    """

    memory_mib: float
    descriptors: float
    threads: float


# By how much each may grow while a soak is watched, however long.
MOST = Sample(64, 16, 16)


def sample(pids: Sequence[int]) -> Sample:
    """Return what these processes have now; those that have ended have nothing."""
    memory = descriptors = threads = 0
    for pid in pids:
        process = Path(f"/proc/{pid}")
        try:
            status = dict(
                line.split(":", 1) for line in (process / "status").read_text().splitlines()
            )
            memory += sum(int(status[name].split()[0]) for name in ("RssAnon", "RssShmem"))
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


def soak(clients: int, seconds: float) -> tuple[str, bool]:
    """Serve under load for so long; return what came of it, and whether that is well."""
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
    return verdict(seconds, counts, times, samples)


def verdict(
    seconds: float, counts: Counter[str], times_s: Sequence[float], samples: Sequence[Sample]
) -> tuple[str, bool]:
    """Return a soak in a line, and whether all answers are right and nothing runs away.

    Args:
        seconds: how long it was.
        counts: of answers, by outcome.
        times_s: of the samples.
        samples: what the server had then.
    """
    text = f"soak of {seconds:.0f} s: {counts['right']} of {counts.total()} right; "
    right = counts["right"] == counts.total() > 0
    if len(samples) < MIN_SAMPLES:
        return f"{text}too short to see growth: {len(samples)} of {MIN_SAMPLES} samples", right
    growth, last = slopes(times_s, samples), samples[-1]
    hours = (times_s[-1] - times_s[0]) / 3600
    kept = all(a * hours <= b for a, b in zip(astuple(growth), astuple(MOST), strict=True))
    return (
        f"{text}memory {last.memory_mib:.0f} MiB {growth.memory_mib:+.0f} in an hour, "
        f"descriptors {last.descriptors:.0f} {growth.descriptors:+.0f}, "
        f"threads {last.threads:.0f} {growth.threads:+.0f}"
    ), right and kept
