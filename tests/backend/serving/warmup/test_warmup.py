"""Every bucket is prepared and measured before the model is READY."""

import time
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from ge_backend.errors import GraphFailed, ModelError
from ge_backend.model.layout.layout import InputLayout, Layout
from ge_backend.serving.warmup.warmup import RUN_OVERHEAD_NS, describe_bucket, warm_up
from ge_backend.shapes.buckets.costs import DynamicCosts
from ge_backend.tensors import ANY_SHAPE, BUCKETED, DATA_TYPES, PREPARED, ShapePolicy


def item(name, dims=(-1,), axes=(0,), made="", fill=0.0, dtype="INT64"):
    return InputLayout(
        name=name,
        dtype=DATA_TYPES[dtype],
        dims=dims,
        axes=axes,
        names=tuple("" for _ in dims),
        fill=fill,
        made=made,
    )


def layout_of(*inputs, axes=("length",), equal_axes=(), limits=None, **more):
    return Layout(
        batched=more.pop("batched", True),
        axes=axes,
        equal_axes=equal_axes,
        limits=limits or {},
        inputs=inputs,
        outputs=(),
        **more,
    )


ONCE = 1
ENCODER = layout_of(
    item("ids", fill=7.0), item("mask", made="mask"), item("n", (), (), made="lengths")
)


@dataclass
class FakeSession:
    """Costs a nanosecond per row; fails on the given rows."""

    shape_policy: ShapePolicy = ANY_SHAPE
    fails_on: int = 0
    takes_s: float = 0.0
    most_rows: int = 0
    failed: set[tuple[int, ...]] = field(default_factory=set)
    refused: set[tuple[int, ...]] = field(default_factory=set)
    prepared: list = field(default_factory=list)
    repeats: list = field(default_factory=list)
    compiled: list = field(default_factory=list)

    def compile(self, shapes):
        self.compiled.append(shapes)

    def prepare(self, inputs, repeats, *, alone=True):
        time.sleep(self.takes_s)
        self.repeats.append(repeats)
        self.prepared.append({given.name: (given.shape, given.fill) for given in inputs})
        rows = inputs[0].shape[0]
        if rows == self.fails_on:
            raise GraphFailed("too wide")
        return SimpleNamespace(cost_ns=rows, cached=False, outputs={})

    def inspect(self):
        return SimpleNamespace(free_bytes=2**31)


def cost(rows):
    """What a run of so many rows costs with everything around it."""
    return float(rows + RUN_OVERHEAD_NS)


def test_all_shapes_are_compiled_together_where_they_are_static():
    """An engine that compiles hears of every bucket before the first one is prepared."""
    session = FakeSession(shape_policy=PREPARED)
    warm_up(session, ENCODER, [(1, 8), (4, 8)], ONCE)
    ((larger, smaller),) = session.compiled
    assert {shape[0] for shape in larger.values()} == {4}
    assert {shape[0] for shape in smaller.values()} == {1}


def test_every_bucket_is_measured_largest_first():
    """A graph that does not fit says so early; the table has every bucket."""
    session = FakeSession()
    assert warm_up(session, ENCODER, [(1, 8), (4, 8)], ONCE) == {(1, 8): cost(1), (4, 8): cost(4)}
    assert [given["ids"][0] for given in session.prepared] == [(4, 8), (1, 8)]


def test_rows_that_cost_next_to_nothing_run_together():
    """A run costs more than its graph: eight runs of a nanosecond are not as good as one of 8."""
    costs = DynamicCosts(warm_up(FakeSession(), ENCODER, [(1, 8), (8, 8)], ONCE), 8)
    assert costs.cost(8, (8,)) < 2 * costs.cost(1, (8,))


def test_a_measurement_looks_like_a_full_batch():
    """Masks are all ones, lengths full, other inputs their padding value."""
    session = FakeSession()
    warm_up(session, ENCODER, [(2, 8)], ONCE)
    assert session.prepared == [{"ids": ((2, 8), 7.0), "mask": ((2, 8), 1.0), "n": ((2,), 8.0)}]


