"""SVG that lies inside a page."""

import builtins
import xml.etree.ElementTree as ET

import pytest
from matplotlib.figure import Figure

from ge_backend.errors import DeviceUnavailable
from ge_tools.page.drawing import WIDTH_INCHES, check_libraries, colours_of, legend, svg


def drawn():
    def draw(figure):
        axes = figure.subplots()
        axes.plot([1, 2], [3, 4])
        axes.set_title("<b> & $x$ model")

    return svg(draw, 2.0, name="here")


def test_it_is_one_element_that_takes_the_pages_width_and_colour():
    """No header of a file, no width of its own, no ink of its own, nothing about who made it."""
    text = drawn()
    assert text.startswith("<svg")
    assert ET.fromstring(text).get("width") is None
    assert ET.fromstring(text).get("viewBox")
    assert "currentColor" in text
    assert "metadata" not in text
    assert "#010203" not in text


def test_texts_stay_texts_and_are_escaped():
    """A model's name is no markup and no formula."""
    texts = [node.text for node in ET.fromstring(drawn()).iter() if node.tag.endswith("}text")]
    assert "<b> & $x$ model" in texts


def test_the_same_figure_is_the_same_text():
    """So that two reports can be compared."""
    assert drawn() == drawn()


def test_each_name_has_a_colour():
    """The same one as long as the list is the same."""
    names = [f"m{index}" for index in range(20)]
    assert list(colours_of(names)) == names
    assert len(set(colours_of(names[:8]).values())) == 8


@pytest.mark.parametrize(("labels", "columns"), [(["a", "b"], 2), (["x" * 60] * 3, 1)])
def test_a_legend_has_as_many_columns_as_have_room(labels, columns):
    """Long names go below each other."""
    figure = Figure(layout="constrained")
    for label in labels:
        figure.gca().plot([1], [1], label=label)
    legend(figure)
    assert figure.legends[0]._ncols == columns


@pytest.mark.parametrize("count", [2, 60])
def test_a_long_legend_leaves_the_picture_its_height(count):
    """A server of many models has a name for each line."""
    figure = Figure(figsize=(WIDTH_INCHES, 2.8), layout="constrained")
    axes = figure.subplots()
    for index in range(count):
        axes.plot([1], [1], label=f"a_model_with_a_name_{index}")
    legend(figure)
    figure.draw_without_rendering()
    assert axes.get_position().height * figure.get_figheight() > 1.5


def test_a_figure_without_labels_has_no_legend():
    """Where nothing was drawn there is nothing to explain."""
    figure = Figure(layout="constrained")
    figure.subplots()
    legend(figure)
    assert figure.legends == []


@pytest.mark.parametrize("missing", ["jinja2", "matplotlib"])
def test_a_missing_library_is_told_before_anything_is_watched(missing, monkeypatch):
    """With what to install."""
    there = builtins.__import__

    def without(name, *rest, **more):
        if name == missing:
            raise ImportError(f"No module named {missing!r}")
        return there(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DeviceUnavailable, match=rf"{missing}.*triton-ge-backend\[tools\]"):
        check_libraries()
