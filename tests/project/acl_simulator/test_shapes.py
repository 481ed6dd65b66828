"""How shapes may vary."""

import pytest

from acl_simulator.shapes import (
    BatchGears,
    DimsGears,
    ImageGears,
    Ranges,
    Static,
    StaticV2,
    shapes_of,
)


def test_batch_gears_fill_every_input():
    shapes = BatchGears({"a": (-1, 3), "b": (-1,)}, [(1,), (8,), (4,)])
    assert shapes.fill((4,)) == {"a": (4, 3), "b": (4,)}
    assert shapes.largest == (8,)


def test_image_gears_fill_every_input():
    shapes = ImageGears({"a": (1, 3, -1, -1)}, [(8, 4), (2, 2)])
    assert shapes.fill((8, 4)) == {"a": (1, 3, 8, 4)}


def test_dims_gears_go_through_all_inputs_in_order():
    shapes = DimsGears({"a": (1, -1), "b": (-1, -1)}, [(20, 1, 2)])
    assert shapes.fill((20, 1, 2)) == {"a": (1, 20), "b": (1, 2)}


def test_the_largest_gear_is_the_one_with_most_elements():
    shapes = DimsGears({"a": (-1, -1)}, [(1, 64), (32, 4), (8, 8)])
    assert shapes.largest == (32, 4)


def test_ranges_have_limits():
    shapes = Ranges({"a": ((1, 8), 16, (2, -1))})
    assert shapes.dims == {"a": (-1, 16, -1)}
    assert shapes.limits("a") == [[1, 8], [16, 16], [2, -1]]


@pytest.mark.parametrize(
    "shapes",
    [
        Static({"a": (1, 2)}),
        StaticV2({"a": (1, 2)}),
        BatchGears({"a": (-1,)}, [(1,), (2,)]),
        DimsGears({"a": (-1, -1)}, [(1, 2)]),
        Ranges({"a": ((1, 8),)}),
    ],
    ids=lambda shapes: shapes.mode,
)
def test_shapes_survive_the_file(shapes):
    read = shapes_of(shapes.to_json())
    assert type(read) is type(shapes)
    assert read.dims == shapes.dims
    assert read.all_gears == shapes.all_gears
