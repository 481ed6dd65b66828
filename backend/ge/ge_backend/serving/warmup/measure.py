"""From buckets to a cost model: prepared, measured, or remembered from an earlier start."""

from __future__ import annotations

import hashlib
import logging
import math
import platform
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

from ge_backend.errors import Cancelled, GraphFailed
from ge_backend.executor.client.session import Session
from ge_backend.model.files.model_file import model_files
from ge_backend.model.layout.layout import Layout
from ge_backend.serving.warmup.shaped import ShapedModel
from ge_backend.serving.warmup.warmup import first_cost, warm_up
from ge_backend.shapes.buckets.corrected import CorrectedCosts
from ge_backend.shapes.buckets.costs import (
    CostModel,
    DynamicCosts,
    ShapeCache,
    StaticCosts,
    bounded_costs,
    element_costs,
)
from ge_backend.shapes.buckets.grid import Bucket, largest_buckets

__all__ = [
    "added_costs",
    "cost_key",
    "cost_model",
    "estimated_costs",
    "fingerprint",
    "kept_costs",
    "known_costs",
    "measured_anew",
    "measured_costs",
    "processor",
    "processor_kind",
    "release_of",
    "shape_cache",
]

log = logging.getLogger(__name__)

# Runs of a bucket that are measured: the shortest counts, as others can only lengthen one.
REPEATS = 3
SAMPLES, SAMPLE_BYTES = 64, 1 << 16
# Between the smallest and the largest size that is run at every start there are this many steps.
SAMPLED_SIZES = 3
CPUINFO = Path("/proc/cpuinfo")
# How the names of those begin that engines compute with, as Linux calls them.
INSTRUCTIONS = ("avx", "amx", "asimd", "sve", "bf16", "i8mm")


def kept_costs(model: ShapedModel) -> dict[Bucket, float]:
    """Return what warm-up of this graph on this machine measured before, by bucket; bounded.

    Of buckets, too, that the model does not have any more.
    """
    kept = model.store.costs(cost_key(model))
    return bounded_costs(kept, kept, packed=model.session.shape_policy.packed)


def known_costs(model: ShapedModel) -> dict[Bucket, float]:
    """Return costs of the buckets that the model has, estimates for those not measured before.

    Empty where none of them was.
    """
    kept, entries = kept_costs(model), model.grid.entries
    return _completed(entries, kept) if any(bucket in kept for bucket in entries) else {}


def measured_anew(model: ShapedModel) -> dict[Bucket, float]:
    """Measure every bucket now and keep the costs, as warm-up does; nanoseconds by bucket."""
    costs = warm_up(model.session, model.layout, model.grid.entries, REPEATS)
    key = cost_key(model)
    kept = {**model.store.costs(key), **costs}
    model.store.keep_costs(key, kept)
    return bounded_costs(costs, kept, packed=model.session.shape_policy.packed)


def estimated_costs(model: ShapedModel) -> dict[Bucket, float]:
    """Return costs to begin with, after one run in the smallest bucket: the model answers.

    They are those of an earlier start; the others are estimated from what is known of them. Where
    rows are padded to buckets, those that were measured do: others may have failed.
    """
    kept, entries = kept_costs(model), list(model.grid.entries)
    if model.session.shape_policy.bucketed:
        entries = [bucket for bucket in entries if bucket in kept] or entries
    tried = first_cost(model.session, model.layout, min(entries, key=math.prod))
    found = len([bucket for bucket in entries if bucket in kept])
    others = "the others are measured now" if found < len(entries) else "some are looked at now"
    log.info("serving with %d of %d costs, %s", found, len(entries), others)
    return _completed(entries, {**tried, **kept})


