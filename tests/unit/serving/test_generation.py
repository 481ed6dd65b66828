"""What an engine counted arrives in the recorder, sums and buckets right."""

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_backend.executor.protocol.generation_messages import Seen, SeenHistogram
from ge_backend.generate.figures import Tally
from ge_backend.metrics import METRICS, Recorder
from ge_backend.serving.generation import HISTOGRAMS, LEVELS, _observations, _record

BOUNDS = (1.0, 2.0, 5.0)


@given(st.lists(st.floats(0.001, 20.0), max_size=30))
def test_observations_have_the_buckets_and_the_sum(values):
    """Not the values are known, only how many fell where, and their sum: both stay."""
    counts = [0] * (len(BOUNDS) + 1)
    for value in values:
        counts[bisect_left(BOUNDS, value)] += 1
    seen = SeenHistogram(bounds=BOUNDS, counts=tuple(counts), total=sum(values))
    made = list(_observations(seen))
    again = [0] * (len(BOUNDS) + 1)
    for value in made:
        again[bisect_left(BOUNDS, value)] += 1
    assert sum(made) == pytest.approx(sum(values), rel=1e-6, abs=1e-6)
    assert len(made) == len(values)
    assert again == counts or min(made, default=1.0) < 1e-9


def test_all_that_an_engine_counts_is_a_metric():
    """No name of the engine's is unknown to the table of metrics, and bounds are the same."""
    tally, recorder = Tally(), Recorder()
    histograms = {
        name: SeenHistogram(bounds=f.bounds, counts=(1,) + (0,) * len(f.bounds), total=f.bounds[0])
        for name, f in tally.histograms().items()
    }
    seen = Seen(
        levels=dict.fromkeys(LEVELS, 1.0),
        counts=dict.fromkeys(tally.counts, 1),
        buckets={"8x1x4": 2},
        histograms=histograms,
    )
    _record(seen, recorder, "cpu")
    drained = recorder.drain()
    assert len(drained) == len(LEVELS) + len(tally.counts) + 2
    assert drained["ge_text_buckets_total", (("bucket", "8x1x4"),)] == 2
    assert drained["ge_run_seconds_total", (("device", "cpu"),)] == tally.step.figures().bounds[0]
    assert {name for name, _ in recorder.drain_observations()} == set(HISTOGRAMS.values())
    for name, figures in tally.histograms().items():
        assert METRICS[HISTOGRAMS[name]].bounds == figures.bounds