def test_axes_that_are_not_padded_get_a_modest_size():
    """Their sizes are not known; the graph's own limit is respected."""
    layout = layout_of(
        item("x", (-1, -1, ONCE), (1, 2, -1)),
        axes=("length",),
        equal_axes=("h", "w"),
        limits={"w": 4},
    )
    session = FakeSession()
    warm_up(session, layout, [(2, 8)], ONCE)
    assert session.prepared[0]["x"][0] == (2, 16, 4, ONCE)


def test_axes_that_are_not_padded_get_the_only_size_they_have():
    """Where config.pbtxt fixes it, the graph may run in no other."""
    layout = layout_of(
        item("x", (-1, -1), (1, 2)), axes=("length",), equal_axes=("h", "w"), sizes={"w": 80}
    )
    session = FakeSession()
    warm_up(session, layout, [(2, 8)], ONCE)
    assert session.prepared[0]["x"][0] == (2, 16, 80)


def test_axes_that_are_not_padded_get_what_the_graph_takes_at_least():
    """A modest size may be too little."""
    layout = layout_of(
        item("x", (-1, -1), (1, 2)),
        axes=("length",),
        equal_axes=("h", "w"),
        least={"h": 32, "w": 4},
    )
    session = FakeSession()
    warm_up(session, layout, [(2, 8)], ONCE)
    assert session.prepared[0]["x"][0] == (2, 32, 16)


def test_a_model_without_a_batch_dimension_is_measured_without_one():
    """Its bucket's one row is the whole tensor."""
    session = FakeSession()
    warm_up(session, layout_of(item("ids"), batched=False), [(1, 8)], ONCE)
    assert session.prepared[0]["ids"][0] == (8,)


def test_a_bucket_that_fails_is_left_out_where_shapes_are_dynamic(caplog):
    """The engine can still run other shapes; the log says which one failed."""
    session = FakeSession(fails_on=4)
    assert warm_up(session, ENCODER, [(1, 8), (4, 8)], ONCE) == {(1, 8): cost(1)}
    assert "rows=4 length=8 cannot be measured: too wide" in caplog.text


def test_a_bucket_that_fails_is_an_error_where_shapes_are_static():
    """The planner would send batches to it."""
    session = FakeSession(shape_policy=PREPARED, fails_on=4)
    with pytest.raises(ModelError, match="bucket rows=4 length=8 failed: too wide"):
        warm_up(session, ENCODER, [(1, 8), (4, 8)], ONCE)


def test_each_bucket_has_its_line(caplog):
    """Progress, shape and cost, so that a slow start explains itself."""
    caplog.set_level("INFO")
    warm_up(FakeSession(), ENCODER, [(1, 8), (4, 8)], ONCE)
    assert "warm-up 1/2 rows=4 length=8 0.0 ms" in caplog.text
    assert "warm-up 2/2 rows=1 length=8" in caplog.text


def test_known_buckets_are_prepared_and_not_measured():
    """An earlier start measured them; the engine still has to compile them."""
    session = FakeSession(shape_policy=PREPARED)
    assert warm_up(session, ENCODER, [(1, 8), (4, 8)], ONCE, known={(4, 8)}) == {(1, 8): cost(1)}
    assert session.repeats == [0, 1]


def test_it_ends_between_two_buckets_when_told_to():
    """A model that is unloaded need not prepare the rest."""
    session = FakeSession()
    costs = warm_up(
        session, ENCODER, [(1, 8), (4, 8)], ONCE, stopped=lambda: bool(session.prepared)
    )
    assert costs == {(4, 8): cost(4)}


def test_buckets_are_described_by_their_axes():
    """As in the log."""
    assert describe_bucket((8, 64), ENCODER) == "rows=8 length=64"


def test_an_engine_that_prefers_buckets_is_told_all_of_them_first():
    """So that it can decide which of them to compile for; none is given up over a failure."""
    session = FakeSession(shape_policy=BUCKETED, fails_on=8)
    costs = warm_up(session, ENCODER, [(1, 8), (8, 8), (2, 8)], ONCE, known=[(2, 8)])
    assert len(session.compiled) == 1
    assert len(session.compiled[0]) == 3
    assert len(session.prepared) == 3
    assert costs.keys() == {(1, 8)}
    assert session.failed == {(8, 8)}
