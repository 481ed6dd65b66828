"""Counting real requests: rows per batch and per request, and sizes of rows on each padded axis."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ge_backend.shapes.traffic.histogram import SizeHistogram
from ge_backend.tensors import Shape

__all__ = ["REQUEST_ROWS", "Traffic"]

# The rows of each request, beside the axes; no axis is called so.
REQUEST_ROWS = "rows of a request"

# Sizes without a bucket that are remembered until they are taken.
MAX_MISSED = 64


class Traffic:
    """Histograms by axis, both of rows first; bounded memory, safe to use from several threads."""

    def __init__(self, axes: Sequence[str]) -> None:
        self._names = ("rows", REQUEST_ROWS, *axes)
        self._lock = threading.Lock()
        self._histograms = self._empty()
        self._missed: set[Shape] = set()

    def add(self, requests: Sequence[tuple[int, Shape]]) -> dict[Shape, int]:
        """Count one batch: the rows of each request, and their size on each padded axis.

        Returns:
            How many rows have which sizes.
        """
        if not requests:
            return {}
        counts: dict[tuple[int, Shape], int] = {}  # a Counter would take longer than all else here
        for request in requests:
            counts[request] = counts.get(request, 0) + 1
        rows_of: dict[Shape, int] = {}
        for (rows, sizes), count in counts.items():
            rows_of[sizes] = rows_of.get(sizes, 0) + rows * count
        with self._lock:
            of_batch, of_request, *of_axes = self._histograms.values()
            of_batch.add(sum(rows_of.values()))
            for (rows, sizes), count in counts.items():
                of_request.add(rows, count)
                for histogram, size in zip(of_axes, sizes, strict=True):
                    histogram.add(size, rows * count)
        return rows_of

    def miss(self, sizes: Shape) -> None:
        """Note sizes that no bucket covers."""
        with self._lock:
            if len(self._missed) < MAX_MISSED:
                self._missed.add(sizes)

    def take(self) -> dict[str, SizeHistogram]:
        """Return what was counted since the last call."""
        fresh = self._empty()
        with self._lock:
            taken, self._histograms = self._histograms, fresh
        return taken

    def take_missed(self) -> list[Shape]:
        """Return the sizes without a bucket since the last call, the largest first."""
        with self._lock:
            taken, self._missed = self._missed, set()
        return sorted(taken, reverse=True)

    def _empty(self) -> dict[str, SizeHistogram]:
        return {name: SizeHistogram() for name in self._names}
