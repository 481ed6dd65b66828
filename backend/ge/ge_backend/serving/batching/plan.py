"""Which rows run together, in which bucket, in which order: a frozen value, and the one decision.

    rows of all requests, sorted by size      a a b c c c d d
    cut into runs of neighbours              |a a|b c c c|d d|
    each in the cheapest shape that covers it  2x16   4x32  2x64

The cut minimises the total measured cost: with T[i] the least cost of the first i rows,
T[i] = min over k of T[i-k] + cost(k rows at the size of row i). Only row counts that are a step,
or "all that is left", can win, so the recurrence is short, and it is exact for any static table.

A packed graph leaves padding out, so there a run costs what its elements cost, whatever the sizes:
rows are cut into as many runs of equal elements as end hardly later than the fewest, in the order
in which they came.

Where an instance has several lanes, a cut that keeps them busy may cost a little more in total.
Where nothing but its batch comes to them, runs may also have the whole device in turn: each then
costs what runs that are alone were seen to take.

Runs begin with the one that has the oldest request: who has waited for the batch before is not the
last of this one, too, as a long row always was when the cheapest run came first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, inf, prod

from ge_backend.errors import GeError, ShapeTooLarge
from ge_backend.serving.batching.request import Request
from ge_backend.shapes.buckets.costs import CostModel
from ge_backend.shapes.buckets.grid import Bucket
from ge_backend.tensors import Shape

__all__ = ["BatchPlan", "Policy", "RowSpan", "SubBatch", "plan", "run_of", "side_by_side"]

# A plan that uses the device's lanes better may cost this much more in total.
LANE_SLACK = 1.25
# Packed rows are cut into more runs as long as they cost no more than this times the fewest, up to
# this many runs: a request in an earlier run has its answer earlier.
EARLY_SLACK = 1.05
MAX_PACKED = 8

_Row = tuple[Shape, int, int]  # sizes, the request's position, the row in it: sorts as it should
_Cut = tuple[int, int]  # rows [start, end) of the sorted list


@dataclass(slots=True)
class RowSpan:
    """`count` rows of a request, from its row `first`; `request` is a position in the list.

    It is not changed, and not frozen: each would take twice as long to make then.
    """

    request: int
    first: int
    count: int


@dataclass(slots=True, kw_only=True)
class SubBatch:
    """Rows that run together; not frozen, as `RowSpan`.

    Attributes:
        bucket: the shape to run in: rows, then one size per padded axis; at least the real one.
        rows: real rows.
        cost_ns: what the run is expected to cost.
        planned: the bucket was prepared, or the engine needs none; False is counted.
        mean: of packed rows, the mean of their sizes.
    """

    spans: tuple[RowSpan, ...]
    bucket: Bucket
    rows: int
    cost_ns: float
    planned: bool = True
    mean: Shape = ()

    @property
    def priced(self) -> Bucket:
        """The shape that costs as much: the bucket, or of packed rows as many of their mean."""
        return (self.rows, *self.mean) if self.mean else self.bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """A whole batch: sub-batches in the order to submit them, and requests that cannot run."""

    sub_batches: tuple[SubBatch, ...]
    refused: tuple[tuple[int, GeError], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What does not change from batch to batch.

    Attributes:
        axes: names of the padded axes, for messages.
        lanes: runs that this instance may expect to have in flight at once.
        in_turn: nothing else comes to these, so runs may have the whole device, one by one.
        refuse_overflow: a request larger than the largest bucket is refused, not run unpadded.
        packed: a run costs its elements, not its rows times the longest; see `Graph`.
        max_elements: the most of a run of several rows; 0 is no limit. Unless rows are packed the
            cost model keeps to it.
        tried: what costs cover has run before any request. Else one's size may be what a graph
            fails over.
    """

    axes: tuple[str, ...]
    lanes: int = 1
    in_turn: bool = False
    refuse_overflow: bool = False
    packed: bool = False
    max_elements: int = 0
    tried: bool = True


