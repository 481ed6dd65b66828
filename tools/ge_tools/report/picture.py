"""A picture that an option `--plot FILE` asks for, drawn by matplotlib without a display."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ge_backend.errors import ConfigError, DeviceUnavailable

__all__ = ["picture"]

DPI = 150
WIDTH = 12


@contextmanager
def picture(path: Path, height: float) -> Iterator[Any]:
    """Give a matplotlib `Figure` of this height in inches to draw on; at the end it is a PNG file.

    Raises:
        ConfigError: the file cannot be written.
        DeviceUnavailable: matplotlib is missing.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DeviceUnavailable(
            f"--plot needs matplotlib ({error}); pip install 'triton-ge-backend[tools]'"
        ) from error
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    yield figure
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise ConfigError(f"the plot cannot be written to {path}: {error}") from error
