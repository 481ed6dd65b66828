"""What was measured of a graph's scratch memory, by the shapes of its inputs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from ge_backend.device.arrays import ShapesKey, shapes_key
from ge_backend.tensors import Array, Shape, Signature

__all__ = ["ScratchTable", "smaller_inputs"]

Shapes = Mapping[str, Shape]

# Measured bytes are rounded up to whole pages: nothing smaller is ever taken from the system.
PAGE = 4096
# Along each axis the largest size is measured, and these parts of it.
PARTS = (16, 4, 1)


class ScratchTable:
    """Peak scratch bytes of one run by input shapes; written at warm-up, read by every run.

    Scratch grows with every dimension, so the peak of a larger run is a bound for a smaller one.
    """

    def __init__(self) -> None:
        self._peaks: dict[ShapesKey, int] = {}

    def add(self, shapes: Shapes, peak_bytes: int) -> None:
        """Note a measured peak; 0 says that it could not be measured and is not kept."""
        if peak_bytes > 0:
            # Replaced as a whole: lanes read it meanwhile.
            self._peaks = {**self._peaks, shapes_key(shapes): -(-peak_bytes // PAGE) * PAGE}

    def bound(self, shapes: Shapes) -> int:
        """Return the least measured peak of a run at least as large; 0 if there is none."""
        key, peaks = shapes_key(shapes), self._peaks
        if key in peaks:
            return peaks[key]
        return min((peak for known, peak in peaks.items() if _covers(known, key)), default=0)


def smaller_inputs(inputs: Mapping[str, Array], signature: Signature) -> list[dict[str, Array]]:
    """Return inputs cut to parts of each named axis, in all combinations, smallest first.

    They are views; the inputs as they are are not among them. What an axis is for is not known
    here, so some may make no sense to the graph.
    """
    axes = {spec.name: spec.axes for spec in signature.inputs}
    if any(len(axes.get(name, ())) != array.ndim for name, array in inputs.items()):
        return []  # they are not the graph's, as a run will say
    sizes: dict[str, int] = {}
    for name, array in inputs.items():
        sizes |= {a: size for a, size in zip(axes[name], array.shape, strict=True) if a}
    choices = [sorted({-(-size // part) for part in PARTS}) for size in sizes.values()]
    cuts = [dict(zip(sizes, chosen, strict=True)) for chosen in itertools.product(*choices)]
    made = [
        {name: array[_corner(axes[name], cut)] for name, array in inputs.items()}
        for cut in cuts
        if cut != sizes
    ]
    return sorted(made, key=lambda one: sum(array.size for array in one.values()))


def _corner(axes: tuple[str, ...], cut: Mapping[str, int]) -> tuple[Any, ...]:
    """Return an index that is a view; without the ellipsis one value would be no array."""
    return (*[slice(cut.get(axis)) for axis in axes], ...)


def _covers(known: ShapesKey, key: ShapesKey) -> bool:
    """Whether every input of one run is at least as large in every dimension as the other's."""
    return len(known) == len(key) and all(
        name == other and len(have) == len(want) and all(map(int.__ge__, have, want))
        for (name, have), (other, want) in zip(known, key, strict=True)
    )
