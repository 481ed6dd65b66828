"""Rates, lengths, buckets and padding, drawn."""

import pytest
from matplotlib.figure import Figure

from builders.recordings import recording
from ge_backend.serving.batching.pipeline import COUNTED_DIGITS
from ge_backend.shapes.traffic.histogram import rounded_up
from ge_tools.page.numbers import served_models
from ge_tools.page.traffic import (
    bins,
    draw_padding,
    draw_rates,
    draw_shapes,
    shapes_height,
)

COLOURS = {"encoder": "#0072B2"}


@pytest.mark.parametrize(("first", "last"), [(0, 2), (1, 200), (3, 3), (12, 48), (0, 5000)])
def test_bins_are_those_that_rows_are_counted_in(first, last):
    """The backend rounds sizes up; what it can round to is drawn, gaps too."""
    counted = {rounded_up(size, COUNTED_DIGITS) for size in range(first, last + 1)}
    assert bins(first, last) == sorted(size for size in counted if size <= last)


def bars(axes):
    return [patch.get_height() for patch in axes.patches]


def test_lengths_are_shares_and_sizes_that_did_not_come_have_their_place():
    """150 rows up to 8, none up to 12, 50 up to 16."""
    figure = Figure()
    models = served_models(recording())
    draw_shapes(figure, models, COLOURS)
    left, right = figure.axes
    assert bars(left) == [75, 0, 25]
    labels = [label.get_text() for label in left.get_xticklabels()]
    assert labels == ["8", "9-12", "13-16"]
    assert [patch.get_width() for patch in right.patches] == [30, 10]
    assert [label.get_text() for label in right.get_yticklabels()] == ["4x8", "4x64"]
    assert shapes_height(models) > 2


def test_a_model_without_ragged_axes_has_only_buckets():
    """It is said so, where its lengths would be."""
    values = {
        key: value
        for key, value in recording().last.values.items()
        if key[0] != "ge_row_sizes_total"
    }
    whole = recording()
    plain = recording(
        readings=(whole.first, type(whole.last)(at_s=12.0, values=values)),
    )
    figure = Figure()
    draw_shapes(figure, served_models(plain), COLOURS)
    assert [text.get_text() for text in figure.axes[0].texts] == ["no ragged axis"]


def test_rates_are_drawn_as_steps():
    """Between two readings nobody knows more than the mean."""
    figure = Figure()
    draw_rates(figure, recording().readings, ["encoder"], COLOURS)
    (steps,) = figure.axes[0].patches
    values, edges, _ = steps.get_data()
    assert (list(values), list(edges)) == ([25, 75], [0, 1, 2])


def test_padding_is_drawn_beside_what_was_sent_and_what_could_have_run():
    """One is what was sent."""
    figure = Figure()
    draw_padding(figure, served_models(recording()))
    assert [patch.get_width() for patch in figure.axes[0].patches] == [1, 1.25, 3]
