"""From windows to results."""

import pytest
from benchmarks.results import CEILING, Sample, results


def sample(
    system, throughput, *, layout="", round_number=0, concurrency=32, latencies=(10.0,), **cpu
):
    return Sample(
        system=system,
        layout=layout,
        mix="lognormal",
        concurrency=concurrency,
        round_number=round_number,
        throughput=throughput,
        requests=100,
        wall_s=2.0,
        latencies_ms=latencies,
        cpu_s=cpu or {"stub": 1.0, "client": 0.1, "others": 0.2},
    )


def by_system(samples):
    return {result.system: result for result in results(samples)}


def test_a_rival_counts_with_its_better_layout():
    """Of a rival's layouts the one with the higher median throughput is reported and compared."""
    found = by_system(
        [
            sample("ge", 300.0),
            sample("one_forward", 100.0, layout="1x2"),
            sample("one_forward", 150.0, layout="2x1"),
        ]
    )
    assert found["one_forward"].layout == "2x1"
    assert found["ge"].over(found["one_forward"]) == pytest.approx(2.0)


def test_the_ceiling_stands_in_every_cell_of_its_mix():
    """The ceiling has no concurrency of its own and is compared at each."""
    found = results(
        [
            sample("ge", 80.0, concurrency=1),
            sample("ge", 90.0, concurrency=32),
            sample(CEILING, 100.0, layout="a", concurrency=0, latencies=(), ceiling=1.5),
        ]
    )
    ours = {r.concurrency: r for r in found if r.system == "ge"}
    ceilings = {r.concurrency: ours[r.concurrency].over(r) for r in found if r.system == CEILING}
    assert ceilings == {1: pytest.approx(0.8), 32: pytest.approx(0.9)}
    assert all(r.p50_ms is None for r in found if r.system == CEILING)


def test_cpu_is_per_thousand_requests_and_split_by_side():
    """Host, stub and executor are the server's CPU; client and others are not."""
    found = by_system([sample("ge", 1.0, host=0.1, stub=0.2, executor=0.7, client=0.3, others=0.5)])
    assert found["ge"].server_cpu_s == pytest.approx(10.0)
    assert found["ge"].client_cpu_s == pytest.approx(3.0)
    assert found["ge"].others_cpu == pytest.approx(0.25)


def test_percentiles_are_over_all_rounds():
    """Latencies of all rounds are pooled, throughput is the median of the rounds."""
    found = by_system(
        [
            sample("ge", 1.0, round_number=0, latencies=(1.0, 2.0)),
            sample("ge", 5.0, round_number=1, latencies=(3.0, 4.0)),
            sample("ge", 6.0, round_number=2, latencies=(5.0,)),
        ]
    )
    assert (found["ge"].p50_ms, found["ge"].p99_ms, found["ge"].throughput) == (3.0, 5.0, 5.0)


def test_any_two_systems_are_compared_within_each_round():
    """The median of those ratios, which the quotient of two medians is not."""
    rounds = {"ge": (100, 100, 200), "ge_packed": (120, 300, 210), "one_forward": (100, 200, 300)}
    found = by_system(
        sample(system, float(throughput), round_number=number)
        for system, throughputs in rounds.items()
        for number, throughput in enumerate(throughputs)
    )
    assert found["ge_packed"].over(found["one_forward"]) == pytest.approx(1.2)
    assert found["ge"].over(found["one_forward"]) == pytest.approx(2 / 3)
    assert found["ge_packed"].over(found["ge_packed"]) == 1
