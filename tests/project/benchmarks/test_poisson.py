"""Requests at random, at one rate for all systems that can take it."""

import numpy as np
import pytest
from benchmarks import poisson as poisson_module
from benchmarks.client import BenchmarkError
from benchmarks.open_loop import Offered
from benchmarks.poisson import SHARE, poisson, poisson_table
from benchmarks.pool import Pool
from benchmarks.results import CEILING, Result
from tritonclient.grpc import service_pb2

# The answer to the first of two sequences is known.
POOL = Pool(rows=(np.arange(3),) * 2, answers={0: np.ones(4, np.float32)}, tolerance=1e-4)


def result(system, throughput, *, layout="", concurrency=64):
    return Result(
        mix="uniform",
        concurrency=concurrency,
        system=system,
        layout=layout,
        throughput=throughput,
        p50_ms=1.0,
        p99_ms=2.0,
        server_cpu_s=1.0,
        client_cpu_s=0.1,
        others_cpu=0.0,
        by_round={0: throughput},
    )


def test_all_get_the_same_rate_and_the_slower_ones_none(monkeypatch):
    """The rate is a share of what ours takes at the most requests in flight."""
    asked = []

    def offer(address, model, rows, rate, seconds, seed):
        asked.append((address, model, rate, seconds, seed))
        return Offered(latencies_ms=[1.0, 2.0, 9.0], refused=0, wall_s=seconds, answers=())

    monkeypatch.setattr(poisson_module, "offer", offer)
    found = [
        result("ge", 50.0, concurrency=1),
        result("ge", 200.0),
        result("packed", 150.0, layout="1x2"),
        result("pad_longest", 60.0, layout="2x1"),
        result(CEILING, 400.0),
    ]
    lines = list(poisson("here:1", found, {"uniform": POOL}, rounds=2, seconds=3.0, seed=5))
    rate = 200 * SHARE
    calls = [(model, seed) for model in ("ge", "packed_1x2") for seed in (5, 6)]
    assert sorted(asked) == sorted(("here:1", model, rate, 3.0, seed) for model, seed in calls)
    assert [(line.system, line.p50_ms, line.p99_ms) for line in lines] == [
        ("ge", 2.0, 9.0),
        ("packed", 2.0, 9.0),
        ("pad_longest", None, None),
    ]
    table = poisson_table(lines)
    assert [line.split()[0] for line in table.splitlines()] == ["mix", *["uniform"] * 3]
    assert table.splitlines()[-1].endswith("pad_longest     slower than that")


def embedding(value):
    response = service_pb2.ModelInferResponse()
    response.raw_output_contents.append(np.full(4, value, np.float32).tobytes())
    return response.SerializeToString()


@pytest.mark.parametrize(
    ("refused", "answers", "said"),
    [
        (1, [], "ge, uniform: 1 of 4 requests were refused"),
        (0, [(0, embedding(1.0)), (1, embedding(9.0)), (0, embedding(2.0))], "row 0: off by 1.0"),
        (0, [(0, embedding(1.0)), (1, embedding(9.0))], ""),
    ],
)
def test_what_is_refused_or_wrong_ends_the_benchmark(monkeypatch, refused, answers, said):
    """A system that answers a part of what it gets would have the better percentiles."""
    offered = Offered(latencies_ms=[1.0] * 3, refused=refused, wall_s=1.0, answers=answers)
    monkeypatch.setattr(poisson_module, "offer", lambda *_: offered)
    asked = poisson("x", [result("ge", 9.0)], {"uniform": POOL}, rounds=1, seconds=1.0, seed=1)
    if said:
        with pytest.raises(BenchmarkError, match=said):
            list(asked)
    else:
        assert [one.p50_ms for one in asked] == [1.0]
