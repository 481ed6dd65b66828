"""What an engine counts."""

import pytest

from ge_text.engine.figures import Histogram, Tally


def test_a_bound_counts_what_is_at_most_so_large():
    """Observations fall under the first bound that they do not exceed; none is lost above."""
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.5):
        histogram.observe(value)
    figures = histogram.figures()
    assert (figures.bounds, figures.counts, figures.total) == ((1.0, 2.0), (2, 1, 1), 5.5)


def test_a_picture_does_not_change():
    """What was handed out stays what it was."""
    histogram = Histogram((1.0,))
    before = histogram.figures()
    histogram.observe(0.1)
    assert before.counts == (0, 0)


def test_only_known_things_are_counted():
    """A misspelt name is an error, not a new number."""
    tally = Tally()
    tally.add("steps", 2)
    assert tally.counts["steps"] == 2
    with pytest.raises(KeyError):
        tally.add("stepz")


def test_each_tally_has_numbers_of_its_own():
    """Two engines do not add up."""
    Tally().add("steps")
    Tally().observe("step", 1.0)
    assert Tally().counts["steps"] == 0
    assert sum(Tally().pictures()["step"].counts) == 0
