"""`ge-backend buckets`: what a rule, a bucket file or a model's configuration makes."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ge_backend.errors import ConfigError, GeError
from ge_backend.model.layout.layout import Layout
from ge_backend.serving.warmup.measure import kept_costs, measured_anew
from ge_backend.shapes.buckets.bucket_file import read_buckets
from ge_backend.shapes.buckets.grid import Bucket, BucketGrid
from ge_backend.shapes.buckets.recipes import RULES, Recipe, make_recipe, rule_named
from ge_tools.model.demand import tensor_bytes
from ge_tools.model.offline import open_offline
from ge_tools.report.table import table

__all__ = ["register", "run"]

# Option and the number of a rule that it gives.
_NUMBERS = ("min", "step", "max", "limit", "pad_max", "pad_percent", "turning_point")
# Source of buckets -> what only it takes.
_OPTIONS = {
    "strategy": (*_NUMBERS, "compat", "contiguous"),
    "model": ("device", "measure", "cache_dir"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _BucketLine:
    """One bucket.

    Attributes:
        cost_ns: of one run; None where it was not measured.
        tensor_bytes: of its inputs and outputs; None where the graph alone, or the request, knows.
    """

    bucket: Bucket
    elements: int
    cost_ns: float | None
    tensor_bytes: int | None


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `ge-backend`."""
    parser = subparsers.add_parser(
        "buckets",
        help="print the buckets of a rule, a file or a model",
        description="Print the sizes that a rule makes for one axis, the buckets of a file, or the "
        "grid of a model with what each bucket costs.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    names = [rule.name for rule in RULES]
    source.add_argument("--strategy", choices=names, help="the rule of one axis")
    source.add_argument("--file", type=Path, help="a file of (rows, length, blocks) entries")
    source.add_argument("--model", type=Path, metavar="DIR", help="the folder of a model")
    model = parser.add_argument_group("for a model")
    model.add_argument("--device", help="default: the model's own, else GE_DEVICE, else cpu")
    model.add_argument(
        "--measure", action="store_true", help="measure now, not as kept by an earlier start"
    )
    model.add_argument(
        "--cache-dir", type=Path, metavar="DIR", help="where costs are kept; default: GE_CACHE_DIR"
    )
    numbers = parser.add_argument_group("numbers of a rule")
    numbers.add_argument("--min", help="smallest size (default 1)")
    numbers.add_argument("--step", help="sizes are multiples of it (default 1)")
    numbers.add_argument("--max", help="largest size")
    numbers.add_argument("--limit", help="at most so many sizes (default ceil(log2(max)) + 1)")
    numbers.add_argument("--pad-max", help="most padding, in elements (default 0: no bound)")
    numbers.add_argument("--pad-percent", help="most padding, in percent, 0 to 50 (default 25)")
    numbers.add_argument("--turning-point", help="unit of `unified` (default --step)")
    numbers.add_argument(
        "--compat", action="store_true", help="round in float64 as the reference does, not exactly"
    )
    numbers.add_argument(
        "--contiguous", action="store_true", help="the last point is max, not max rounded up"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON array and nothing else")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Print the buckets; return 0, or 2 after one line on stderr if they cannot be made."""
    try:
        _check_options(args)
        if args.model is not None:
            lines = _model_lines(args)
        else:
            lines = _file_lines(args) if args.file is not None else _rule_lines(args)
    except GeError as error:
        _note(str(error))
        return 2
    print("\n".join(lines))
    return 0


def _check_options(args: argparse.Namespace) -> None:
    """Refuse options that say nothing about the source."""
    source = next(name for name in ("strategy", "file", "model") if getattr(args, name) is not None)
    for owner, names in _OPTIONS.items():
        for name in names if owner != source else ():
            if getattr(args, name):
                option = name.replace("_", "-")
                raise ConfigError(f"--{option} belongs to --{owner}, not to --{source}")


def _model_lines(args: argparse.Namespace) -> list[str]:
    with open_offline(args.model, device=args.device, cache_dir=args.cache_dir) as model:
        costs = measured_anew(model) if args.measure else kept_costs(model)
        lines = _bucket_lines(model.grid, model.layout, costs)
        return [_grid_json(model.grid, lines)] if args.json else _grid_text(model.grid, lines)


def _bucket_lines(
    grid: BucketGrid, layout: Layout, costs: Mapping[Bucket, float]
) -> list[_BucketLine]:
    """Return a line per bucket, ascending."""
    return [
        _BucketLine(
            bucket=bucket,
            elements=math.prod(bucket),
            cost_ns=costs.get(bucket),
            tensor_bytes=tensor_bytes(layout, bucket),
        )
        for bucket in grid.entries
    ]


def _grid_text(grid: BucketGrid, lines: list[_BucketLine]) -> list[str]:
    """Return the grid for a person: how it came about, its buckets, and what they sum up to."""
    rows = [
        (*map(str, line.bucket), str(line.elements), _ms(line.cost_ns), _mib(line.tensor_bytes))
        for line in lines
    ]
    header = (*grid.names, "elements", "cost ms", "tensors MiB")
    return [*grid.describe(), *table(header, rows), _total(lines)]


def _total(lines: list[_BucketLine]) -> str:
    costs = [line.cost_ns for line in lines if line.cost_ns is not None]
    known = [line.tensor_bytes for line in lines if line.tensor_bytes is not None]
    parts = [f"total: {len(lines)} buckets, {len(costs)} measured"]
    if costs:
        parts.append(f"{_ms(sum(costs))} ms for one run of each of those")
    if known:
        parts.append(f"tensors {_mib(sum(known))} MiB, of the largest {_mib(max(known))} MiB")
    return ", ".join(parts)


def _grid_json(grid: BucketGrid, lines: list[_BucketLine]) -> str:
    """Return the same as one JSON object."""
    return json.dumps(
        {
            "axes": {axis.name: axis.values for axis in grid.axes},
            "buckets": [asdict(line) for line in lines],
        }
    )


def _ms(cost_ns: float | None) -> str:
    return "-" if cost_ns is None else f"{cost_ns / 1e6:.3f}"


def _mib(nbytes: int | None) -> str:
    return "-" if nbytes is None else f"{nbytes / 2**20:.3f}"


def _file_lines(args: argparse.Namespace) -> list[str]:
    entries = read_buckets(args.file)
    if args.json:
        return [json.dumps(entries)]
    rows = [(*map(str, entry), str(math.prod(entry[:2]))) for entry in entries]
    total = f"{len(entries)} buckets from {args.file}"
    return [total, *table(("rows", "length", "blocks", "tokens"), rows)]


def _rule_lines(args: argparse.Namespace) -> list[str]:
    recipe = _recipe(args)
    values = recipe.values()
    if recipe.number("min") > recipe.number("max"):
        _note("note: min is above max; a model's configuration would not take this rule")
    elif not values:
        _note("note: the rule makes no sizes; lower min or step, or raise max")
    elif values[-1] < recipe.number("max"):
        _note(f"note: sizes above {values[-1]} have no bucket: step does not divide max")
    if args.json:
        return [json.dumps(values)]
    return [f"{recipe}: {len(values)} sizes", *table(("size", "most padding"), _waste(values))]


def _recipe(args: argparse.Namespace) -> Recipe:
    """Return the rule with the numbers given; --step and --compat may be given to every rule."""
    rule = rule_named(args.strategy)
    given = {name: getattr(args, name) for name in _NUMBERS if getattr(args, name) is not None}
    numbers = {"min": 1, "step": 1} | {name: _whole(name, text) for name, text in given.items()}
    step = numbers["step"]
    if "step" not in rule.numbers:
        del numbers["step"]
    if "turning_point" in rule.numbers:
        numbers.setdefault("turning_point", step)
    switches = [name for name in ("compat", "contiguous") if getattr(args, name)]
    if "compat" in switches and "compat" not in rule.switches:
        switches.remove("compat")
    return make_recipe(rule, numbers, tuple(switches))


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        option = name.replace("_", "-")
        raise ConfigError(f"--{option} is {text!r}, expected a whole number") from error


def _waste(values: Sequence[int]) -> list[tuple[str, str]]:
    """Return, per size, the padding of the smallest request that runs in it."""
    rows = []
    smallest = min(1, *values) if values else 1
    for size in values:
        waste = (size - smallest) / size if size else 0.0
        rows.append((str(size), f"{max(waste, 0.0):.0%}"))
        smallest = size + 1
    return rows


def _note(text: str) -> None:
    print(f"ge-backend buckets: {text}", file=sys.stderr)
