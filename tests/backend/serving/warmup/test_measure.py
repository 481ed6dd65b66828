"""Costs are measured once, remembered under all that they depend on, and estimated elsewhere."""

import functools
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from ge_backend.device.base import GraphSource
from ge_backend.engines.null.device import NullDevice
from ge_backend.errors import Cancelled, GraphFailed, ModelError
from ge_backend.executor.client.session import Session
from ge_backend.executor.process.inline import connect_inline
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.config.placement import Placement
from ge_backend.model.layout.layout import Layout, build_layout
from ge_backend.serving.warmup import measure
from ge_backend.serving.warmup.measure import (
    added_costs,
    cost_key,
    cost_model,
    estimated_costs,
    kept_costs,
    measured_costs,
)
from ge_backend.serving.warmup.shaped import ShapedModel
from ge_backend.serving.warmup.store import Store
from ge_backend.shapes.buckets.corrected import CorrectedCosts
from ge_backend.shapes.buckets.costs import DynamicCosts, ShapeCache, StaticCosts, element_costs
from ge_backend.shapes.buckets.grid import listed_grid
from ge_backend.tensors import ANY_SHAPE, BUCKETED, PREPARED

MODEL = {
    "inputs": [{"name": "x", "dtype": "FP32", "dims": ["batch", "length"]}],
    "outputs": [{"name": "y", "dtype": "FP32", "dims": ["batch"], "compute": "sum", "of": "x"}],
}
CONFIG = ModelConfig.read(
    {
        "name": "m",
        "max_batch_size": 4,
        "input": [
            {"name": "x", "data_type": "TYPE_FP32", "dims": [-1], "allow_ragged_batch": True}
        ],
        "parameters": {"device": {"string_value": "null"}},
    },
    directory=None,
    version="1",
    environment={},
)
GRID = listed_grid(("rows", "length"), [(r, n) for r in (1, 4) for n in (8, 16, 32, 64, 128)])
SMALL = listed_grid(("rows", "length"), [(1, 8), (4, 8), (4, 16)])


class Start:
    """One start of a model: a session, and what was asked of the graph over it."""

    def __init__(self, path, store, pool_bytes):
        self.session = Session(
            functools.partial(connect_inline, "null", pool_bytes),
            GraphSource.of(path),
            arena_bytes=1,
            on_restart=lambda: None,
        )
        self.store = store
        self.asked = {}
        self._prepare = self.session.prepare
        self.session.prepare = self.note
        self.layout = build_layout(CONFIG, self.session.signature, self.session.shape_policy)

    def note(self, inputs, repeats, **how):
        self.asked[inputs[0].shape] = repeats
        return self._prepare(inputs, repeats, **how)

    def model(self, grid=SMALL, **changes):
        return ShapedModel(
            config=replace(CONFIG, **changes),
            session=self.session,
            layout=self.layout,
            grid=grid,
            store=self.store,
        )

    def estimates(self):
        return estimated_costs(self.model())

    def costs(self, grid=SMALL, **changes):
        return measured_costs(self.model(grid, **changes))

    def costs_with(self, others):
        return measured_costs(self.model(), [other.session for other in others])

    def add_with(self, others, buckets, known):
        model = self.model(listed_grid(("rows", "length"), buckets))
        return added_costs(model, [other.session for other in others], known, lambda: False)

    def add(self, buckets, known, stopped=lambda: False, **changes):
        model = self.model(listed_grid(("rows", "length"), buckets), **changes)
        return added_costs(model, [], known, stopped)


@pytest.fixture
def start(tmp_path):
    """Returns a function that starts a null model anew over the same folder of costs."""
    starts = []
    store = Store(tmp_path / "cache")

    def begin(*, store=store, pool_bytes=0, **graph):
        path = tmp_path / "model.null"
        path.write_text(json.dumps({**MODEL, **graph}))
        starts.append(Start(path, store, pool_bytes))
        return starts[-1]

    yield begin
    for one in starts:
        one.session.close()