def plan(requests: Sequence[Request], costs: CostModel, policy: Policy) -> BatchPlan:
    """Cut a batch into sub-batches of least total cost, the one with the oldest request first.

    Pure: reads shapes only. Rows of requests whose keys differ never share a sub-batch.

    Args:
        requests: any number; their sum of rows may exceed the largest bucket.
        costs: what runs cost.
        policy: see `Policy`.
    """
    if len(requests) == 1 and costs.covers(requests[0].sizes):
        rows, sizes = requests[0].rows, requests[0].sizes
        if rows == 1 or (not policy.packed and _is_one_run(rows, sizes, costs, policy.lanes)):
            whole = run_of((RowSpan(0, 0, rows),), sizes, costs, sizes if policy.packed else ())
            return BatchPlan(sub_batches=(whole,))
    sub_batches: list[SubBatch] = []
    refused: list[tuple[int, GeError]] = []
    groups: dict[object, list[_Row]] = {}
    looked_up: Shape | None = None
    for position, request in enumerate(requests):
        sizes = request.sizes
        if sizes != looked_up:
            looked_up, covered = sizes, costs.covers(sizes)
        if covered:
            own = groups.setdefault(request.key, [])
            own.append((sizes, position, 0))
            if request.rows > 1:
                own += [(sizes, position, row) for row in range(1, request.rows)]
        elif policy.refuse_overflow:
            refused.append((position, _too_large(request, costs, policy)))
        else:
            sub_batches.extend(_unplanned(position, request, costs, policy))
    for own in groups.values():
        sub_batches.extend(_runs(own, costs, policy))
    if len(sub_batches) > 1:
        sub_batches.sort(key=lambda sub_batch: min(span.request for span in sub_batch.spans))
    return BatchPlan(sub_batches=tuple(sub_batches), refused=tuple(refused))


def _runs(rows: list[_Row], costs: CostModel, policy: Policy) -> Iterator[SubBatch]:
    """Yield the runs of rows that may all run together."""
    cut = _cut_packed if policy.packed else _cut_for_lanes
    if not policy.packed:
        rows.sort()
    for start, end in cut(rows, costs, policy):
        run = rows[start:end]
        mean, sizes = (_mean(run), _largest(run)) if policy.packed else ((), _sizes(run))
        yield run_of(tuple(_spans(run)), sizes, costs, mean)


def run_of(
    spans: tuple[RowSpan, ...], sizes: Shape, costs: CostModel, mean: Shape = ()
) -> SubBatch:
    """Return the sub-batch of these spans, in the cheapest shape that covers them.

    Args:
        spans: what runs together.
        sizes: the largest of its rows on each axis.
        costs: what runs cost.
        mean: of packed rows, the sizes that say what they cost.
    """
    rows = sum([span.count for span in spans])
    bucket = None if mean else costs.bucket(rows, sizes)
    return SubBatch(
        spans=spans,
        bucket=bucket or (rows, *sizes),
        mean=mean,
        rows=rows,
        cost_ns=costs.cost(rows, mean or sizes),
        planned=costs.covers(sizes),
    )


def _too_large(request: Request, costs: CostModel, policy: Policy) -> ShapeTooLarge:
    for name, size, limit in zip(policy.axes, request.sizes, costs.limits, strict=True):
        if size > limit:
            return ShapeTooLarge(
                f"axis {name!r} is {size}, the largest bucket is {limit}; send at most that, or "
                f"add a bucket with the parameter 'buckets.{name}'"
            )
    sizes = zip(policy.axes, request.sizes, strict=True)
    asked = ", ".join(f"{name!r} is {size}" for name, size in sizes)
    return ShapeTooLarge(f"{asked}: no bucket covers these together; add one that does")


