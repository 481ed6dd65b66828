"""How many servers a model needs for a load, from what its runs cost and the traffic it had."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ge_backend.errors import ConfigError
from ge_backend.serving.batching.plan import Policy, plan
from ge_backend.serving.batching.request import Request
from ge_backend.serving.warmup.measure import cost_model, known_costs, measured_anew
from ge_backend.serving.warmup.shaped import ShapedModel
from ge_backend.serving.warmup.warmup import guessed_sizes
from ge_backend.shapes.buckets.costs import CostModel
from ge_backend.shapes.traffic.histogram import SizeHistogram
from ge_backend.shapes.traffic.traffic import REQUEST_ROWS
from ge_backend.tensors import Array
from ge_tools.model.offline import open_offline
from ge_tools.model.queueing import Forecast, fewest_replicas, waiting

__all__ = ["LoadPlan", "load_text", "plan_load"]

DRAWS = 8  # batches of each size
MAX_TOGETHER = 64  # larger batches cost as these do, per request, or less
SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """The servers for one model.

    Attributes:
        rate: requests per second, of all of them.
        p99_s: within which 99 of 100 are to be answered.
        alone_s: a request that is alone.
        together: how many of them run at once at most.
        together_s: that many.
        from_traffic: sizes are those of recorded requests, not the largest ones.
        replicas: the fewest that do; `found` is how it is with them, `fewer` with one less.
        largest: the size of each padded axis in the largest bucket.
        guessed: the sizes of free axes at which runs were measured, where only requests tell them.
    """

    model: str
    rate: float
    p99_s: float
    lanes: int
    alone_s: float
    together: int
    together_s: float
    from_traffic: bool
    replicas: int
    found: Forecast
    fewer: Forecast | None
    largest: Mapping[str, int] = field(default_factory=dict)
    guessed: Mapping[str, int] = field(default_factory=dict)


def plan_load(
    path: Path, rate: float, p99_s: float, *, device: str | None, cache_dir: Path | None
) -> LoadPlan:
    """Open the model of a folder and work out how many servers serve a load in time.

    Costs are those that warm-up has kept; where it has kept none, they are measured now. The lanes
    of a device count as servers of their own, which is on the safe side.

    Raises:
        ConfigError: a number is none, or no number of servers is enough.
        GeError: the model would not load in a server either.
    """
    for name, value in (("--load", rate), ("--p99", p99_s)):
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{name} is {value}; expected more than 0")
    with open_offline(path, device=device, cache_dir=cache_dir) as model:
        if model.layout.concatenated:
            raise ConfigError(
                f"model {model.config.name!r} concatenates its requests, so its runs have no "
                "table of costs; measure it under load instead"
            )
        times, lanes = _times(model), model.session.lanes

        def load(replicas: int) -> Forecast | None:
            return waiting(times, rate / (replicas * lanes))

        replicas = fewest_replicas(load, p99_s)
        found = None if replicas is None else load(replicas)
        if replicas is None or found is None:
            raise ConfigError(
                f"model {model.config.name!r}: no number of servers answers 99 of 100 requests "
                f"within {p99_s * 1e3:g} ms: alone on a server they take "
                f"{float(np.quantile(times[0], 0.99)) * 1e3:.3g} ms"
            )
        return LoadPlan(
            model=model.config.name,
            rate=rate,
            p99_s=p99_s,
            lanes=lanes,
            alone_s=float(times[0].mean()),
            together=len(times),
            together_s=float(times[-1].mean()),
            from_traffic=bool(model.store.traffic(model.config.name)),
            replicas=replicas,
            found=found,
            fewer=load(replicas - 1) if replicas > 1 else None,
            largest=_largest(model),
            guessed=guessed_sizes(model.layout),
        )


def load_text(planned: LoadPlan) -> list[str]:
    """Return it for people."""
    wish = f"{planned.rate:g} requests/s, 99 of 100 within {planned.p99_s * 1e3:g} ms"
    alone, together = planned.alone_s * 1e3, planned.together_s * 1e3
    company = f"{planned.together} together {together:.3g} ms"
    if planned.together == 1:
        company = "and none runs beside it"
    runs = f"one alone takes {alone:.3g} ms, {company}"
    lines = [
        f"{planned.model}: {wish}",
        f"  {runs} ({_sizes(planned)})",
        f"  replicas: {planned.replicas}",
        f"    with {planned.replicas}: {_line(planned.found)}",
    ]
    if planned.replicas > 1:
        lines.append(f"    with {planned.replicas - 1}: {_line(planned.fewer)}")
    return lines


def _sizes(planned: LoadPlan) -> str:
    """Return of which sizes the times are."""
    largest = ", ".join(f"{name} {size}" for name, size in planned.largest.items())
    guessed = ", ".join(f"{name} {size}" for name, size in planned.guessed.items())
    known = "sizes as recorded"
    if not planned.from_traffic:
        known = f"the largest bucket, {largest}: no size is recorded" if largest else ""
    if guessed:
        guess = f"{guessed} is a guess, larger requests take longer"
        return f"{known}; {guess}" if planned.largest else guess
    return known or "all requests have one size"


def _largest(model: ShapedModel) -> dict[str, int]:
    sizes = [max(column) for column in zip(*model.grid.entries, strict=True)]
    return dict(zip(model.layout.axes, sizes[1:], strict=True))


def _line(found: Forecast | None) -> str:
    if found is None:
        return "requests come faster than they are answered"
    return (
        f"busy {found.busy:.0%}, {found.batch:.1f} at once, p50 {found.p50_s * 1e3:.3g} ms, "
        f"p99 {found.p99_s * 1e3:.3g} ms"
    )


def _times(model: ShapedModel) -> Array:
    """Return float64 [B, DRAWS]: seconds that 1 to B requests drawn from the traffic take."""
    costs = cost_model(model, known_costs(model) or measured_anew(model))
    draw = _drawing(model, costs)
    rows = np.mean([request.rows for request in (draw(i) for i in range(64))])
    most = int(np.clip(model.config.max_batch_size / rows, 1, MAX_TOGETHER))
    policy = Policy(
        axes=model.layout.axes,
        packed=model.session.shape_policy.packed,
        max_elements=model.config.max_elements,
    )

    def run_s(count: int) -> float:
        planned = plan([draw(index) for index in range(count)], costs, policy)
        return sum(sub_batch.cost_ns for sub_batch in planned.sub_batches) / 1e9

    times = np.array([[run_s(count) for _ in range(DRAWS)] for count in range(1, most + 1)])
    if not (times > 0).all():
        raise ConfigError(
            f"model {model.config.name!r}: its runs were never measured (warmup: off)"
        )
    return times


def _drawing(model: ShapedModel, costs: CostModel) -> Callable[[int], Request]:
    """Return what draws requests as they were recorded, each axis by itself.

    Without a record they have one row of the largest size. Tensors they have none; the number is
    their index.
    """
    rng = np.random.default_rng(SEED)
    traffic = model.store.traffic(model.config.name)
    rows = _points(traffic.get(REQUEST_ROWS), 1)
    sizes = [
        _points(traffic.get(axis), largest)
        for axis, largest in zip(model.layout.axes, costs.limits, strict=True)
    ]

    def draw(index: int) -> Request:
        count, *drawn = (int(rng.choice(values, p=shares)) for values, shares in (rows, *sizes))
        return Request(index=index, rows=count, tensors={}, sizes=tuple(drawn))

    return draw


def _points(seen: SizeHistogram | None, otherwise: int) -> tuple[Array, Array]:
    """Return values and the share of each."""
    points = (seen.points() if seen is not None else []) or [(otherwise, 1)]
    values, counts = (np.array(column) for column in zip(*points, strict=True))
    return values, counts / counts.sum()
