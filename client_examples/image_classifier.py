"""Image files in, labels out: the ensemble `image_classifier` decodes, resizes and scores.

Files are sent as they are, of any size; without any, three shapes are drawn and sent as PNG.

python client_examples/image_classifier.py --protocol http drawing.jpg photo.png
"""

from __future__ import annotations

import argparse
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import connection


def classify(triton: Any, url: str, file: bytes) -> tuple[str, float]:
    """Return the best label of an image file, and its score."""
    column = np.array([[file]], object)
    given = triton.InferInput("image", column.shape, "BYTES")
    given.set_data_from_numpy(column)
    wanted = triton.InferRequestedOutput("scores", class_count=1)
    with triton.InferenceServerClient(url) as client:
        result = client.infer("image_classifier", [given], outputs=[wanted])
    # A class is `score:index:label`.
    score, _, label = result.as_numpy("scores")[0, 0].decode().split(":", 2)
    return label, float(score)


def drawings() -> dict[str, bytes]:
    """Return PNG files by name: dark shapes on a light ground, each of another size."""
    y, x = np.mgrid[-1:1:120j, -1.2:1.2:144j]
    return {
        "a drawn circle": png(x**2 + y**2 < 0.4),
        "a drawn square": png((np.maximum(abs(x), abs(y)) < 0.6)[:, 12:-12]),
        "a drawn cross": png((np.minimum(abs(x), abs(y)) < 0.15) & (abs(x) < 0.7) & (abs(y) < 0.7)),
    }


def png(inside: npt.NDArray[np.bool_]) -> bytes:
    """Return a PNG file, without a library for it, of a shape [height, width]."""
    height, width = inside.shape
    pixels = np.where(inside[..., np.newaxis], [40, 60, 160], [240, 230, 200]).astype(np.uint8)
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(part)) + kind + part + struct.pack(">I", zlib.crc32(kind + part))
        for kind, part in parts
    )


def main(options: argparse.Namespace) -> None:
    triton = options.triton
    images = {str(path): path.read_bytes() for path in options.files} or drawings()
    for name, file in images.items():
        label, score = classify(triton, options.url, file)
        print(f"{name} ({len(file)} bytes): {label} ({score:.2f})")


if __name__ == "__main__":
    parser = connection.parser(__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="JPEG or PNG files")
    connection.run(main, parser)