def measured_costs(
    model: ShapedModel,
    others: Sequence[Session] = (),
    stopped: Callable[[], bool] = lambda: False,
) -> dict[Bucket, float]:
    """Prepare the model's buckets and return their costs in nanoseconds.

    Costs that an earlier start measured are taken from the store, so that only what has to be
    compiled is prepared again. Buckets that were not measured get an estimate, also those that are
    left when `stopped` ends it between two; those that failed get none where rows are padded to
    buckets and need not be, so that no row is. The others are sessions with its further devices,
    all of one kind: they are prepared, too, and not measured on.

    Raises:
        ModelError: a bucket of an engine with static shapes failed.
    """
    config, layout, session, entries = model.config, model.layout, model.session, model.grid.entries
    if layout.concatenated or not (config.warmup or session.shape_policy.prepared):
        return element_costs(list(entries))
    key = cost_key(model)
    kept = model.store.costs(key)
    missing = [bucket for bucket in entries if bucket not in kept]
    if kept:
        found = len(entries) - len(missing)
        log.info("costs of %d buckets are kept from an earlier start", found)
    chosen = entries if session.shape_policy.padded else [*missing, *_rerun(session, entries, kept)]
    measured = _warmed(model, others, chosen, kept.keys(), stopped)
    costs = {**kept, **measured}
    if measured.keys() - kept.keys():
        model.store.keep_costs(key, costs)
    able = [bucket for bucket in entries if bucket not in session.failed] or entries
    return _completed(able, bounded_costs(costs, costs, packed=session.shape_policy.packed))


def added_costs(
    model: ShapedModel,
    others: Sequence[Session],
    known: Mapping[Bucket, float],
    stopped: Callable[[], bool],
) -> dict[Bucket, float]:
    """Prepare the buckets that a model is to have from now on, and return the costs of them all.

    They are measured beside traffic, which makes them look slow. So none costs more than a known
    one with as much to do: else the planner would never choose it.

    Raises:
        Cancelled: `stopped` said so before all were prepared.
        GraphFailed: some could not be prepared.
        ModelError: as above, where shapes are static.
    """
    session, buckets = model.session, model.grid.entries
    fresh = [bucket for bucket in buckets if bucket not in known]
    to_measure = fresh if model.config.warmup else []
    chosen = buckets if session.shape_policy.padded else to_measure
    measured = _warmed(model, others, chosen, known.keys(), stopped)
    if stopped():
        raise Cancelled("the model is unloaded before its new buckets are prepared")
    if len(measured) < len(to_measure):
        failed = len(to_measure) - len(measured)
        raise GraphFailed(f"{failed} of {len(to_measure)} new buckets cannot be run")
    bounded = bounded_costs(measured, known, packed=session.shape_policy.packed)
    completed = _completed([*known, *fresh], {**known, **bounded})
    return {bucket: completed[bucket] for bucket in buckets}


def cost_model(
    model: ShapedModel, costs: Mapping[Bucket, float], shapes: ShapeCache | None = None
) -> CostModel:
    """Return what the planner asks, for these costs; they follow what runs take if measured.

    `max_elements` bounds what packed rows really have, so there the planner sees to it; what is
    concatenated runs as it comes. `shapes` are those that the engine has seen; None: none yet.
    """
    config, session = model.config, model.session
    # Not the session itself: costs outlive it.
    shapes_run = session.shape_policy
    seen = shape_cache(model.layout) if shapes is None else shapes

    def make(table: Mapping[Bucket, float]) -> CostModel:
        if shapes_run.prepared:
            return StaticCosts(table)
        most = max(config.max_batch_size, 1)
        most_elements = 0 if shapes_run.packed or config.concatenate else config.max_elements
        free = DynamicCosts(table, most, most_elements, seen)
        return StaticCosts(table, free) if shapes_run.bucketed else free

    measured = config.warmup and not config.concatenate
    return CorrectedCosts(costs, make) if measured else make(costs)


def shape_cache(layout: Layout) -> ShapeCache:
    """Return what notes the shapes that an engine sees; none yet."""
    least = (layout.least_rows, *layout.smallest)
    return ShapeCache(least=least if max(least) > 1 else ())


def cost_key(model: ShapedModel) -> list[str]:
    """Return everything that a measured cost depends on."""
    layout, session = model.layout, model.session
    return [
        *map(fingerprint, model_files(Path(session.source.path))),
        session.source.precision,
        session.engine,
        release_of(session.engine) if session.engine else "",
        str(session.source.threads),
        str(session.source.options),
        model.config.placement.kind,
        str(session.lanes),
        *_machine(session),
        ",".join(layout.axes),
        str(layout.batched),
        *(f"{name} {size}" for name, size in sorted(layout.sizes.items())),
    ]


