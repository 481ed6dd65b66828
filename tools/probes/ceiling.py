"""The in-process ceiling: the same engine on perfect batches, without server, client or waiting.

All sequences are known beforehand, sorted by length and cut into batches; lanes take them, longest
first, until none is left. How the cores are shared (threads of a run, runs of a process, processes)
and how large batches are is found by trying: the best of them is the ceiling. A server cannot quite
reach it, since it sees only the requests that are there.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import TypeAlias

import numpy as np
from benchmarks.encoder.mixes import MIXES, draw
from benchmarks.encoder.traffic import MINILM, load_encoder
from benchmarks.harness.cpu import machine_s, used_s
from benchmarks.rivals.forward import ENGINES, Forward, Ids, load_forward, pad

__all__ = ["Ceiling", "Cut", "Layout", "Pass", "cut_sorted", "cuts", "layouts", "main"]


@dataclass(frozen=True, slots=True)
class Cut:
    """How sorted rows are batched: at most so many rows, and so many elements with padding."""

    rows: int
    elements: int

    def __str__(self) -> str:
        return f"{self.elements} tokens" if self.rows >= MANY else f"{self.rows} rows"


@dataclass(frozen=True, slots=True)
class Layout:
    """How the cores are shared: processes x lanes (runs at once in each) x threads of a run."""

    processes: int
    lanes: int
    threads: int

    def __str__(self) -> str:
        return f"{self.processes}x{self.lanes}x{self.threads}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """All rows once.

    Attributes:
        cpu_s, others_s: CPU seconds of the lanes, and of the rest of this machine meanwhile.
    """

    layout: Layout
    cut: Cut
    rows: int
    wall_s: float
    cpu_s: float
    others_s: float

    @property
    def throughput(self) -> float:
        """Rows per second."""
        return self.rows / self.wall_s


Drawn: TypeAlias = "Mapping[str, Sequence[Ids]]"
MANY = 1 << 20
# A batch to run: mix, how many rows of it, how they are cut, and which batch of those.
Task: TypeAlias = "tuple[str, int, Cut, int] | None"
# Rows of the quick search for the best, and how many of the best go on into the rounds.
SEARCH_ROWS = 96
FINALISTS = 2


def layouts(cores: int) -> tuple[Layout, ...]:
    """Return the ways of using so many cores that are tried."""
    return tuple(dict.fromkeys((Layout(1, 1, cores), Layout(1, cores, 1), Layout(cores, 1, 1))))


def cuts() -> tuple[Cut, ...]:
    """Return the ways of batching that are tried."""
    by_rows = (Cut(rows, MANY) for rows in (1, 2, 4, 8, 16))
    return (*by_rows, *(Cut(MANY, elements) for elements in (128, 256, 512, 1024)))


def cut_sorted(lengths: Sequence[int], cut: Cut) -> list[list[int]]:
    """Return batches of positions, longest rows first; every position is in one of them."""
    batches: list[list[int]] = []
    room = 0
    for position in sorted(range(len(lengths)), key=lambda p: -lengths[p]):
        if not room:
            batches.append([])
            room = max(1, min(cut.rows, cut.elements // lengths[position]))
        batches[-1].append(position)
        room -= 1
    return batches


class Ceiling:
    """Processes with lanes, one set per layout; idle ones wait without using the cores.

    Args:
        engine, path: what `load_forward` takes.
        drawn: sequences by mix.
    """

    def __init__(self, engine: str, path: Path, drawn: Drawn) -> None:
        self._lengths = {name: [len(row) for row in rows] for name, rows in drawn.items()}
        cores = os.cpu_count() or 1
        self._lanes = {layout: _Lanes(layout, engine, path, drawn) for layout in layouts(cores)}
        self._finalists: dict[str, list[Pass]] = {}

    def search(self, mix: str) -> list[Pass]:
        """Try every layout and cut on some rows; return all, the best first."""
        tried = [
            self._run(mix, layout, cut, SEARCH_ROWS)
            for layout, cut in itertools.product(self._lanes, cuts())
        ]
        tried.sort(key=lambda done: -done.throughput)
        self._finalists[mix] = tried[:FINALISTS]
        return tried

    def measure(self, mix: str, rows: int) -> list[Pass]:
        """Run the best of the search again, on so many rows."""
        return [self._run(mix, best.layout, best.cut, rows) for best in self._finalists[mix]]

    def close(self) -> None:
        """End the processes."""
        for lanes in self._lanes.values():
            lanes.close()

    def _run(self, mix: str, layout: Layout, cut: Cut, rows: int) -> Pass:
        lanes = self._lanes[layout]
        count = len(cut_sorted(self._lengths[mix][:rows], cut))
        machine, before, started = machine_s(), lanes.cpu_s(), time.perf_counter()
        lanes.run([(mix, rows, cut, index) for index in range(count)])
        wall_s = time.perf_counter() - started
        cpu_s = lanes.cpu_s() - before
        others_s = max(0.0, machine_s() - machine - cpu_s)
        return Pass(
            layout=layout, cut=cut, rows=rows, wall_s=wall_s, cpu_s=cpu_s, others_s=others_s
        )


class _Lanes:
    """The processes of one layout."""

    def __init__(self, layout: Layout, engine: str, path: Path, drawn: Drawn) -> None:
        context = multiprocessing.get_context("spawn")
        self._tasks: SimpleQueue[Task] = context.SimpleQueue()
        self._done: SimpleQueue[int] = context.SimpleQueue()
        self._width = layout.processes * layout.lanes
        self._processes: list[BaseProcess] = [
            context.Process(
                target=_serve,
                args=(layout, engine, path, drawn, self._tasks, self._done),
                daemon=True,
            )
            for _ in range(layout.processes)
        ]
        for process in self._processes:
            process.start()
        for _ in self._processes:
            self._done.get()

    def run(self, tasks: Sequence[Task]) -> None:
        """Run every task and wait for the last one."""
        for task in tasks:
            self._tasks.put(task)
        for _ in tasks:
            self._done.get()

    def cpu_s(self) -> float:
        """Return the CPU seconds used so far."""
        return used_s({process.pid or 0: "ceiling" for process in self._processes})["ceiling"]

    def close(self) -> None:
        for _ in range(self._width):
            self._tasks.put(None)
        for process in self._processes:
            process.join()


def _serve(
    layout: Layout,
    engine: str,
    path: Path,
    drawn: Drawn,
    tasks: SimpleQueue[Task],
    done: SimpleQueue[int],
) -> None:
    """Run lanes in this process until each has got its None."""
    forward = load_forward(engine, path, layout.threads)
    forward(np.full((2, 24), 7), np.ones((2, 24), np.int64))
    batches = _Batches(drawn)
    done.put(0)
    lanes = [
        threading.Thread(target=_work, args=(forward, batches, tasks, done))
        for _ in range(layout.lanes)
    ]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()


def _work(
    forward: Forward, batches: _Batches, tasks: SimpleQueue[Task], done: SimpleQueue[int]
) -> None:
    while (task := tasks.get()) is not None:
        mix, rows, cut, index = task
        forward(*batches.get(mix, rows, cut)[index])
        done.put(index)


class _Batches:
    """Padded batches, made once per mix, number of rows and cut."""

    def __init__(self, drawn: Drawn) -> None:
        self._rows = drawn
        self._made: dict[tuple[str, int, Cut], list[tuple[Ids, Ids]]] = {}
        self._lock = threading.Lock()

    def get(self, mix: str, rows: int, cut: Cut) -> list[tuple[Ids, Ids]]:
        with self._lock:
            key = (mix, rows, cut)
            if key not in self._made:
                self._made[key] = list(_padded(self._rows[mix][:rows], cut))
            return self._made[key]


def _padded(rows: Sequence[Ids], cut: Cut) -> Iterator[tuple[Ids, Ids]]:
    for batch in cut_sorted([len(row) for row in rows], cut):
        yield pad([rows[position] for position in batch])


def main() -> None:
    """Print the best ways of each mix on one engine."""
    parser = argparse.ArgumentParser(prog="ceiling", description=__doc__)
    parser.add_argument("--engine", choices=tuple(ENGINES), default="openvino")
    parser.add_argument("--mix", nargs="+", choices=tuple(MIXES), default=list(MIXES))
    parser.add_argument("--rows", type=int, default=256, help="of each pass")
    options = parser.parse_args()
    drawn = {mix: draw(MIXES[mix], options.rows, 1) for mix in options.mix}
    with tempfile.TemporaryDirectory(prefix="ge-bench-") as temporary:
        files = load_encoder(MINILM, Path(temporary)).files
        ceiling = Ceiling(options.engine, files[ENGINES[options.engine]], drawn)
        for mix in options.mix:
            ceiling.search(mix)
            for done in ceiling.measure(mix, options.rows):
                print(
                    f"{options.engine}, {mix}: {done.throughput:.0f} rows/s, {done.layout} "
                    f"(processes x lanes x threads), {done.cut}; others {done.others_s:.1f} s"
                )
        ceiling.close()


if __name__ == "__main__":
    main()
