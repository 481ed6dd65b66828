"""Descriptions of image preprocessing: what they may say, and what sizes follow."""

import json

import pytest

from ge_backend.engines.preprocess.image_file import MAX_PIXELS, read_image_file
from ge_backend.errors import ModelError


@pytest.fixture
def read(tmp_path):
    def write_and_read(given):
        path = tmp_path / "image.json"
        path.write_text(given if isinstance(given, str) else json.dumps(given))
        return read_image_file(path)

    return write_and_read


def test_an_empty_description_changes_nothing_but_the_scale(read):
    """Sizes stay, values go from 0 to 1."""
    steps = read({})
    assert (steps.exact, steps.shortest, steps.longest, steps.crop, steps.fixed) == (
        None,
        0,
        0,
        None,
        None,
    )
    assert (steps.channels, steps.layout, steps.interpolation) == ("RGB", "CHW", "bilinear")
    assert (steps.mean, steps.std) == ((0.0,) * 3, (1.0,) * 3)
    assert steps.resized(30, 50) == (30, 50)


def test_everything_can_be_said(read):
    """Each key arrives where it belongs."""
    steps = read(
        {
            "resize": {"shortest": 8, "longest": 16},
            "crop": [4, 6],
            "channels": "L",
            "layout": "HWC",
            "mean": [0.5],
            "std": [2],
            "interpolation": "lanczos",
            "max_pixels": 100,
        }
    )
    assert (steps.shortest, steps.longest, steps.crop, steps.fixed) == (8, 16, (4, 6), (4, 6))
    assert (steps.channels, steps.layout, steps.interpolation) == ("L", "HWC", "lanczos")
    assert (steps.mean, steps.std, steps.max_pixels) == ((0.5,), (2.0,), 100)
    assert read({"max_pixels": MAX_PIXELS}).max_pixels == MAX_PIXELS


@pytest.mark.parametrize(
    ("resize", "size", "expected"),
    [
        ({"shortest": 10}, (100, 50), (20, 10)),
        ({"shortest": 10}, (50, 75), (10, 15)),
        ({"shortest": 256}, (333, 500), (256, 384)),  # 384.38: rounded down, as torchvision does
        ({"shortest": 10}, (4, 4), (10, 10)),
        ({"shortest": 10, "longest": 15}, (100, 50), (15, 7)),
        ({"shortest": 10, "longest": 15}, (20, 25), (10, 12)),
        ({"shortest": 2, "longest": 2}, (1, 5000), (1, 2)),  # never less than one pixel
        ({"height": 7, "width": 9}, (100, 50), (7, 9)),
    ],
)
def test_sizes_after_resizing(read, resize, size, expected):
    """The shape of the image is kept unless both sizes are given."""
    steps = read({"resize": resize})
    assert steps.resized(*size) == expected
    assert steps.fixed == ((7, 9) if "height" in resize else None)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("", "Expecting value"),
        ([], "expected one JSON object"),
        ({"size": 224}, "'size' is unknown; known are resize, crop"),
        ({"resize": 224}, "resize is 224"),
        ({"resize": {"longest": 5}}, "resize is"),
        ({"resize": {"shortest": 0}}, "shortest is 0"),
        ({"resize": {"height": 3, "width": 2.5}}, "resize is 2.5"),
        ({"crop": 224}, "crop is 224"),
        ({"crop": [224]}, r"crop is \[224\]; expected \[height, width\]"),
        ({"crop": [True, 3]}, "crop is True"),
        ({"channels": "RGBA"}, "channels is 'RGBA'; expected one of RGB, BGR, L"),
        ({"layout": "NCHW"}, "layout is 'NCHW'"),
        ({"interpolation": "best"}, "interpolation is 'best'"),
        ({"mean": [0.5]}, "mean is .* expected 3 numbers"),
        ({"channels": "L", "std": [1, 1, 1]}, "std is .* expected 1 numbers"),
        ({"mean": [0, 0, float("nan")]}, "mean is"),
        ({"std": [1, 0, 1]}, "none may be 0"),
        ({"mean": ["a", "b", "c"]}, "could not convert"),
        ({"max_pixels": 0}, "max_pixels is 0"),
        ({"max_pixels": MAX_PIXELS + 1}, "max_pixels is 178956971; expected at most 178956970"),
    ],
)
def test_what_cannot_be_used_is_refused(read, given, named):
    """The error names the file, the key, and what was expected."""
    with pytest.raises(ModelError, match=rf"image\.json: .*{named}"):
        read(given)