def _warmed(
    model: ShapedModel,
    others: Sequence[Session],
    chosen: Sequence[Bucket],
    known: Collection[Bucket],
    stopped: Callable[[], bool],
) -> dict[Bucket, float]:
    """Return the costs of these buckets but for the known ones, which are prepared alone.

    Where nothing is measured all are. Then all buckets of the model are prepared on its further
    devices, side by side; where any shape runs, a few runs wake the engine up, and that is all.
    """
    layout, buckets = model.layout, model.grid.entries
    known = known if model.config.warmup else buckets
    measured = warm_up(model.session, layout, chosen, REPEATS, known=known, stopped=stopped)

    def prepare(session: Session) -> None:
        padded = session.shape_policy.padded
        own = buckets if padded else _rerun(session, buckets, buckets)
        warm_up(session, layout, own, 0, known=buckets, stopped=stopped)

    if others:
        with ThreadPoolExecutor(len(others)) as threads:
            list(threads.map(prepare, others))  # raises what any of them raised
    return measured


def _machine(session: Session) -> list[str]:
    """Return what tells kinds of machines apart.

    Not the host's name: every container has another one, and would measure anew.
    """
    report = session.inspect()
    memory = f"{report.total_bytes >> 30} GiB"
    # What was measured on a CPU before chips were told holds on.
    return [platform.machine(), processor_kind(), memory, *filter(None, [report.chip])]


def processor() -> str:
    """Return the name of the processor; "" where the system does not tell."""
    return _first_processor().get("model name", "")


def processor_kind() -> str:
    """Return what tells processors apart by what they compute: the name, and instructions.

    A virtual machine may show an instruction that another one hides on the same processor.
    """
    told = _first_processor()
    has = f"{told.get('flags', '')} {told.get('Features', '')}".split()
    own = [one for one in has if one.startswith(INSTRUCTIONS)]
    return " ".join([told.get("model name", ""), *own])


def release_of(library: str) -> str:
    """Return what tells the installed release of a library from others; "" where there is none."""
    spec = find_spec(library)
    return fingerprint(Path(spec.origin)) if spec and spec.origin else ""


def fingerprint(path: Path) -> str:
    """Return what tells two model files apart wherever they lie: size and samples of the content.

    A model of many gigabytes is not read whole for it.
    """
    size = path.stat().st_size
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for sample in range(SAMPLES):
            file.seek(sample * max(size - SAMPLE_BYTES, 0) // (SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
    return f"{size}-{digest.hexdigest()[:32]}"


def _first_processor() -> dict[str, str]:
    """Return what the system says of its first processor, by name; nothing if it does not."""
    try:
        with CPUINFO.open(encoding="utf-8") as lines:  # up to the second one, of hundreds perhaps
            told = [line.partition(":") for line in takewhile(str.strip, lines)]
    except OSError:
        return {}
    return {name.strip(): said.strip() for name, _, said in told}


def _rerun(session: Session, entries: Sequence[Bucket], kept: Container[Bucket]) -> list[Bucket]:
    """Return the buckets to run again although their costs are kept.

    Where scratch memory comes from a pool the largest are among them: what these take, which the
    executor remembers only while it lives, decides about the model's place and bounds every run.
    """
    chosen = _samples(entries, kept)
    if session.inspect().pool.size_bytes:
        chosen += [b for b in largest_buckets(entries) if b in kept and b not in chosen]
    return chosen


def _samples(entries: Sequence[Bucket], kept: Container[Bucket]) -> list[Bucket]:
    """Return some buckets to run again although their costs are kept: small and large, few rows.

    Nothing must be compiled, but the first runs of an engine take memory and make its threads, and
    a model that cannot run is better found now than by a request.
    """
    fewest = min(bucket[0] for bucket in entries)
    alone = sorted((bucket for bucket in entries if bucket[0] == fewest), key=math.prod)
    chosen = {alone[(len(alone) - 1) * part // SAMPLED_SIZES] for part in range(SAMPLED_SIZES + 1)}
    return [bucket for bucket in chosen if bucket in kept]


def _completed(entries: Sequence[Bucket], costs: Mapping[Bucket, float]) -> dict[Bucket, float]:
    """Return a cost for every bucket: those not measured cost in proportion to their elements."""
    known = {bucket: costs[bucket] for bucket in entries if bucket in costs}
    estimates = element_costs(list(entries))
    if not known:
        return estimates
    scale = sum(known.values()) / sum(estimates[bucket] for bucket in known)
    return {b: known.get(b, estimate * scale) for b, estimate in estimates.items()}
