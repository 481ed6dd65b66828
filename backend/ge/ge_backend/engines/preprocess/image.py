"""JPEG and PNG files in, resized and normalised tensors out, as an `image.json` says.

    image   BYTES [batch, 1]                       a whole file
    pixels  FP32 [batch, channels, height, width]  or, as the file says, channels last
    height  INT64 [batch, 1]                       only where images keep sizes of their own:
    width   INT64 [batch, 1]                       the real size of each

Images are decoded, turned upright as their EXIF orientation says, and processed by Pillow, on
several threads: it releases the GIL.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from ge_backend.device.arrays import bytes_columns
from ge_backend.device.base import ROW_ERRORS, Graph, GraphSource
from ge_backend.device.machine.threads import Cores
from ge_backend.engines.preprocess.image_file import CHANNELS, ImageSteps, read_image_file
from ge_backend.errors import InvalidRequest
from ge_backend.tensors import Array, Signature, TensorSpec, data_type

__all__ = ["ImageGraph", "eight_bits"]

FORMATS = ("JPEG", "PNG")
# What Pillow's decoders raise over broken files.
IMAGE_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
BRIGHTEST = 255.0


class ImageGraph(Graph):
    """The preprocessing of one vision model. An image that cannot be read is refused alone.

    Any shape runs, and needs none of the device's memory.
    """

    def __init__(self, source: GraphSource, cores: Cores) -> None:
        self._path = source.path
        self._steps = read_image_file(Path(source.path))
        self.signature = _signature(self._steps)
        std = BRIGHTEST * np.array(self._steps.std)
        self._factor = (1.0 / std).astype(np.float32)
        self._offset = (-np.array(self._steps.mean) / self._steps.std).astype(np.float32)
        count = source.threads or cores.count
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="image")

    def run(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], *, exclusive: bool
    ) -> dict[str, Array]:
        """Run once; see `Graph.run`."""
        del exclusive
        (files,) = bytes_columns(self._path, self.signature, inputs)
        images, reasons = zip(*self._threads.map(self._open, files), strict=True)
        sizes = np.array([image.shape[:2] for image in images], np.int64)
        pixels = self._place(len(images), sizes.max(axis=0), outputs.get("pixels"))
        rows = pixels if self._steps.layout == "HWC" else np.moveaxis(pixels, 1, -1)
        corners = [row[:height, :width] for row, (height, width) in zip(rows, sizes, strict=True)]
        list(self._threads.map(self._normalise, images, corners))
        results = {"pixels": pixels}
        if self._steps.fixed is None:
            results |= {"height": sizes[:, :1], "width": sizes[:, 1:]}
        if any(reasons):
            results[ROW_ERRORS] = np.array([reason.encode() for reason in reasons], object)
        return results

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()

    def _open(self, file: bytes) -> tuple[Array, str]:
        """Return an image as UINT8 [height, width, channels]; else an empty one, and the reason."""
        try:
            return _resized(_decoded(file, self._steps), self._steps), ""
        except InvalidRequest as error:
            why = str(error)
        except (MemoryError, OverflowError):
            why = (
                f"the image of {len(file)} bytes is too large for this machine's memory; send a "
                "smaller one"
            )
        return np.zeros((0, 0, CHANNELS[self._steps.channels]), np.uint8), why

    def _place(self, rows: int, largest: Array, given: Array | None) -> Array:
        """Return zeros for the results: the given array where it fits, else a fresh one."""
        height, width = self._steps.fixed or tuple(map(int, largest))
        spec = self.signature.outputs[0]
        shape = spec.shape({"batch": rows, "height": height, "width": width})
        if given is not None and given.shape == shape and given.dtype == spec.dtype.numpy:
            given.fill(0.0)
            return given
        return np.zeros(shape or (), spec.dtype.numpy)

    def _normalise(self, image: Array, target: Array) -> None:
        """Write a UINT8 image as the model sees it; both are [height, width, channels]."""
        np.multiply(image, self._factor, out=target)
        target += self._offset


def _decoded(file: bytes, steps: ImageSteps) -> Image.Image:
    """Return a file's image, upright and in the channels that are asked for.

    Raises:
        InvalidRequest: it is not an image that can be read, or too large.
    """
    try:
        image: Image.Image = Image.open(io.BytesIO(file), formats=FORMATS)
        _check_size(image.width, image.height, steps)
        ImageOps.exif_transpose(image, in_place=True)
        return eight_bits(image).convert("L" if steps.channels == "L" else "RGB")
    except UnidentifiedImageError as error:  # whose words name an object in memory, not the file
        raise InvalidRequest(
            f"the image of {len(file)} bytes is not a JPEG or PNG file that can be read"
        ) from error
    except IMAGE_ERRORS as error:
        raise InvalidRequest(
            f"the image of {len(file)} bytes is not a JPEG or PNG file that can be read: {error}"
        ) from error


def _check_size(width: int, height: int, steps: ImageSteps) -> None:
    """Raise for an image with too many pixels, and for one that resizing would make such."""
    most = steps.max_pixels
    if width * height > most:
        raise InvalidRequest(
            f"the image has {width} x {height} pixels; at most {most} are taken; send a smaller one"
        )
    new_height, new_width = steps.resized(height, width)
    if steps.exact is None and new_width * new_height > most:
        raise InvalidRequest(
            f"the image of {width} x {height} pixels would become {new_width} x {new_height}; at "
            f"most {most} are taken; send one that is less long and thin"
        )


def _resized(image: Image.Image, steps: ImageSteps) -> Array:
    """Return an image, resized and cropped, as UINT8 [height, width, channels]."""
    height, width = steps.resized(image.height, image.width)
    image = image.resize((width, height), Image.Resampling[steps.interpolation.upper()])
    if steps.crop is not None:
        image = image.crop(_middle(image.height, image.width, *steps.crop))
    values = np.asarray(image)
    if steps.channels == "L":
        return values[:, :, np.newaxis]
    return values[:, :, ::-1] if steps.channels == "BGR" else values


def eight_bits(image: Image.Image) -> Image.Image:
    """Return grey of 16 bits with its upper 8, as Pillow opens colours of 16; others as they are.

    Pillow's own conversion cuts values off at 255, so that nearly all become white.
    """
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))


def _middle(
    height: int, width: int, crop_height: int, crop_width: int
) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of the middle; beyond an image's border all is black.

    Source: torchvision, transforms/functional.py, `center_crop`: what is odd is cut off to the even
    side, and added behind.
    """
    top, left = (
        round((size - crop) / 2) if size > crop else -((crop - size) // 2)
        for size, crop in ((height, crop_height), (width, crop_width))
    )
    return left, top, left + crop_width, top + crop_height


def _signature(steps: ImageSteps) -> Signature:
    count = CHANNELS[steps.channels]
    sizes = steps.fixed or (-1, -1)
    names = ("", "") if steps.fixed else ("height", "width")
    dims, axes = (-1, count, *sizes), ("batch", "", *names)
    if steps.layout == "HWC":
        dims, axes = (-1, *sizes, count), ("batch", *names, "")
    outputs = [TensorSpec(name="pixels", dtype=data_type("FP32"), dims=dims, axes=axes)]
    if not steps.fixed:
        outputs += [_column("height"), _column("width")]
    return Signature(
        inputs=(
            TensorSpec(name="image", dtype=data_type("BYTES"), dims=(-1, 1), axes=("batch", "")),
        ),
        outputs=tuple(outputs),
        axis_limits=dict.fromkeys(filter(None, names), steps.longest) if steps.longest else {},
        lengths={name: name for name in names if name},
    )


def _column(name: str) -> TensorSpec:
    return TensorSpec(name=name, dtype=data_type("INT64"), dims=(-1, 1), axes=("batch", ""))
