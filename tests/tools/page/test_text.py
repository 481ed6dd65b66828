"""The pictures of text generation."""

from matplotlib.figure import Figure

from builders.recordings import text_reading
from ge_tools.page.text import draw_cache, draw_tokens

READINGS = (text_reading(10.0, 0), text_reading(11.0, 0.25), text_reading(13.0, 1))
COLOURS = {"writer": "#123456"}


def test_tokens_are_told_between_looks():
    """Drawn ones above and those of prompts below, each as many as came per second."""
    figure = Figure()
    draw_tokens(figure, READINGS, COLOURS)
    drawn, taken = (axes.patches[0].get_data() for axes in figure.axes)
    assert list(drawn.values) == [200, 300]
    assert list(taken.values) == [50, 75]
    assert list(drawn.edges) == [0, 1, 3]


def test_the_cache_is_told_as_it_was_at_each_look():
    """Its share above; below those that run, and dotted those that wait."""
    figure = Figure()
    draw_cache(figure, READINGS, COLOURS)
    above, below = figure.axes
    assert list(above.lines[0].get_ydata()) == [25, 25, 25]
    assert [list(line.get_ydata()) for line in below.lines] == [[8, 8, 8], [3, 3, 3]]
