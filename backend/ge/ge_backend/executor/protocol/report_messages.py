"""The messages by which anybody may ask an executor what it holds, and what it did."""

from __future__ import annotations

from dataclasses import dataclass

from ge_backend.tensors import Shape
from ge_backend.workspace.pool import PoolFigures

__all__ = ["GraphReport", "History", "Inspect", "LookBack", "PastRun", "Report"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspect:
    """Ask what the executor holds."""

    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphReport:
    """One loaded graph: how many connections hold it, how many shapes are prepared."""

    path: str
    holders: int
    prepared: int
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the executor holds, and how much memory its device has left.

    Attributes:
        evictions: graphs that nobody held and that were closed to make room for another.
        kept_tensors: how many tensors stay on the device between runs now.
        kept_bytes: the device memory that is set aside for such.
        defects: what did not agree when ranges, leases and graphs were recounted; nothing should.
    """

    id: int
    device: str
    pid: int
    connections: int
    graphs: tuple[GraphReport, ...]
    free_bytes: int
    total_bytes: int
    pool: PoolFigures
    evictions: int
    defects: tuple[str, ...]
    kept_tensors: int = 0
    kept_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LookBack:
    """Ask for the runs that ended after the one with the number `after`; 0: for all kept ones."""

    id: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """A run that has ended, or a preparation. Times are CLOCK_MONOTONIC.

    Attributes:
        number: counts the runs of this executor, by their ends, from 1.
        model: what it was loaded as; the file where nobody said.
        bucket: rows and sizes; empty for a preparation.
        lane: the name of the thread that ran it.
        came_ns: when the executor received it.
        held_up_ns: for how much of its waiting a lane was free and its workspace was not.
        error: a class name of `ge_backend.errors`; "" if it went well.
    """

    number: int
    model: str
    bucket: Shape
    real_rows: int
    lane: str
    came_ns: int
    started_ns: int
    ended_ns: int
    held_up_ns: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Some of the runs that were asked for, the oldest first.

    Attributes:
        missed: how many are kept no more.
        last: the number of the newest run; ask again until `runs` has it.
    """

    id: int
    runs: tuple[PastRun, ...]
    missed: int
    last: int
