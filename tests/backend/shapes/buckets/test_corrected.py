"""Costs that follow what runs take: they converge, stay bounded, and outlast a busy minute."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ge_backend.shapes.buckets.corrected import CorrectedCosts, Correction, moved
from ge_backend.shapes.buckets.costs import DynamicCosts, StaticCosts

TRUTH = {(r, s): 1e6 * (0.3 + r * s / 64) for r in (1, 2, 4, 8) for s in (16, 32, 64, 128)}
BUCKETS = list(TRUTH)
FACTORS = st.floats(0.4, 2.5)


def serve(costs, seed, runs, *, times=1.0, noise=0.1, buckets=BUCKETS, alone=False):
    """Run in random buckets, at the true times and some noise; return the mean relative error."""
    chance = random.Random(seed)
    errors = []
    for _ in range(runs):
        bucket = chance.choice(buckets)
        took = TRUTH[bucket] * times * math.exp(chance.gauss(0, noise))
        expected = costs.expected(costs.cost(bucket[0], bucket[1:]), alone=alone)
        errors.append(abs(took / expected - 1))
        costs.observe(bucket, took, alone=alone)
    return sum(errors) / runs


def error(costs):
    """Return the largest factor, as a logarithm, by which a cost is wrong."""
    return max(abs(math.log(costs.cost(b[0], b[1:]) / t)) for b, t in TRUTH.items())


def shape(table):
    """Return what costs are relative to each other, as logarithms."""
    mean = sum(math.log(cost) for cost in table.values()) / len(table)
    return {bucket: math.log(cost) - mean for bucket, cost in table.items()}


def apart(one, other):
    return max(abs(shape(one)[bucket] - shape(other)[bucket]) for bucket in one)


@settings(max_examples=20, deadline=None)
@given(st.integers(), st.lists(FACTORS, min_size=len(BUCKETS), max_size=len(BUCKETS)))
def test_costs_converge_to_what_runs_take(seed, factors):
    """Whatever was measured, up to 2.5 times too much or too little per bucket."""
    measured = {b: TRUTH[b] * factor for b, factor in zip(BUCKETS, factors, strict=True)}
    costs = CorrectedCosts(measured, StaticCosts)
    serve(costs, seed, 1500, noise=0.05)
    assert error(costs) < math.log(1.3)
    assert serve(costs, seed + 1, 300, noise=0.05) < 0.1


def test_what_was_measured_on_a_busy_machine_heals_within_a_minute_of_serving():
    """Half of the buckets cost 2.5 times too much; at twenty runs a second, errors fall below 10 %."""
    measured = {b: TRUTH[b] * (2.5 if at % 2 else 1.0) for at, b in enumerate(BUCKETS)}
    costs = CorrectedCosts(measured, StaticCosts)
    assert serve(costs, 1, 50) > 0.2
    serve(costs, 2, 20 * 60)
    assert serve(costs, 3, 300, noise=0.05) < 0.1


@settings(max_examples=20, deadline=None)
@given(st.integers(), st.floats(2.0, 4.0))
def test_a_busy_minute_changes_nothing_between_buckets(seed, times):
    """All runs take longer for a while: plans go by the relation of costs, which stays."""
    costs = CorrectedCosts(TRUTH, StaticCosts)
    serve(costs, seed, 300, noise=0.05)
    before = costs.lasting()
    serve(costs, seed + 1, 600, times=times, noise=0.05)
    assert apart(costs.lasting(), before) < math.log(1.25)
    serve(costs, seed + 2, 600, noise=0.05)
    assert apart(costs.lasting(), TRUTH) < math.log(1.25)
    assert error(costs) < math.log(1.3)


@pytest.mark.parametrize("times", [1.0, 0.6])
def test_runs_that_are_alone_heal_what_was_measured_too(times):
    """As those of one instance often are; on all cores they take three fifths, say."""
    measured = {b: TRUTH[b] * (2.5 if at % 2 else 1.0) for at, b in enumerate(BUCKETS)}
    costs = CorrectedCosts(measured, StaticCosts)
    serve(costs, 2, 20 * 60, times=times, alone=True)
    assert serve(costs, 3, 300, times=times, noise=0.05, alone=True) < 0.1
    assert apart(costs.table, TRUTH) < math.log(1.3)


def test_runs_that_have_all_cores_say_nothing_of_those_that_share_them():
    """A whole minute of them, and plans for a busy device are made as before."""
    costs = CorrectedCosts(TRUTH, StaticCosts)
    serve(costs, 1, 20 * 60, times=0.6, noise=0.05, alone=True)
    assert costs.expected(1e6, alone=True) == pytest.approx(0.6e6, rel=0.1)
    assert costs.expected(1e6, alone=False) == 1e6
    assert error(costs) < math.log(1.15)


def test_one_run_that_was_stopped_moves_little():
    """A run that took a thousand times as long counts as one that took twice as long."""
    correction = Correction(TRUTH)
    for _ in range(100):
        correction.observe(BUCKETS[0], 0.0)
    correction.observe(BUCKETS[0], math.log(1000))
    assert correction.cost(BUCKETS[0]) / TRUTH[BUCKETS[0]] < 1.15
    assert correction.cost(BUCKETS[1]) / TRUTH[BUCKETS[1]] < 1.1


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(BUCKETS), st.floats(-1e9, 1e9), st.booleans()), max_size=200)
)
def test_costs_stay_within_their_bounds(runs):
    """However long runs take: a quarter to four times, and the machine's factor up to eight."""
    correction = Correction(TRUTH)
    for bucket, difference, alone in runs:
        correction.observe(bucket, difference, alone=alone)
    assert 1 / 8.01 < correction.alone < 8.01
    for bucket, cost in correction.costs().items():
        assert 1 / 33 < cost / TRUTH[bucket] < 33
    for bucket, cost in correction.lasting().items():
        assert 1 / 4.01 < cost / TRUTH[bucket] < 4.01


