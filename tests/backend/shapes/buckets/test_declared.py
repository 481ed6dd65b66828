"""Gears of whole input shapes become buckets of rows and sizes, or are explained."""

import pytest

from ge_backend.errors import ConfigError
from ge_backend.model.layout.layout import InputLayout, Layout
from ge_backend.shapes.buckets.declared import declared_grid
from ge_backend.tensors import DATA_TYPES


def layout_of(*inputs, axes=("height", "width"), equal_axes=(), batched=True):
    """Return a layout of inputs (name, dims, indices of free axes)."""
    return Layout(
        batched=batched,
        axes=axes,
        limits={},
        inputs=tuple(
            InputLayout(
                name=name,
                dtype=DATA_TYPES["FP32"],
                dims=dims,
                axes=indices,
                names=tuple(map(str, indices)),
                fill=0.0,
                made="",
            )
            for name, dims, indices in inputs
        ),
        outputs=(),
        equal_axes=equal_axes,
    )


IMAGE = ("image", (3, -1, -1), (-1, 0, 1))
MASK = ("mask", (-1, -1), (0, 1))


def test_rows_and_sizes_are_read_off_the_shapes():
    """One bucket for each gear, ascending."""
    gears = [
        {"image": (2, 3, 336, 448), "mask": (2, 336, 448)},
        {"image": (1, 3, 224, 224), "mask": (1, 224, 224)},
    ]
    grid = declared_grid(gears, layout_of(IMAGE, MASK))
    assert grid.entries == ((1, 224, 224), (2, 336, 448))
    assert grid.names == ("rows", "height", "width")


def test_without_a_batch_the_whole_shape_is_sizes():
    """There is one row then."""
    layout = layout_of(("image", (1, 3, -1, -1), (-1, -1, 0, 1)), batched=False)
    assert declared_grid([{"image": (1, 3, 8, 9)}], layout).entries == ((1, 8, 9),)


def test_only_rows_may_vary():
    """A model without free axes has gears of the batch alone."""
    layout = layout_of(("image", (3, 224, 224), (-1, -1, -1)), axes=())
    gears = [{"image": (rows, 3, 224, 224)} for rows in (1, 2, 8)]
    assert declared_grid(gears, layout).entries == ((1,), (2,), (8,))


def test_axes_that_are_not_padded_do_not_matter():
    """On an engine that runs any shape only what is ragged has buckets."""
    layout = layout_of(("image", (3, -1, -1), (-1, 1, 0)), axes=("width",), equal_axes=("height",))
    assert declared_grid([{"image": (4, 3, 99, 16)}], layout).entries == ((4, 16),)


def test_inputs_that_have_nothing_free_need_no_shape():
    """Others do."""
    fixed = ("scale", (2,), (-1,))
    assert declared_grid([{"image": (1, 3, 8, 9)}], layout_of(IMAGE, fixed)).entries == ((1, 8, 9),)
    with pytest.raises(ConfigError, match="does not list input 'mask'"):
        declared_grid([{"image": (1, 3, 8, 9)}], layout_of(IMAGE, MASK))


@pytest.mark.parametrize(
    "gear",
    [
        {"image": (1, 3, 8, 9), "mask": (2, 8, 9)},  # two numbers of rows
        {"image": (1, 3, 8, 9), "mask": (1, 8, 8)},  # two sizes of one axis
        {"image": (1, 4, 8, 9), "mask": (1, 8, 9)},  # not the model's
        {"image": (1, 3, 8), "mask": (1, 8, 9)},  # another rank
        {"image": (), "mask": (1, 8, 9)},
    ],
)
def test_shapes_that_contradict_each_other_are_refused(gear):
    """A bucket is one number of rows with one size for each axis."""
    with pytest.raises(ConfigError, match="which has to be"):
        declared_grid([gear], layout_of(IMAGE, MASK))


def test_an_unknown_input_is_refused():
    """With the known ones."""
    with pytest.raises(ConfigError, match=r"no input 'img'; it has image, mask"):
        declared_grid([{"img": (1, 3, 8, 9)}], layout_of(IMAGE, MASK))
