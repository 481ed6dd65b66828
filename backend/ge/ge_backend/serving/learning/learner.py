"""A thread beside serving: it keeps what traffic was, and prepares buckets that traffic wants.

It also keeps the costs that serving has corrected, so that the next start begins with them.
First of all it measures the buckets, where the model was READY before they were measured.

Preparing happens over a fleet of its own, so requests go on in the old buckets meanwhile. Then the
fleet and its costs take the place of those before, between two batches: its sessions know what they
prepared, and prepare it again if an executor dies.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ge_backend.errors import Cancelled, ConfigError, ExecutorLost, GeError, ModelError
from ge_backend.serving.batching.pipeline import Pipeline
from ge_backend.serving.fleet.fleet import Fleet
from ge_backend.serving.learning.regrid import at_least, extended, relearned
from ge_backend.serving.warmup.measure import added_costs, cost_key, cost_model, measured_costs
from ge_backend.serving.warmup.shaped import ShapedModel
from ge_backend.shapes.buckets.axis import ROWS
from ge_backend.shapes.buckets.corrected import CorrectedCosts, moved
from ge_backend.shapes.buckets.costs import ShapeCache
from ge_backend.shapes.buckets.grid import Bucket, listed_grid, padded_elements
from ge_backend.shapes.traffic.histogram import SizeHistogram
from ge_backend.tensors import Shape

__all__ = ["Learner"]

log = logging.getLogger(__name__)

# How often, where new buckets may be wanted.
LOOK_EVERY_S = 0.5
# Traffic is written this often; at most so much of it is lost if the stub is killed.
KEEP_EVERY_S = 10.0
# `learn: serve` looks at the traffic after so long, then after twice as long each time, at most.
RELEARN_FIRST_S, RELEARN_MOST_S = 10.0, 60.0
# What is being prepared when the model is unloaded is not waited for any longer.
CLOSE_WITHIN_S = 3.0
# A prepared bucket cannot be given back while its graph is loaded. Without `max_graphs`, an
# instance makes a graph hold at most this many times the buckets that it began with.
GROWTH = 4
MIN_GRAPHS = 64
# What could not be measured is tried again after this many seconds.
MEASURE_AGAIN_S = (60.0, 600.0, 3600.0)


class Learner:
    """Records traffic, extends the grid for sizes it lacks, and re-learns it if so configured.

    Args:
        model: with the session and the layout of the pipeline; its store gets traffic and costs.
        pipeline: its fleet and costs are replaced, its traffic is taken.
        costs: the table behind the pipeline's cost model.
        open_fleet: opens another fleet with the same graph.
        shapes: those that the engine has seen, which further cost models have to know.
        estimated: the costs are estimates; the buckets are measured now.
    """

    def __init__(
        self,
        model: ShapedModel,
        pipeline: Pipeline,
        costs: Mapping[Bucket, float],
        open_fleet: Callable[[], Fleet],
        *,
        shapes: ShapeCache | None = None,
        estimated: bool = False,
    ) -> None:
        self._model = model
        self._config, self._store, self._layout = model.config, model.store, model.layout
        self._pipeline = pipeline
        self._costs = dict(costs)
        self._kept_costs = dict(costs)
        self._open_fleet = open_fleet
        self._cost_key = cost_key(model) if model.config.warmup else []
        # A file that was compiled for its shapes has no others, and states of live sequences stay
        # with the fleet that keeps them.
        self._fixed = bool(model.session.shape_policy.fixed) or bool(model.layout.states)
        self._learned = {name: SizeHistogram() for name in (ROWS, *model.layout.axes)}
        # Every bucket that this instance has asked for, whether it came to use it or not.
        self._asked = set(costs)
        self._failed: set[Bucket] = set()
        most = model.config.max_graphs or max(GROWTH * len(costs), MIN_GRAPHS)
        self._most_asked = len(costs) + (most - len(costs)) // model.config.instances
        self._logged: set[str] = set()
        self._shapes = shapes
        self._estimated = estimated
        self._cost_model = pipeline.costs  # that batches go by, once they have taken it over
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="learner", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and keep the last traffic; a bucket in preparation is abandoned."""
        self._stop.set()
        self._thread.join(CLOSE_WITHIN_S)
        self._keep()

    def _work(self) -> None:
        kept = looked = measure_at = time.monotonic()
        relearn_s = RELEARN_FIRST_S
        pauses = iter(MEASURE_AGAIN_S)
        changes = self._config.overflow == "extend" or self._config.learn == "serve"
        look_every_s = LOOK_EVERY_S if changes and not self._fixed else KEEP_EVERY_S
        while True:
            if self._estimated and time.monotonic() >= measure_at:
                failed = self._attempt(self._measure, "costs are not measured")
                # An executor that was lost over a bucket serves others too, and would be again.
                pause = math.inf if isinstance(failed, ExecutorLost) else next(pauses, math.inf)
                measure_at = time.monotonic() + pause
            due_s = measure_at - time.monotonic() if self._estimated else math.inf
            if self._stop.wait(min(look_every_s, max(0.0, due_s))):
                return
            now = time.monotonic()
            missed = self._pipeline.traffic.take_missed()
            if self._config.overflow == "extend" and not self._fixed:
                for sizes in missed:
                    self._attempt(functools.partial(self._extend, sizes))
            due = now - looked >= relearn_s
            relearning = self._config.learn == "serve" and due and not self._fixed
            if relearning or now - kept >= KEEP_EVERY_S:
                kept = now
                self._keep()
            if relearning:
                looked, relearn_s = now, min(2 * relearn_s, RELEARN_MOST_S)
                self._attempt(self._relearn)

    def _attempt(
        self, action: Callable[[], None], so: str = "the buckets stay as they are"
    ) -> Exception | None:
        """Do what serving can do without: it goes on as before if this fails; return why.

        The log says `so` and the reason, each reason once, and where from if it was unforeseen.
        """
        try:
            action()
        except Exception as error:
            reason = f"{so}: {error}"
            if reason not in self._logged and not self._stop.is_set():
                self._logged = (
                    {reason} if len(self._logged) > MIN_GRAPHS else {*self._logged, reason}
                )
                foreseen = isinstance(error, (GeError, OSError))
                log.warning("%s", reason, exc_info=not foreseen)
            return error
        return None

    def _keep(self) -> None:
        self._keep_costs()
        if self._config.learn == "off":
            return
        fresh = self._pipeline.traffic.take()
        if any(histogram.total for histogram in fresh.values()):
            self._store.add_traffic(self._config.name, fresh)
            for name, learned in self._learned.items():
                learned.merge(fresh[name])

    def _keep_costs(self) -> None:
        """Take over what serving has found out about costs; keep it if one has clearly moved."""
        serving = self._pipeline.costs
        if not isinstance(serving, CorrectedCosts) or serving is not self._cost_model:
            return
        if self._estimated:
            return  # what would be kept are estimates
        corrected = serving.lasting()
        costs = {bucket: corrected.get(bucket, cost) for bucket, cost in self._costs.items()}
        if self._cost_key and any(moved(self._kept_costs.get(b, 0), c) for b, c in costs.items()):
            self._store.keep_costs(self._cost_key, {**self._store.costs(self._cost_key), **costs})
            self._kept_costs = costs
        self._costs = costs

    def _measure(self) -> None:
        """Measure the buckets that the model has, and let batches go by that."""
        started = time.monotonic()
        fleet = self._open_fleet()
        model, stopped = replace(self._model, session=fleet.sessions[0]), self._stop.is_set
        try:
            self._check_source(fleet)
            costs = measured_costs(model, fleet.sessions[1:], stopped)
            if stopped():
                raise Cancelled("the model is unloaded before its buckets are measured")
        except BaseException:
            fleet.close()
            raise
        self._take(model, fleet, costs)
        self._estimated, self._kept_costs = False, costs
        self._pipeline.recorder.set("ge_warmup_seconds", time.monotonic() - started)

    def _extend(self, sizes: Shape) -> None:
        """Prepare buckets that cover these sizes, beside the present ones."""
        layout, most = self._layout, self._config.max_elements
        fresh = extended(self._costs, sizes, layout.limits, layout.axes, most)
        if not (most or self._model.session.shape_policy.prepared):
            # Where any shape runs, buckets are only points to measure: the slow ones are left out.
            slowest = max(map(math.prod, self._costs))
            fresh = fresh[:1] + [b for b in fresh[1:] if math.prod(b) <= slowest]
        if fresh:
            self._change([*self._costs, *fresh])

    def _relearn(self) -> None:
        """Move the boundaries of each axis to where traffic wants them, if that saves enough."""
        costs, session = self._costs, self._model.session
        if not session.shape_policy.padded:
            # No row is padded to a bucket here: they are points to measure, and belong where
            # traffic is, whatever a run costs there.
            costs = {bucket: padded_elements(bucket) for bucket in costs}
        layout = self._layout
        seen = {
            name: at_least(traffic, layout.least.get(name, 1))
            for name, traffic in self._learned.items()
        }
        buckets = relearned(costs, seen, layout.axes)
        if buckets:
            self._change(buckets)

    def _change(self, buckets: Sequence[Bucket]) -> None:
        """Prepare buckets and let the next batch use exactly these.

        Buckets that failed once are not tried again: one that kills executors would do so each
        time.
        """
        if not self._failed.isdisjoint(buckets):
            return
        grid = listed_grid((ROWS, *self._layout.axes), buckets)
        self._ask(buckets)
        fleet = self._open_fleet()
        model = replace(self._model, session=fleet.sessions[0], grid=grid)
        try:
            self._check_source(fleet)
            costs = added_costs(model, fleet.sessions[1:], self._costs, self._stop.is_set)
        except BaseException:
            self._failed |= set(buckets) - self._costs.keys()
            fleet.close()
            raise
        self._take(model, fleet, costs)
        self._pipeline.recorder.set("ge_buckets", len(costs))
        self._pipeline.recorder.add("ge_grid_swaps_total")
        for line in grid.describe():
            log.info("buckets are now %s", line)

    def _take(self, model: ShapedModel, fleet: Fleet, costs: dict[Bucket, float]) -> None:
        """Let the next batch run on this fleet, in the model's buckets, at these costs."""
        self._model, self._costs = model, costs
        self._cost_model = cost_model(model, costs, self._shapes)
        self._pipeline.hand_over(fleet, self._cost_model)

    def _ask(self, buckets: Sequence[Bucket]) -> None:
        """Count the buckets that were never prepared before.

        Raises:
            ConfigError: they are too many.
        """
        asked = self._asked.union(buckets)
        if len(asked) > self._most_asked:
            raise ConfigError(
                f"at most {self._most_asked} may be prepared in all, because they cannot "
                "be given back; load the model again, or raise max_graphs if it is set"
            )
        self._asked = asked

    def _check_source(self, fleet: Fleet) -> None:
        source = self._model.session.source
        if any(session.source != source for session in fleet.sessions):
            raise ModelError(
                f"{source.path} was replaced since it was loaded; load the model again"
            )