def test_a_shape_of_its_own_corrects_the_measured_point_next_to_it():
    """Where any shape runs, rows run in shapes that no one measured."""
    costs = CorrectedCosts({(1, 16): 1e6, (1, 64): 4e6}, lambda table: DynamicCosts(table, 4))
    for _ in range(400):
        costs.observe((1, 60), 2 * 3.75e6)
        costs.observe((1, 17), 1.06e6)
    assert costs.cost(1, (60,)) == pytest.approx(7.5e6, rel=0.1)
    assert costs.cost(1, (17,)) == pytest.approx(1.06e6, rel=0.2)


def test_plans_are_made_with_the_corrected_table():
    """The cheaper of two covering buckets is another one once runs have shown it."""
    table = {(1, 8): 30e6, (1, 16): 20e6}
    costs = CorrectedCosts(table, StaticCosts)
    assert costs.bucket(1, (5,)) == (1, 16)
    for _ in range(200):
        costs.observe((1, 8), 5e6)
        costs.observe((1, 16), 20e6)
    assert costs.bucket(1, (5,)) == (1, 8)
    assert (costs.steps, costs.limits) == ((1,), (16,))
    assert costs.covers((16,))
    assert not costs.covers((17,))
    assert costs.label((1, 8)) == "1x8"
    assert costs.by_step((5,)) == [(1, costs.cost(1, (5,)))]


def planned(costs, rows, runs, truth):
    """Serve batches of rows of 16, each in the runs that the table has cheapest; return these."""
    made = []
    for _ in range(runs):
        whole, half = costs.cost(rows, (16,)), 2 * costs.cost(rows // 2, (16,))
        parts = [rows] if whole < half else [rows // 2] * 2
        for part in parts:
            costs.observe((part, 16), truth[part, 16])
        made += parts
    return made


@pytest.mark.parametrize("factor", [1.5, 3.9])
def test_a_bucket_that_was_measured_too_slow_is_planned_again(factor):
    """What never runs is never corrected; and once it has run, the truth is what is kept."""
    truth = {(4, 16): 2e6, (8, 16): 3e6}
    costs = CorrectedCosts({**truth, (8, 16): 3e6 * factor}, StaticCosts)
    assert set(planned(costs, 8, 100, truth)) == {4}
    planned(costs, 8, 8000, truth)
    assert set(planned(costs, 8, 100, truth)) == {8}
    kept = costs.lasting()
    assert kept[8, 16] / kept[4, 16] == pytest.approx(1.5, rel=0.2)


def test_a_bucket_that_is_slow_is_hardly_ever_planned():
    """Its one run in thousands says that it was measured rightly."""
    truth = {(4, 16): 2e6, (8, 16): 8e6}
    costs = CorrectedCosts(truth, StaticCosts)
    made = planned(costs, 8, 5000, truth)
    assert 1 <= made.count(8) <= 3
    assert costs.lasting()[8, 16] == pytest.approx(8e6, rel=0.1)


@pytest.mark.parametrize("took", [0.0, -1.0])
def test_a_run_of_unknown_time_says_nothing(took):
    """As one that no bucket covers."""
    costs = CorrectedCosts(TRUTH, StaticCosts)
    for _ in range(100):
        costs.observe(BUCKETS[0], took)
        costs.observe((1, 1000), 1e6)
    assert costs.lasting() == TRUTH


def test_a_tenth_is_a_move():
    """In either direction, and from nothing."""
    assert not moved(10.0, 10.9)
    assert moved(10.0, 11.1)
    assert moved(10.0, 9.0)
    assert moved(0, 1.0)
