"""`ge-backend tune`: bucket sizes, engine and precision from the traffic that a model has had."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ge_backend.errors import ConfigError
from ge_backend.serving.learning.boundaries import SizeCost
from ge_backend.serving.learning.regrid import row_costs, up_to
from ge_backend.serving.warmup.measure import kept_costs
from ge_backend.serving.warmup.shaped import ShapedModel
from ge_backend.shapes.traffic.histogram import SizeHistogram
from ge_tools.model.applied import apply_settings
from ge_tools.model.as_served import Load, check_measurable, log_normal, measured
from ge_tools.model.offline import open_offline
from ge_tools.model.proposal import Proposal, propose
from ge_tools.model.trace_file import read_trace
from ge_tools.model.ways import way_of, ways_of
from ge_tools.report.tuning import Tuning, tuning_json, tuning_text
from ge_tools.report.ways import Comparison, comparison_json, comparison_text

__all__ = ["register"]

DESCRIPTION = """\
Finds the sizes of each ragged axis that cost the recorded traffic least, for so many graphs. Costs
are those that warm-up measured on this machine, else elements. Nothing is changed without --apply,
and with it only sizes that save 5 % or that cover more, unless --graphs says how many there are to
be.

With --measure the model is served in every engine that is installed, in each precision that it has,
with requests of that traffic, or of made-up lengths where there is none: several at once, each way
in a process of its own. The lines are of the fastest in the model's own precision.
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "tune", help="find better bucket sizes from recorded traffic", description=DESCRIPTION
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="the folder of a model")
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="sizes from a file instead: a size a line, or JSON lines such as "
        '{"rows": 1, "sizes": {"sequence": 17}}',
    )
    parser.add_argument(
        "--graphs", type=int, metavar="K", help="sizes per axis; default: as many as now"
    )
    parser.add_argument(
        "--apply", action="store_true", help="write the sizes into the model's config.pbtxt"
    )
    parser.add_argument("--device", help="default: the model's own, else GE_DEVICE, else cpu")
    parser.add_argument(
        "--cache-dir", type=Path, metavar="DIR", help="where traffic is kept; default: GE_CACHE_DIR"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    measure = parser.add_argument_group("engines and precisions")
    measure.add_argument(
        "--measure", action="store_true", help="serve it in each, one after the other, and compare"
    )
    measure.add_argument(
        "--precision",
        action="append",
        default=[],
        metavar="P",
        help="measure only this one, and choose it; may be given several times",
    )
    measure.add_argument(
        "--at-once", type=_at_least_one, default=16, metavar="N", help="requests in flight (16)"
    )
    measure.add_argument(
        "--seconds", type=float, default=10.0, metavar="S", help="for each way (10)"
    )
    parser.set_defaults(func=tune)


def tune(arguments: argparse.Namespace) -> int:
    """Print what other sizes would save, and apply them if asked to; return 0.

    Raises:
        GeError: the model cannot be read, there is no traffic, or the sizes cannot be applied.
    """
    if arguments.measure:
        return _measure(arguments)
    path, device = arguments.model, arguments.device
    with open_offline(path, device=device, cache_dir=arguments.cache_dir) as model:
        tuning = work_out(model, arguments.trace, arguments.graphs)
        asked = tuning.parameters() if arguments.graphs is not None else tuning.worthwhile()
        config_file = model.config.directory.parent / "config.pbtxt"
        if arguments.apply:
            _check_applicable(model, asked)
    diff = apply_settings(config_file, asked) if arguments.apply else None
    if arguments.json:
        print(tuning_json(tuning, diff))
    else:
        print("\n".join(tuning_text(tuning, diff)))
    return 0


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of requests; expected 1 or more")
    return int(text)


def _measure(arguments: argparse.Namespace) -> int:
    """Print how fast the model is in each engine and precision, and apply the best if asked to."""
    if arguments.graphs is not None:
        raise ConfigError("--graphs is of sizes alone; leave it out with --measure")
    comparison, file = _compared(arguments)
    diff = apply_settings(file, comparison.parameters()) if arguments.apply else None
    if arguments.json:
        print(comparison_json(comparison, diff))
    else:
        print("\n".join(comparison_text(comparison, diff)))
    return 0


def _compared(arguments: argparse.Namespace) -> tuple[Comparison, Path]:
    """Return what came of each way, better sizes of the best one too, and the config.pbtxt."""
    path, device, trace = arguments.model, arguments.device, arguments.trace
    with open_offline(path, device=device, cache_dir=arguments.cache_dir) as model:
        config, cache_dir, axes = model.config, model.store.directory, model.layout.axes
        check_measurable(model.layout, config.name)
        now = way_of(config, model.session.engine)
        source, traffic, sizes = _traffic(model, trace)
    load = Load(at_once=arguments.at_once, seconds=arguments.seconds, axes=axes, traffic=traffic)
    ways = dict.fromkeys([now, *ways_of(config, arguments.precision)])
    comparison = Comparison(
        model=config.name,
        load=f"{load.at_once} requests at once for {load.seconds:g} s; {source}",
        found={way: measured(config, way, load, cache_dir) for way in ways},
        now=now,
        allowed=tuple(arguments.precision) or (config.precision,),
    )
    best = comparison.best
    if best is not None and sizes and comparison.measured[best].bucketed:
        finer = replace(best, buckets=tuple(sizes.items()))
        found = {**comparison.found, finer: measured(config, finer, load, cache_dir)}
        comparison = replace(comparison, found=found)
    return comparison, config.directory.parent / "config.pbtxt"


def _traffic(
    model: ShapedModel, trace: Path | None
) -> tuple[str, Mapping[str, SizeHistogram], dict[str, str]]:
    """Return where lengths come from, how often each comes, by axis, and better sizes for them."""
    axes, recorded = model.layout.axes, model.store.traffic(model.config.name)
    if not axes:
        return "requests of one size, as no axis is padded", {}, {}
    if trace is None and not all(axis in recorded and recorded[axis].total for axis in axes):
        made_up = {axis.name: log_normal(axis.largest) for axis in model.grid.axes[1:]}
        return "log-normal lengths, as no traffic is recorded", made_up, {}
    traffic = _recorded(model) if trace is None else read_trace(trace, axes)
    where = trace or model.store.traffic_path(model.config.name)
    return f"lengths from {where}", traffic, _new_sizes(model, trace)


def _new_sizes(model: ShapedModel, trace: Path | None) -> dict[str, str]:
    """Return parameters with better sizes; empty where something else says which there are."""
    sizes = work_out(model, trace, None).worthwhile()
    with contextlib.suppress(ConfigError):
        _check_applicable(model, sizes)
        return sizes
    return {}


def work_out(model: ShapedModel, trace: Path | None, graphs: int | None) -> Tuning:
    """Return the best sizes of each ragged axis.

    Raises:
        ConfigError: the model has no ragged axis, or no traffic.
    """
    axes = model.layout.axes
    name = model.config.name
    if not axes or model.layout.concatenated:
        raise ConfigError(f"model {name!r} pads no axis, so it has no sizes to tune; {_why(model)}")
    traffic = _recorded(model) if trace is None else read_trace(trace, axes)
    kept = {axis: up_to(traffic[axis], model.layout.limits.get(axis)) for axis in axes}
    empty = [axis for axis in axes if not kept[axis].total]
    if empty:
        raise ConfigError(
            f"model {name!r}: no size of axis {empty[0]!r} is within the graph's limit of "
            f"{model.layout.limits[empty[0]]}"
        )
    any_shape = not model.session.shape_policy.padded
    costs = None if any_shape else _costs_by_axis(model, {**traffic, **kept})
    return Tuning(
        model=name,
        source=str(trace or model.store.traffic_path(name)),
        measured=costs is not None,
        static_shapes=model.session.shape_policy.prepared,
        any_shape=any_shape,
        left_out=sum(traffic[axis].total - kept[axis].total for axis in axes),
        proposals=tuple(
            _proposal(model, axis, kept[axis], graphs, None if costs is None else costs[axis])
            for axis in axes
        ),
    )


def _why(model: ShapedModel) -> str:
    """Return why a model pads no axis, and what would change that."""
    layout = model.layout
    if layout.concatenated:
        return "its requests are concatenated"
    if not layout.equal_axes:
        return "every size of its inputs is fixed by the file or by config.pbtxt"
    any_shape = not model.session.shape_policy.padded
    if any_shape and model.config.max_batch_size <= 1:
        return (
            f"it does not batch (max_batch_size: {model.config.max_batch_size}) and its engine "
            "runs any shape, so each request runs at its own size"
        )
    return "mark an input allow_ragged_batch in config.pbtxt if its requests may differ in length"


def _check_applicable(model: ShapedModel, asked: Mapping[str, str]) -> None:
    """Check that the model would load with these parameters.

    Raises:
        ConfigError: something else says which buckets it has, or its settings do not allow these.
    """
    config, name = model.config, model.config.name
    if config.bucket_file is not None:
        raise ConfigError(
            f"model {name!r}: its buckets come from {config.bucket_file}; remove the parameter "
            "'buckets' from config.pbtxt, then apply"
        )
    if model.session.shape_policy.fixed:
        raise ConfigError(
            f"model {name!r}: its file runs only in the shapes that it was compiled for; compile "
            "it for these sizes instead"
        )
    if config.declared_buckets:
        raise ConfigError(
            f"model {name!r}: its buckets are the gears of 'ge.dynamicDims'; remove that parameter "
            "from config.pbtxt, then apply"
        )
    try:
        model.grid_with({key.removeprefix("buckets."): sizes for key, sizes in asked.items()})
    except ConfigError as error:
        raise ConfigError(f"model {name!r} would not load with these sizes: {error}") from error


def _recorded(model: ShapedModel) -> dict[str, SizeHistogram]:
    traffic = model.store.traffic(model.config.name)
    if all(axis in traffic and traffic[axis].total for axis in model.layout.axes):
        return traffic
    where = model.store.traffic_path(model.config.name)
    raise ConfigError(
        f"no traffic of model {model.config.name!r} is recorded "
        + ("(GE_CACHE_DIR is off)" if where is None else f"in {where}")
        + "; serve it with the parameter learn=record (the default) and the same GE_CACHE_DIR, and "
        "send requests; or give sizes with --trace FILE"
    )


def _proposal(
    model: ShapedModel, axis: str, traffic: SizeHistogram, graphs: int | None, cost: SizeCost | None
) -> Proposal:
    place = 1 + model.layout.axes.index(axis)
    now = sorted({bucket[place] for bucket in model.grid.entries})
    return propose(axis, traffic, now, graphs, float if cost is None else cost)


def _costs_by_axis(
    model: ShapedModel, traffic: Mapping[str, SizeHistogram]
) -> dict[str, SizeCost] | None:
    """Return what a row costs by its size on each axis; None where nothing was measured."""
    costs = kept_costs(model)
    if not costs:
        return None
    return row_costs(costs, traffic, model.layout.axes, max(model.config.max_batch_size, 1))
