import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.histograms import histogram_of
from ge_backend.errors import ConfigError
from ge_tools.model.proposal import ORIENTATION, propose

TRAFFIC = st.dictionaries(st.integers(1, 60), st.integers(1, 50), min_size=1, max_size=10)
NOW = st.sets(st.integers(1, 64), min_size=1, max_size=6).map(sorted)


@given(counts=TRAFFIC, now=NOW)
def test_as_many_sizes_as_now_never_cost_more(counts, now):
    """What is proposed covers what now covers, and all traffic, for at most now's expected cost."""
    proposal = propose("length", histogram_of(counts), now, None, float)
    assert len(proposal.best.boundaries) <= len(now)
    assert proposal.best.boundaries[-1] >= max(now[-1], *counts)
    assert proposal.best.expected.uncovered == 0
    if proposal.beyond == 0:
        assert proposal.saved(proposal.best) >= -1e-9
    floor = proposal.unpadded.cost
    for option in (proposal.now, proposal.best, *proposal.others):
        assert option.expected.cost >= floor - 1e-9


def test_figures_of_a_small_case():
    """Padding, elements and savings can be worked out by hand."""
    proposal = propose("length", histogram_of({4: 3, 10: 1}), (16,), 2, float)
    assert proposal.best.boundaries == (4, 16)
    assert proposal.now.expected.padded == 16
    assert proposal.best.expected.padded == 7
    assert proposal.best.expected.padding == 1 - 5.5 / 7
    assert proposal.saved(proposal.best) == 1 - 7 / 16
    assert proposal.unpadded.cost == 5.5


def test_traffic_beyond_the_buckets_runs_at_its_own_size():
    """Else now would look cheaper the more traffic it does not cover."""
    proposal = propose("length", histogram_of({4: 1, 100: 1}), (8,), None, float)
    assert proposal.beyond == 0.5
    assert proposal.now.expected.cost == (8 + 100) / 2
    assert proposal.now.boundaries == (8,)
    assert proposal.best.boundaries == (100,)


def test_options_for_orientation_differ_from_each_other():
    """Where more sizes save nothing there is no line for them."""
    many = propose("length", histogram_of(dict.fromkeys(range(1, 40), 1)), (64,), 4, float)
    assert [len(option.boundaries) for option in many.others] == [
        count for count in ORIENTATION if count != 4
    ]
    few = propose("length", histogram_of({4: 1, 9: 1}), (9,), 2, float)
    assert few.others == ()


def test_no_graphs_is_an_error():
    """At least one size is needed to run anything."""
    with pytest.raises(ConfigError, match="0 boundaries"):
        propose("length", histogram_of({4: 1}), (9,), 0, float)
