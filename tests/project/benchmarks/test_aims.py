"""Which aims a run has met."""

import pytest
from benchmarks.aims import BEST_P99, aims, verdicts
from benchmarks.poisson import Poisson
from benchmarks.results import CEILING, Result


def result(system, behind, *, concurrency=32, p99_ms=100.0):
    return Result(
        mix="lognormal",
        concurrency=concurrency,
        system=system,
        layout="",
        throughput=100 / behind,
        p50_ms=10.0,
        p99_ms=p99_ms,
        server_cpu_s=1.0,
        client_cpu_s=0.1,
        others_cpu=0.0,
        by_round={0: 100 / behind},
    )


def found(*results, offered=(), bf16=False):
    return {
        (a.cell, a.ours, a.what): (a.least, a.found, a.met)
        for a in aims(results, offered, bf16=bf16)
    }


def test_each_of_ours_is_held_against_each_rival():
    """Each by its own throughput."""
    cell = "lognormal, 32 in flight"
    seen = found(result("ge", 1.0), result("ge_packed", 0.5), result("packed", 0.8))
    assert seen[cell, "ge", "packed"] == (1.0, 0.8, False)
    assert seen[cell, "ge_packed", "packed"] == (1.0, pytest.approx(1.6), True)


def test_the_aim_is_higher_in_bf16():
    """1.2x a packed model is enough in float32 alone."""
    results = (result("ge", 1.0), result("packed", 1.2))
    assert found(*results)["lognormal, 32 in flight", "ge", "packed"][2]
    assert not found(*results, bf16=True)["lognormal, 32 in flight", "ge", "packed"][2]


def test_the_slowest_requests_are_held_against_the_best_rivals():
    """Also where requests come at random; a system that was too slow for that says nothing."""
    offered = [
        Poisson(mix="lognormal", system="ge", rate=9.0, p50_ms=1.0, p99_ms=30.0),
        Poisson(mix="lognormal", system="packed", rate=9.0, p50_ms=1.0, p99_ms=60.0),
        Poisson(mix="lognormal", system="pad_longest", rate=9.0, p50_ms=None, p99_ms=None),
    ]
    seen = found(
        result("ge", 1.0, p99_ms=100.0),
        result("packed", 2.0, p99_ms=50.0),
        result("one_forward", 2.0, p99_ms=80.0),
        result(CEILING, 0.9, p99_ms=None),
        offered=offered,
    )
    assert seen["lognormal, 32 in flight", "ge", BEST_P99] == (1.0, 0.5, False)
    assert seen["lognormal, Poisson", "ge", BEST_P99] == (1.0, 2.0, True)


def test_the_table_has_a_line_for_each_aim_and_says_how_many_are_met():
    """A column for each of ours that ran."""
    results = (result("ge", 1.0), result("ge_packed", 0.5), result("packed", 0.8))
    head, *lines = verdicts(aims(results, bf16=False)).splitlines()
    assert head.split() == ["aim", "ge", "ge_packed"]
    assert "1.0x packed" in lines[0]
    assert "0.80 NOT met" in lines[0]
    assert "1.60 met" in lines[0]
    assert lines[-1].split() == ["all", "1", "of", "2", "met", "2", "of", "2", "met"]