def test_shapes_that_an_engine_has_seen_may_be_handed_on():
    """To the cost model of the next buckets."""
    shapes, table = ShapeCache(most=1), element_costs([(1, 8), (4, 8)])
    for size in (8, 7):
        costs = cost_model(served(), table, shapes)
        assert costs.bucket(4, (size,)) == (4, 8)


def test_every_bucket_is_measured_at_the_first_start(start):
    """In nanoseconds of a run, three times each."""
    first = start(cost_ms={"4x16": 200.0, "*": 1.0})
    costs = first.costs()
    assert costs.keys() == set(SMALL.entries)
    assert costs[4, 16] > 2e8 > costs[4, 8] > 1e6
    assert first.asked == dict.fromkeys(SMALL.entries, 3)


def test_what_is_measured_slower_than_more_counts_as_much_as_it(start):
    """Something came between: plans and the command line go by what more rows took."""
    first = start(cost_ms={"4x8": 300.0, "4x16": 3.0, "*": 1.0})
    costs = first.costs()
    assert costs[4, 8] == costs[4, 16] < 3e8
    again = start(cost_ms={"4x8": 300.0, "4x16": 3.0, "*": 1.0})
    assert kept_costs(again.model()) == again.costs() == costs


def test_estimates_take_one_run_in_the_smallest_bucket(start):
    """The others cost in proportion to their elements; nothing of it is kept."""
    first = start(cost_ms={"*": 4.0})
    costs = first.estimates()
    assert first.asked == {(1, 8): 1}
    assert costs[1, 8] > 4e6
    elements = element_costs(list(SMALL.entries))
    for bucket, cost in costs.items():
        assert cost / costs[1, 8] == pytest.approx(elements[bucket] / elements[1, 8])
    assert kept_costs(start().model()) == {}


def test_estimates_are_the_costs_of_an_earlier_start(start):
    """The rough run is there to see that the model answers; it replaces none of them."""
    before = start(cost_ms={"*": 4.0}).costs()
    again = start(cost_ms={"*": 4.0})
    assert again.estimates() == before
    assert again.asked == {(1, 8): 1}


def test_a_smallest_bucket_that_cannot_run_leaves_element_counts(start, caplog):
    """Where any shape may be sent, one that fails is no reason not to serve the others."""
    first = start(faults=[{"on": "run", "do": "fail"}])
    assert first.estimates() == element_costs(list(SMALL.entries))
    assert "cannot be run" in caplog.text


def test_measuring_that_is_stopped_leaves_estimates(start):
    """Between two buckets."""
    first = start()
    model = first.model()
    costs = measured_costs(model, stopped=lambda: len(first.asked) > 0)
    assert first.asked == {(4, 16): 3}
    assert costs.keys() == set(SMALL.entries)


def test_a_second_start_of_a_static_engine_prepares_and_does_not_measure(start):
    """It has to compile again; the costs are those of the first start."""
    before = start(static_shapes=True).costs()
    second = start(static_shapes=True)
    assert second.costs() == before
    assert second.asked == dict.fromkeys(SMALL.entries, 0)


def test_a_second_start_of_a_dynamic_engine_runs_a_few_small_batches(start, caplog):
    """The device decides with them about threads, which it forgets between starts."""
    caplog.set_level("INFO")
    before = start().costs(GRID)
    assert "kept" not in caplog.text
    second = start()
    assert second.costs(GRID) == before
    assert second.asked == dict.fromkeys([(1, 8), (1, 16), (1, 32), (1, 128)], 0)
    assert "costs of 10 buckets are kept from an earlier start" in caplog.text


def test_where_there_is_a_pool_the_largest_bucket_runs_at_every_start(start):
    """Its scratch is the model's place, which a new executor does not know."""
    start(pool_bytes=1 << 20).costs(GRID)
    second = start(pool_bytes=1 << 20)
    second.costs(GRID)
    shapes = [(1, 8), (1, 16), (1, 32), (1, 128), (4, 128)]
    assert second.asked == dict.fromkeys(shapes, 0)
    (held,) = second.session.inspect().pool.holders.values()
    assert held == 4 * 128  # one byte per element