def _unplanned(
    position: int, request: Request, costs: CostModel, policy: Policy
) -> Iterator[SubBatch]:
    """Yield runs of one oversized request at its own shape."""
    by_step = costs.by_step(request.sizes)
    most = by_step[-1][0] if by_step else costs.steps[-1]
    if policy.max_elements:
        most = min(most, max(1, policy.max_elements // max(1, prod(request.sizes))))
    for first in range(0, request.rows, most):
        span = RowSpan(position, first, min(most, request.rows - first))
        yield run_of((span,), request.sizes, costs)


def _cut_for_lanes(rows: list[_Row], costs: CostModel, policy: Policy) -> list[_Cut]:
    """Return the cut of least cost, or a finer one if lanes that would idle finish it sooner."""
    if len(rows) == 1:
        return [(0, 1)]
    lanes = policy.lanes
    if rows[0][0] == rows[-1][0] and _is_one_run(len(rows), rows[0][0], costs, lanes):
        return [(0, len(rows))]
    cut = _cut if len(costs.limits) <= 1 else _cut_by_several_axes
    best, total = cut(rows, costs, inf)
    if lanes == 1:
        return best
    most = total / lanes * LANE_SLACK
    if max(_each(rows, best, costs)) <= most:
        return best  # as it would be again
    finer, finer_total = cut(rows, costs, most)
    if finer_total > total * LANE_SLACK:
        return best
    return min(best, finer, key=lambda cuts: min(_ends(_each(rows, cuts, costs), costs, policy)))


def _is_one_run(count: int, sizes: Shape, costs: CostModel, lanes: int) -> bool:
    """Whether rows of equal sizes run together: each would cost more in a run of fewer.

    Nor little enough more for lanes that would idle to have them.
    """
    if count > costs.steps[-1]:
        return False
    whole = costs.cost(count, sizes)
    for rows, cost in costs.by_step(sizes):
        if rows >= count:
            break
        total = cost / rows * count
        if total <= whole or (
            lanes > 1
            and total <= whole * LANE_SLACK
            and (rows == 1 or cost <= whole / lanes * LANE_SLACK)
        ):
            return False
    return True


def _cut_packed(rows: list[_Row], costs: CostModel, policy: Policy) -> list[_Cut]:
    """Return runs of about equal elements, no more than cost hardly more than the fewest do."""
    mean, count = _mean(rows), len(rows)
    elements, most = sum([prod(sizes) for sizes, _, _ in rows]), policy.max_elements or inf
    fewest = max(-(-count // costs.steps[-1]), min(count, ceil(elements / most)))
    each = {
        runs: costs.cost(-(-count // runs), mean)
        for runs in range(fewest, min(count, max(MAX_PACKED, fewest)) + 1)
    }
    dear = min(runs * cost for runs, cost in each.items()) * LANE_SLACK
    ends = {
        runs: min(_ends([cost] * runs, costs, policy))
        for runs, cost in each.items()
        if runs * cost <= dear
    }
    latest = min(ends.values()) * EARLY_SLACK
    runs = max(runs for runs, end in ends.items() if end <= latest)
    return _even(rows, elements / runs, costs.steps[-1], most)


def _even(rows: list[_Row], share: float, most_rows: int, most: float) -> list[_Cut]:
    """Cut into runs of about `share` elements, or fewer: none has over `most_rows`.

    Nor over `most` elements, unless a row alone has them.
    """
    cuts, begin, filled, began_at = [], 0, 0, 0
    for end, (sizes, _, _) in enumerate(rows):
        elements = prod(sizes)
        if end > begin and (
            filled + elements / 2 > began_at + share
            or filled + elements > began_at + most
            or end - begin == most_rows
        ):
            cuts.append((begin, end))
            begin, began_at = end, filled
        filled += elements
    return [*cuts, (begin, len(rows))]


def _mean(rows: list[_Row]) -> Shape:
    """Return the mean of the rows' sizes on each axis, rounded up."""
    columns = zip(*(sizes for sizes, _, _ in rows), strict=True)
    return tuple(-(-sum(column) // len(rows)) for column in columns)


def _each(rows: list[_Row], cuts: list[_Cut], costs: CostModel) -> list[float]:
    """Return what each run costs."""
    return [costs.cost(end - start, _sizes(rows[start:end])) for start, end in cuts]


def _ends(each: list[float], costs: CostModel, policy: Policy) -> tuple[float, float]:
    """Return when the last of these runs ends: side by side, and in turn.

    Side by side a lane that is free takes the longest left.
    """
    ends = [0.0] * policy.lanes
    for cost in sorted(each, reverse=True):
        ends[ends.index(min(ends))] += cost
    return max(ends), costs.expected(sum(each), alone=True) if policy.in_turn else inf


def side_by_side(runs: Sequence[SubBatch], costs: CostModel, policy: Policy) -> bool:
    """Return whether these runs of a batch are done sooner in all lanes than in turn."""
    if policy.lanes == 1:
        return False
    together, in_turn = _ends([run.cost_ns for run in runs], costs, policy)
    return together <= in_turn


def _cut(rows: list[_Row], costs: CostModel, cap: float) -> tuple[list[_Cut], float]:
    """Return the cut of least total cost whose runs cost at most `cap` each (single rows any).

    With at most one axis the last row of a run is its largest. Costs never fall with rows, so a
    run that alone costs as much as the best cut so far ends the search, and a row count that is
    not a step is worth trying only for a run that reaches back to the first row.
    """
    most = costs.steps[-1]
    least = [0.0]
    taken = [0]
    looked_up: Shape | None = None
    for end, (sizes, _, _) in enumerate(rows, start=1):
        if sizes != looked_up:
            looked_up, by_step = sizes, costs.by_step(sizes)
        best, best_count = least[-1] + by_step[0][1], 1
        for count, cost in by_step:
            if count > end or cost >= best or cost > cap:
                break
            total = least[end - count] + cost
            if total < best:
                best, best_count = total, count
        if best_count != end <= most:
            whole = costs.cost(end, sizes)
            if whole < best and whole <= cap:
                best, best_count = whole, end
        least.append(best)
        taken.append(best_count)
    return _walk_back(taken), least[-1]


def _cut_by_several_axes(
    rows: list[_Row], costs: CostModel, cap: float
) -> tuple[list[_Cut], float]:
    """As `_cut` where the last row is not the largest on every axis: sizes grow with the run."""
    most = costs.steps[-1]
    least = [0.0]
    taken = [0]
    for end, (own, _, _) in enumerate(rows, start=1):
        best, best_count = least[end - 1] + costs.cost(1, own), 1
        sizes = own
        for count in range(2, min(end, most) + 1):
            sizes = tuple(map(max, sizes, rows[end - count][0]))
            cost = costs.cost(count, sizes)
            if cost >= best or cost > cap:
                break
            total = least[end - count] + cost
            if total < best:
                best, best_count = total, count
        least.append(best)
        taken.append(best_count)
    return _walk_back(taken), least[-1]


def _walk_back(taken: list[int]) -> list[_Cut]:
    cuts: list[_Cut] = []
    end = len(taken) - 1
    while end:
        cuts.append((end - taken[end], end))
        end -= taken[end]
    return cuts[::-1]


def _sizes(rows: list[_Row]) -> Shape:
    """Return the sizes that cover sorted rows: with one axis, those of the last."""
    last = rows[-1][0]
    return last if len(last) <= 1 else _largest(rows)


def _largest(rows: list[_Row]) -> Shape:
    """Return the sizes that cover rows in any order."""
    return tuple(map(max, zip(*(row[0] for row in rows), strict=True)))


def _spans(rows: list[_Row]) -> Iterator[RowSpan]:
    """Yield rows as spans: neighbours of one request are one span."""
    _, request, first = rows[0]
    count = 0
    for _, position, row in rows:
        if position != request or row != first + count:
            yield RowSpan(request, first, count)
            request, first, count = position, row, 0
        count += 1
    yield RowSpan(request, first, count)
