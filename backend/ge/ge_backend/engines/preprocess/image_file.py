"""What is done with an image before a vision model sees it, read from an `image.json`.

    {"resize": {"shortest": 256}, "crop": [224, 224], "channels": "RGB", "layout": "CHW",
     "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "interpolation": "bilinear"}

resize         `{"shortest": n}` keeps the shape of the image, its shorter side becomes n; with
               `"longest": m` its longer one becomes at most m. `{"height": h, "width": w}` does
               not keep it. Left out: the image keeps its size.
crop           height and width of the middle that is kept; what an image lacks is black
channels       `RGB` (default), `BGR`, or `L` for grey
layout         `CHW` (default) or `HWC`
mean, std      per channel, for values from 0 to 1: the model sees (value - mean) / std
interpolation  `bilinear` (default), `bicubic`, `lanczos`, `box`, `hamming`, `nearest`
max_pixels     larger images are refused before they are decoded, and so are those that the
               shorter side would make larger; default 50 million, at most 178,956,970
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ge_backend.errors import ModelError

__all__ = ["MAX_PIXELS", "ImageSteps", "read_image_file"]

CHANNELS: Mapping[str, int] = {"RGB": 3, "BGR": 3, "L": 1}
LAYOUTS = ("CHW", "HWC")
INTERPOLATIONS = ("bilinear", "bicubic", "lanczos", "box", "hamming", "nearest")
RESIZES: tuple[set[str], ...] = (set(), {"shortest"}, {"shortest", "longest"}, {"height", "width"})
KEYS = ("resize", "crop", "channels", "layout", "mean", "std", "interpolation", "max_pixels")
DEFAULT_PIXELS = 50_000_000
# Source: Pillow 13, Image.py, `_decompression_bomb_check`: for all of a process, twice this is the
# most that it opens.
MAX_PIXELS = 2 * 89_478_485

Size = tuple[int, int]  # height, width


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSteps:
    """The steps, in this order: resize, crop, scale to 0 … 1, normalise, lay out.

    Attributes:
        exact: height and width to resize to, whatever the image's shape; None keeps its shape.
        shortest, longest: see the module's text; 0 where not given.
        crop: height and width of the middle that is kept; None keeps all.
        mean, std: one for each channel.
    """

    exact: Size | None
    shortest: int
    longest: int
    crop: Size | None
    channels: str
    layout: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str
    max_pixels: int

    @property
    def fixed(self) -> Size | None:
        """The height and width of every result; None where images keep sizes of their own."""
        return self.crop or self.exact

    def resized(self, height: int, width: int) -> Size:
        """Return what an image of this size is resized to, never less than one pixel.

        Rounds down, as torchvision does.
        """
        if self.exact is not None:
            return self.exact
        if not self.shortest:
            return height, width
        short, long = sorted((height, width))
        new_short, new_long = self.shortest, self.shortest * long // short
        if self.longest and new_long > self.longest:
            new_short, new_long = self.longest * new_short // new_long, self.longest
        new_short, new_long = max(new_short, 1), max(new_long, 1)
        return (new_short, new_long) if height <= width else (new_long, new_short)


def read_image_file(path: Path) -> ImageSteps:
    """Return the steps that a file states.

    Raises:
        ModelError: a key is unknown or a value cannot be used; names the file and the key.
    """
    try:
        return _steps(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(f"{path}: not a description of image preprocessing: {error}") from error


def _steps(document: Any) -> ImageSteps:
    if not isinstance(document, dict):
        raise TypeError(f"it is {document!r}; expected one JSON object")
    for key in document:
        if key not in KEYS:
            raise ValueError(f"key {key!r} is unknown; known are {', '.join(KEYS)}")
    resize = document.get("resize", {})
    if not isinstance(resize, dict) or set(resize) not in RESIZES:
        raise ValueError(
            f"resize is {resize}; expected shortest, shortest and longest, or height and width"
        )
    exact = [resize["height"], resize["width"]] if "height" in resize else None
    channels = _one_of("channels", document.get("channels", "RGB"), tuple(CHANNELS))
    count = CHANNELS[channels]
    std = _numbers("std", document.get("std", [1.0] * count), count)
    if 0.0 in std:
        raise ValueError(f"std is {list(std)}; values are divided by it, so none may be 0")
    return ImageSteps(
        exact=None if exact is None else _size("resize", exact),
        shortest=_count("shortest", resize["shortest"]) if "shortest" in resize else 0,
        longest=_count("longest", resize["longest"]) if "longest" in resize else 0,
        crop=_size("crop", document["crop"]) if "crop" in document else None,
        channels=channels,
        layout=_one_of("layout", document.get("layout", "CHW"), LAYOUTS),
        mean=_numbers("mean", document.get("mean", [0.0] * count), count),
        std=std,
        interpolation=_one_of(
            "interpolation", document.get("interpolation", "bilinear"), INTERPOLATIONS
        ),
        max_pixels=_pixels(document.get("max_pixels", DEFAULT_PIXELS)),
    )


def _count(key: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{key} is {value!r}; expected a whole number from 1 up")
    return value


def _pixels(value: Any) -> int:
    if (pixels := _count("max_pixels", value)) > MAX_PIXELS:
        raise ValueError(
            f"max_pixels is {pixels}; expected at most {MAX_PIXELS}: Pillow opens no larger image"
        )
    return pixels


def _size(key: str, value: Any) -> Size:
    if not isinstance(value, list) or len(value) != len(("height", "width")):
        raise ValueError(f"{key} is {value!r}; expected [height, width]")
    return _count(key, value[0]), _count(key, value[1])


def _numbers(key: str, values: Any, count: int) -> tuple[float, ...]:
    numbers = tuple(map(float, values))
    if len(numbers) != count or not all(map(math.isfinite, numbers)):
        raise ValueError(f"{key} is {values}; expected {count} numbers, one for each channel")
    return numbers


def _one_of(key: str, value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ValueError(f"{key} is {value!r}; expected one of {', '.join(choices)}")
    return str(value)