def test_only_new_buckets_are_measured(start):
    """A grid that has grown since finds the costs of its old part."""
    takes = {"4x32": 20.0, "*": 1.0}  # so much that it says nothing of the others
    before = start(static_shapes=True, cost_ms=takes).costs()
    second = start(static_shapes=True, cost_ms=takes)
    larger = listed_grid(("rows", "length"), [*SMALL.entries, (4, 32)])
    costs = second.costs(larger)
    assert {b: costs[b] for b in SMALL.entries} == before
    assert second.asked == {**dict.fromkeys(SMALL.entries, 0), (4, 32): 3}


@pytest.mark.parametrize(
    "change",
    [
        {"cost_ms": {"*": 0.1}},  # another file
        {"precision": "bf16"},
        {"threads": 2},
        {"engine": "another"},  # that nobody has named: it was installed since
        {"placement": Placement(devices=("npu:0",))},
        {"release": "another"},
        {"machine": ["another"]},
        {"instructions": "flags : fpu avx avx2 avx512f\nmodel name : x\n"},
        {"chip": "another"},  # of a device with as much memory
        {"axes": ("width",)},
        {"sizes": {"width": 80}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_other_circumstances_are_measured_anew(start, tmp_path, monkeypatch, change):
    """What a cost depends on is in its key."""
    first = start()
    model = first.model()
    before = cost_key(model)
    if "cost_ms" in change:
        model = start(**change).model()
    elif "placement" in change:
        model = first.model(**change)
    elif "release" in change:  # of an engine's library
        monkeypatch.setattr(Session, "engine", "onnxruntime")
        before = cost_key(model)
        monkeypatch.setattr(measure, "release_of", lambda library: change["release"])
    elif "instructions" in change:
        told = tmp_path / "cpuinfo"
        told.write_text("model name : x\nflags : fpu avx avx2\n")
        monkeypatch.setattr(measure, "CPUINFO", told)
        before = cost_key(model)
        told.write_text(change["instructions"])
    elif "machine" in change:
        monkeypatch.setattr(measure, "_machine", lambda session: change["machine"])
    elif "chip" in change:
        monkeypatch.setattr(NullDevice, "chip", change["chip"])
    elif "engine" in change:
        monkeypatch.setattr(Session, "engine", change["engine"])
    elif change.keys() & {"axes", "sizes"}:
        model = replace(model, layout=replace(model.layout, **change))
    else:
        first.session.source = replace(first.session.source, **change)
    assert cost_key(model) != before


def test_only_what_is_computed_with_tells_processors_apart(tmp_path, monkeypatch):
    """Kernels list ever more of what a processor has; and Arm has no name of its own there."""
    told = tmp_path / "cpuinfo"
    monkeypatch.setattr(measure, "CPUINFO", told)
    told.write_text("processor : 0\nmodel name : x y\nflags : fpu avx2 amx_int8 ibrs\n")
    assert measure.processor_kind() == "x y avx2 amx_int8"
    told.write_text("processor : 0\nFeatures : fp asimd i8mm\n")
    assert measure.processor_kind() == " asimd i8mm"
    told.unlink()
    assert (measure.processor(), measure.processor_kind()) == ("", "")


def test_a_file_that_was_moved_or_touched_keeps_its_costs(start, tmp_path):
    """Its content counts, not its name or its time; and not the name of the host."""
    first = start()
    before = cost_key(first.model())
    (tmp_path / "copy.null").write_bytes((tmp_path / "model.null").read_bytes())
    first.session.source = GraphSource.of(tmp_path / "copy.null")
    assert cost_key(first.model()) == before


def test_a_bucket_that_fails_gets_an_estimate_and_is_tried_again(start):
    """A dynamic engine may run neighbouring shapes all the same."""
    broken = [{"on": "prepare", "do": "fail", "nth": 1}]
    costs = start(faults=broken).costs()
    assert costs.keys() == set(SMALL.entries)
    second = start(faults=broken)
    second.costs()
    assert second.asked[4, 16] == 3
    assert second.asked[1, 8] == 0


def test_no_row_is_padded_to_a_bucket_that_fails(start, monkeypatch):
    """An estimate may be below what smaller ones cost, as of sizes that a table of positions lacks."""
    monkeypatch.setattr(Session, "shape_policy", BUCKETED)
    broken = [{"on": "prepare", "do": "fail", "nth": 1}]  # the largest
    assert start(faults=broken).costs().keys() == {(1, 8), (4, 8)}
    again = start(faults=broken)
    assert again.estimates().keys() == {(1, 8), (4, 8)}
    assert start().costs().keys() == set(SMALL.entries)
    assert start(faults=[{"on": "prepare", "do": "fail"}]).costs().keys() == set(SMALL.entries)


def test_a_bucket_that_fails_ends_the_start_of_a_static_engine(start):
    """It could never be served."""
    one = start(static_shapes=True, faults=[{"on": "prepare", "do": "fail"}])
    with pytest.raises(ModelError, match="rows=4 length=16"):
        one.costs()


def test_without_warm_up_nothing_runs_that_needs_not(start):
    """A dynamic engine gets estimates; a static one must still prepare what it is to serve."""
    dynamic, static = start(), start(static_shapes=True)
    assert dynamic.costs(warmup=False) == element_costs(list(SMALL.entries))
    assert dynamic.asked == {}
    assert static.costs(warmup=False) == element_costs(list(SMALL.entries))
    assert static.asked == dict.fromkeys(SMALL.entries, 0)


def test_without_a_folder_every_start_measures(start):
    """`GE_CACHE_DIR=off`."""
    start(store=Store(None)).costs()
    second = start(store=Store(None))
    second.costs()
    assert second.asked == dict.fromkeys(SMALL.entries, 3)


NO_LEAST = Layout(batched=True, axes=("length",), limits={}, inputs=(), outputs=())


def served(config=CONFIG, layout=NO_LEAST, shape_policy=ANY_SHAPE):
    """A model whose session says this of its graph."""
    session = SimpleNamespace(shape_policy=shape_policy)
    return ShapedModel(config=config, session=session, layout=layout, grid=SMALL, store=Store(None))


def test_what_the_planner_asks_fits_the_engine():
    """Static ones are looked up; dynamic ones interpolated, up to the host's batch size."""
    table = element_costs(list(SMALL.entries))
    static, dynamic = (cost_model(served(shape_policy=one), table) for one in (PREPARED, ANY_SHAPE))
    assert isinstance(static, CorrectedCosts)
    assert isinstance(static.model, StaticCosts)
    assert isinstance(dynamic, CorrectedCosts)
    assert isinstance(dynamic.model, DynamicCosts)
    assert dynamic.model.max_rows == 4


def test_an_engine_that_prefers_buckets_gets_them_and_runs_all_else():
    """What a bucket covers is padded to it; the rest runs in its own shape."""
    table = element_costs(list(SMALL.entries))
    costs = cost_model(served(shape_policy=BUCKETED), table)
    assert costs.bucket(1, (5,)) == (1, 8)
    assert costs.bucket(1, (99,)) == (1, 99)


@pytest.mark.parametrize("shape_policy", [ANY_SHAPE, BUCKETED])
def test_nothing_runs_below_the_least_size(shape_policy):
    """The graph takes no less, so what is shorter is padded, if only to that."""
    layout = replace(NO_LEAST, least={"length": 6, "other": 9})
    model = served(layout=layout, shape_policy=shape_policy)
    costs = cost_model(model, element_costs([(1, 8), (4, 8)]))
    assert costs.bucket(1, (5,)) == ((1, 8) if shape_policy.bucketed else (1, 6))
    assert costs.bucket(9, (5,)) == (9, 6)
    assert costs.bucket(1, (99,)) == (1, 99)


@pytest.mark.parametrize("shape_policy", [ANY_SHAPE, BUCKETED])
def test_nothing_runs_with_fewer_rows_than_the_graph_takes(shape_policy):
    """One row costs as much as the fewest, so rows are run together up to these."""
    layout = replace(NO_LEAST, least_rows=4)
    costs = cost_model(
        served(layout=layout, shape_policy=shape_policy), element_costs([(4, 8), (8, 8)])
    )
    assert costs.bucket(1, (5,)) == ((4, 8) if shape_policy.bucketed else (4, 5))
    assert costs.bucket(1, (99,)) == (4, 99)
    assert costs.cost(1, (8,)) == costs.cost(4, (8,))


def test_costs_that_were_not_measured_are_not_corrected():
    """Element counts say nothing about time: they stay as they are."""
    table = element_costs(list(SMALL.entries))
    off = served(replace(CONFIG, warmup=False), shape_policy=PREPARED)
    assert isinstance(cost_model(off, table), StaticCosts)


def test_added_buckets_are_measured_and_the_old_ones_prepared(start):
    """The session gets all that it is to serve; only what is new costs time."""
    one = start(static_shapes=True, cost_ms={"4x32": 5.0})
    known = {(1, 8): 1e6, (4, 8): 2e6}
    costs = one.add([(4, 8), (4, 32)], known)
    assert costs[4, 8] == 2e6
    assert costs[4, 32] > 5e6
    assert list(costs) == [(4, 8), (4, 32)]
    assert one.asked == {(4, 8): 0, (4, 32): 3}


def test_where_any_shape_runs_only_added_buckets_are_run(start):
    """There is nothing to prepare."""
    one = start()
    one.add([(4, 8), (4, 32)], {(4, 8): 2e6})
    assert one.asked == {(4, 32): 3}


def test_an_added_bucket_costs_no_more_than_one_that_covers_it(start):
    """Beside traffic everything is slow; the planner would never choose the new bucket."""
    one = start(cost_ms={"*": 5.0})
    assert one.add([(2, 8), (4, 16)], {(4, 8): 1e6, (4, 32): 3e6}) == {
        (2, 8): 1e6,
        (4, 16): 3e6,
    }


def test_added_buckets_that_fail_are_an_error(start):
    """Whoever asked stays with the buckets of before."""
    faults = [{"on": "prepare", "do": "fail", "nth": 1}]
    with pytest.raises(GraphFailed, match="1 of 2 new buckets"):
        start(faults=faults).add([(4, 32), (4, 64)], {(4, 8): 1e6})
    with pytest.raises(ModelError, match="length=64"):
        start(faults=faults, static_shapes=True).add([(4, 64)], {(4, 8): 1e6})


def test_adding_ends_when_the_model_is_unloaded(start):
    """Between two buckets."""
    one = start(static_shapes=True)
    with pytest.raises(Cancelled):
        one.add([(4, 32), (4, 64)], {(4, 8): 1e6}, stopped=lambda: bool(one.asked))
    assert list(one.asked) == [(4, 64)]


def test_without_warm_up_added_buckets_are_estimated_like_the_others(start):
    """Measured nanoseconds beside estimates would mislead the planner."""
    known = element_costs([(4, 8), (4, 16)])
    dynamic, static = start(), start(static_shapes=True)
    wanted = element_costs([(4, 16), (4, 32)])
    assert dynamic.add([(4, 16), (4, 32)], known, warmup=False) == wanted
    assert dynamic.asked == {}
    assert static.add([(4, 16), (4, 32)], known, warmup=False) == wanted
    assert static.asked == {(4, 16): 0, (4, 32): 0}


def test_further_devices_are_prepared_and_not_measured(start):
    """Costs are one table for all devices of a kind."""
    first, second, third = (start(static_shapes=True) for _ in range(3))
    costs = first.costs_with([second, third])
    assert set(costs) == set(SMALL.entries)
    assert set(first.asked.values()) == {3}
    assert second.asked == third.asked == dict.fromkeys(SMALL.entries, 0)
    more = [*SMALL.entries, (1, 32)]
    first.add_with([second], more, costs)
    assert second.asked == dict.fromkeys(more, 0)


def test_further_devices_of_engines_that_run_any_shape_are_only_woken(start):
    """With the smallest and the largest of few rows."""
    first, second = start(), start()
    first.costs_with([second])
    assert second.asked == {(1, 8): 0}


def test_a_bucket_that_fails_on_a_further_device_is_an_error(start):
    """It could never be served there."""
    fatal = [{"on": "prepare", "do": "fail", "nth": 2}]
    first, second = start(static_shapes=True), start(static_shapes=True, faults=fatal)
    with pytest.raises(ModelError, match="warm-up of bucket"):
        first.costs_with([second])
