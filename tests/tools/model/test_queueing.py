"""The arithmetic of waiting, against a queue that is played through event by event."""

import numpy as np
import pytest

from ge_tools.model.queueing import Forecast, fewest_replicas, waiting

# Seconds that 1 to 8 requests take together: 2 ms for a run and 1 ms for each.
EVEN = 0.002 + 0.001 * np.arange(1, 9)[:, None] * np.ones((1, 4))
UNEVEN = EVEN * np.array([0.4, 0.8, 1.0, 1.8])


def played(times, rate, requests=60_000, seed=1):
    """Return the latencies of requests that come by chance, and the mean batch."""
    rng = np.random.default_rng(seed)
    come = np.cumsum(rng.exponential(1 / rate, requests))
    now, first, latencies, batches = 0.0, 0, np.empty(requests), 0
    while first < requests:
        now = max(now, come[first])
        last = min(np.searchsorted(come, now, side="right"), first + len(times))
        now += rng.choice(times[last - first - 1])
        latencies[first:last] = now - come[first:last]
        first, batches = last, batches + 1
    return latencies[requests // 10 :], requests / batches


@pytest.mark.parametrize("times", [EVEN, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("rate", [50, 300, 600])
def test_it_is_what_a_queue_does(times, rate):
    """Median, 99 of 100 and the mean batch, from nearly idle to three quarters of what is possible."""
    latencies, batch = played(times, rate)
    found = waiting(times, rate)
    assert found.batch == pytest.approx(batch, rel=0.03)
    assert found.p50_s == pytest.approx(np.percentile(latencies, 50), rel=0.08)
    assert found.p99_s == pytest.approx(np.percentile(latencies, 99), rel=0.08)


def test_an_idle_server_answers_in_the_time_of_a_run():
    """And is busy as long as that takes."""
    found = waiting(EVEN, 1.0)
    assert found.p50_s == pytest.approx(0.003)
    assert found.busy == pytest.approx(0.003, rel=0.01)
    assert found.batch == pytest.approx(1.0, abs=0.01)


def test_what_cannot_be_served_is_no_waiting():
    """8 requests take 10 ms: 800 a second are too many, and so are 799."""
    assert waiting(EVEN, 1000.0) is None
    assert waiting(EVEN, 799.0) is None


@pytest.mark.parametrize(("needed", "found"), [(1, 1), (2, 2), (5, 5), (64, 64), (1 << 20, None)])
def test_the_fewest_replicas_are_found(needed, found):
    """As many as are needed and not one more; None where there is no end to it."""

    def load(replicas):
        return Forecast(0.5, 1.0, 0.01, 0.05) if replicas >= needed else None

    assert fewest_replicas(load, 0.05) == found
    assert fewest_replicas(load, 0.049) is None
