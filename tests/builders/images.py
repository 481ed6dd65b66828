"""Image files for tests, made by code."""

import io

import numpy as np
from PIL import Image


def encoded(pixels, kind="PNG", **options):
    """Return the file of UINT8 [height, width, 3] or [height, width]."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def gradient(height, width, seed=0):
    """Return a smooth UINT8 image; JPEG changes it little."""
    generator = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    waves = [np.sin(generator.uniform(0, 6, 1) + 3 * x + c * y) for c in range(3)]
    return (127.5 + 120 * np.stack(waves, axis=-1)).astype(np.uint8)
