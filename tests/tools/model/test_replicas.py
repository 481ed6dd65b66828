"""Servers for a load, from kept costs and recorded sizes."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from ge_backend.errors import ConfigError
from ge_backend.serving.warmup.measure import cost_key
from ge_backend.serving.warmup.store import Store
from ge_backend.shapes.traffic.histogram import SizeHistogram
from ge_backend.shapes.traffic.traffic import Traffic
from ge_tools.model.offline import open_offline
from ge_tools.model.queueing import fewest_replicas, waiting
from ge_tools.model.replicas import LoadPlan, load_text, plan_load

# Milliseconds of a run, by rows and length: 8 short ones take as long as 2 alone.
COSTS = {(1, 16): 2.0, (8, 16): 4.0, (1, 64): 6.0, (8, 64): 20.0}


def plan(folder, rate, p99_ms):
    """Plan for a model in a folder."""
    return plan_load(folder, rate, p99_ms / 1e3, device=None, cache_dir=None)


@pytest.fixture
def planned(model, cache):
    """A function that plans for a model with these costs, which an earlier start has kept."""
    folder = model()
    with open_offline(folder, device=None, cache_dir=None) as opened:
        kept = {bucket: cost_ms * 1e6 for bucket, cost_ms in COSTS.items()}
        opened.store.keep_costs(cost_key(opened), kept)
    return partial(plan, folder)


def test_costs_that_none_has_kept_are_measured(model, cache):
    """By runs, and kept for the next plan."""
    folder = model(cost_ms={"*": 6.0})
    found = plan(folder, 1, 10_000)
    assert found.alone_s >= 0.006
    assert plan(folder, 1, 10_000).alone_s == found.alone_s


def test_the_sizes_that_came_decide(planned, cache):
    """Without any the largest size counts; short texts need fewer servers."""
    long = planned(1000, 60)
    assert not long.from_traffic
    assert long.alone_s == pytest.approx(0.006)
    short = SizeHistogram()
    short.add(10, 100)
    Store(cache).add_traffic("tiny", {"length": short})
    found = planned(1000, 60)
    assert found.from_traffic
    assert found.alone_s == pytest.approx(0.002)
    assert found.replicas < long.replicas


@pytest.mark.parametrize("rows", [1, 4])
def test_requests_that_came_together_are_still_several(planned, cache, rows):
    """A busy server is handed eight of them as one batch; a load is of requests."""
    traffic = Traffic(("length",))
    traffic.add([(rows, (10,))] * 8)
    Store(cache).add_traffic("tiny", traffic.take())
    assert planned(100, 60).together == 8 / rows


def test_replicas_are_the_fewest_that_do(planned):
    """What they do is told, and what one less would."""
    found = planned(2000, 60)
    assert found.replicas > 2
    assert found.found.p99_s <= 0.060
    assert found.fewer is None or found.fewer.p99_s > 0.060
    lines = load_text(found)
    assert lines[0] == "tiny: 2000 requests/s, 99 of 100 within 60 ms"
    assert f"replicas: {found.replicas}" in lines[2]
    assert len(lines) == 5
    assert planned(1, 60).replicas == 1


@pytest.mark.parametrize("lengths", ["16", "16,32"])
def test_a_model_runs_in_the_buckets_that_it_has_now(planned, tmp_path, lengths):
    """Costs of others are kept, too: of those it had before they were tuned, say."""
    assert planned(10, 60).alone_s == pytest.approx(0.006)
    config = tmp_path / "repository" / "tiny" / "config.pbtxt"
    config.write_text(config.read_text().replace('"16,64"', f'"{lengths}"'))
    assert 0.002 <= planned(10, 60).alone_s < 0.004


@pytest.mark.parametrize(
    ("rate", "p99_ms", "message"),
    [(0, 60, "--load is 0"), (10, -1, "--p99 is"), (10, 2, "no number of servers")],
)
def test_what_cannot_be_is_said(planned, rate, p99_ms, message):
    """A limit that a lone request breaks is broken by any number of servers."""
    with pytest.raises(ConfigError, match=message):
        planned(rate, p99_ms)


def test_the_page_shows_what_is_printed():
    """The example in docs/scale.md: 2 ms for a run and 1 ms more for each request."""
    times = 0.002 + 0.001 * np.arange(1, 9)[:, None] * np.ones((1, 4))

    def load(replicas):
        return waiting(times, 2000 / replicas)

    replicas = fewest_replicas(load, 0.025)
    shown = load_text(
        LoadPlan(
            model="encoder",
            rate=2000,
            p99_s=0.025,
            lanes=1,
            alone_s=0.003,
            together=8,
            together_s=0.010,
            from_traffic=True,
            replicas=replicas,
            found=load(replicas),
            fewer=load(replicas - 1),
        )
    )
    page = (Path(__file__).resolve().parents[3] / "docs" / "scale.md").read_text()
    assert "\n".join(f"    {line}" for line in shown) in page
