"""The memory plan of a repository, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ge_backend.device.workspace.plan import MemoryPlan, Need, footprint, plan_memory
from ge_backend.model.config.sizes import format_bytes
from ge_backend.serving.warmup.verdict import NOT_TESTED, Verdict
from ge_tools.model.demand import Demand
from ge_tools.model.tested import verdict_lines
from ge_tools.report.table import table

__all__ = ["DevicePlan", "Repository", "memory_json", "memory_text", "plan_devices"]

HEADER = ("model", "weights", "io buffers", "workspace", "range", "waits for")
UNKNOWN = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlan:
    """One device and the models on it.

    Attributes:
        pool_bytes: of its workspace pool; 0 where every model has scratch of its own.
        plan: the places in the pool; without one, in a pool in which no run waits.
        total_bytes: of the device's memory; 0 where it does not say.
    """

    device: str
    pool_bytes: int
    demands: tuple[Demand, ...]
    plan: MemoryPlan
    total_bytes: int

    @property
    def weights_bytes(self) -> int:
        """All weights."""
        return sum(demand.weights_bytes for demand in self.demands)

    @property
    def io_bytes(self) -> int:
        """All buffers whose size is known beforehand."""
        return sum(demand.io_bytes or 0 for demand in self.demands)

    @property
    def cache_bytes(self) -> int:
        """All caches of models that generate text."""
        return sum(demand.cache_bytes for demand in self.demands)

    @property
    def apart_bytes(self) -> int:
        """The workspace that they take if none shares with another."""
        return sum(footprint(d.workspace_bytes) for d in self.demands if d.workspace_bytes)

    @property
    def needed_bytes(self) -> int:
        """What is taken of the device in all."""
        held = self.weights_bytes + self.io_bytes + self.cache_bytes
        return held + (self.pool_bytes or self.apart_bytes)

    @property
    def missing_bytes(self) -> int:
        """What the device has too little; 0 if it suffices."""
        return max(self.needed_bytes - self.total_bytes, 0) if self.total_bytes else 0

    @property
    def fits(self) -> bool:
        """Whether everything has a place."""
        return not (self.missing_bytes or self.plan.shortages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """What was found in a model repository.

    Attributes:
        devices: those that its models run on.
        broken: what is wrong, by the model that cannot be loaded.
        left_out: ensembles, fused or not, whose steps lie beside them; models of other backends.
    """

    devices: tuple[DevicePlan, ...]
    broken: Mapping[str, str]
    left_out: tuple[str, ...]

    @property
    def tested(self) -> dict[str, tuple[Verdict, ...]]:
        """What was tested of the models of which anything could be, by name."""
        demands = (demand for memory in self.devices for demand in memory.demands)
        return {
            demand.model: demand.verdicts
            for demand in demands
            if any(verdict.verdict != NOT_TESTED for verdict in demand.verdicts)
        }

    @property
    def fits(self) -> bool:
        """Whether a server could load all of it."""
        return not self.broken and all(memory.fits for memory in self.devices)


def plan_devices(
    demands: Sequence[Demand], pool_bytes: Mapping[str, int]
) -> tuple[DevicePlan, ...]:
    """Return the plan of each device; `pool_bytes` is by device, 0 is none."""
    names = dict.fromkeys(device for demand in demands for device in demand.devices)
    return tuple(
        _plan_device(name, [d for d in demands if name in d.devices], pool_bytes[name])
        for name in names
    )


def _plan_device(name: str, demands: Sequence[Demand], pool_bytes: int) -> DevicePlan:
    needs = [
        Need(holder=d.model, nbytes=d.workspace_bytes, weight=max(d.run_ns, 1) / 1e9)
        for d in demands
    ]
    return DevicePlan(
        device=name,
        pool_bytes=pool_bytes,
        demands=tuple(demands),
        plan=plan_memory(needs, pool_bytes),
        total_bytes=max(demand.memory_bytes for demand in demands),
    )


def memory_text(repository: Repository) -> list[str]:
    """Return the plan for a person: a table per device, what it sums up to, what does not fit."""
    lines: list[str] = []
    for memory in repository.devices:
        lines += [*_device_lines(memory), ""]
    for name, verdicts in repository.tested.items():
        if not all(verdict.holds for verdict in verdicts):
            lines += [*verdict_lines(name, verdicts), ""]
    lines += [f"broken: {name}: {error}" for name, error in repository.broken.items()]
    if repository.left_out:
        lines.append(
            f"left out: ensembles, and models of other backends: {', '.join(repository.left_out)}"
        )
    return lines if lines and lines[-1] else lines[:-1]


def _device_lines(memory: DevicePlan) -> list[str]:
    pool = f"workspace pool {format_bytes(memory.pool_bytes)}" if memory.pool_bytes else "no pool"
    count = len(memory.demands)
    return [
        f"{memory.device}: {count} model{'s' * (count != 1)}, {pool}",
        *_table(memory),
        *_sums(memory),
        *_guesses(memory),
        *_complaints(memory),
    ]


def _table(memory: DevicePlan) -> list[str]:
    """Return a line per model; caches have a column where a model generates text."""
    rows = [_row(memory, demand) for demand in memory.demands]
    if not memory.cache_bytes:
        return table(HEADER, rows, left=2)
    caches = [format_bytes(d.cache_bytes) if d.cache_bytes else UNKNOWN for d in memory.demands]
    rows = [(*row[:2], cache, *row[2:]) for row, cache in zip(rows, caches, strict=True)]
    return table((*HEADER[:2], "cache", *HEADER[2:]), rows, left=2)


def _row(memory: DevicePlan, demand: Demand) -> tuple[str, ...]:
    plan = memory.plan
    place = plan.ranges.get(demand.model)
    where = UNKNOWN
    if place is not None and memory.pool_bytes:
        where = f"{format_bytes(place.offset)} to {format_bytes(place.end)}"
    elif demand.model in {shortage.holder for shortage in plan.shortages}:
        where = "does not fit"
    return (
        demand.model,
        format_bytes(demand.weights_bytes),
        UNKNOWN if demand.io_bytes is None else format_bytes(demand.io_bytes),
        format_bytes(demand.workspace_bytes) if demand.workspace_bytes else UNKNOWN,
        where,
        _others(memory, plan.waits_for(demand.model)),
    )


def _others(memory: DevicePlan, names: Sequence[str]) -> str:
    """Return the names, or in one word that they are all there are."""
    everybody = len(names) == len(memory.plan.ranges) - 1
    return "all others" if everybody and len(names) > 1 else ", ".join(names)


def _sums(memory: DevicePlan) -> list[str]:
    largest = format_bytes(max(demand.workspace_bytes for demand in memory.demands))
    apart = format_bytes(memory.apart_bytes)
    scratch = format_bytes(memory.pool_bytes or memory.apart_bytes)
    parts = [
        f"weights {format_bytes(memory.weights_bytes)}",
        *([f"caches {format_bytes(memory.cache_bytes)}"] if memory.cache_bytes else []),
        f"io buffers {format_bytes(memory.io_bytes)}",
        f"{'pool' if memory.pool_bytes else 'workspace'} {scratch}",
    ]
    whole = f"{format_bytes(memory.needed_bytes)} in all"
    if memory.total_bytes:
        whole += f" of the device's {format_bytes(memory.total_bytes)}"
    return [
        f"workspace: the largest need is {largest}, {apart} keep all apart",
        f"memory: {', '.join(parts)}: {whole}",
    ]


def _guesses(memory: DevicePlan) -> list[str]:
    """Return a line for each model whose requests may be larger than what was run."""
    return [
        f"{demand.model}: its workspace is that of one size, a guess ("
        + ", ".join(f"{name} {size}" for name, size in demand.guessed.items())
        + "); requests that are larger there take more"
        for demand in memory.demands
        if demand.guessed
    ]


def _complaints(memory: DevicePlan) -> list[str]:
    lines = [
        f"does not fit: {shortage.holder} needs {format_bytes(shortage.needed_bytes)} of workspace,"
        f" {format_bytes(shortage.missing_bytes)} more than the pool has"
        for shortage in memory.plan.shortages
    ]
    if memory.missing_bytes:
        lines.append(
            f"does not fit: {memory.device} has {format_bytes(memory.missing_bytes)} too little"
        )
    if memory.plan.unknown:
        names = ", ".join(memory.plan.unknown)
        lines.append(f"not known before they run, and not in the pool: the workspace of {names}")
    return lines


def memory_json(repository: Repository) -> str:
    """Return the same as one JSON object."""
    return json.dumps(
        {
            "fits": repository.fits,
            "devices": {memory.device: _device_json(memory) for memory in repository.devices},
            "tested": {
                name: [asdict(verdict) for verdict in verdicts]
                for name, verdicts in repository.tested.items()
            },
            "broken": dict(repository.broken),
            "left_out": repository.left_out,
        }
    )


def _device_json(memory: DevicePlan) -> dict[str, Any]:
    plan = memory.plan
    return {
        "fits": memory.fits,
        "pool_bytes": memory.pool_bytes,
        "weights_bytes": memory.weights_bytes,
        "io_bytes": memory.io_bytes,
        "cache_bytes": memory.cache_bytes,
        "apart_bytes": memory.apart_bytes,
        "needed_bytes": memory.needed_bytes,
        "total_bytes": memory.total_bytes,
        "missing_bytes": memory.missing_bytes,
        "fragmentation": plan.fragmentation,
        "shortages": {shortage.holder: shortage.missing_bytes for shortage in plan.shortages},
        "models": {demand.model: _model_json(demand, plan) for demand in memory.demands},
    }


def _model_json(demand: Demand, plan: MemoryPlan) -> dict[str, Any]:
    place = plan.ranges.get(demand.model)
    return {
        "weights_bytes": demand.weights_bytes,
        "io_bytes": demand.io_bytes,
        "cache_bytes": demand.cache_bytes,
        "workspace_bytes": demand.workspace_bytes,
        "run_ns": demand.run_ns,
        "guessed": dict(demand.guessed),
        "range": None if place is None else (place.offset, place.end),
        "waits_for": plan.waits_for(demand.model),
    }
