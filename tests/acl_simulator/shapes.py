"""How a model's input shapes may vary: not at all, in gears, or within ranges."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

__all__ = [
    "BatchGears",
    "Dims",
    "DimsGears",
    "ImageGears",
    "Ranges",
    "Shapes",
    "Static",
    "StaticV2",
    "shapes_of",
]

Dims = tuple[int, ...]
Gear = tuple[int, ...]


@dataclass(frozen=True)
class Shapes:
    """Declared shapes by input name, -1 where a dimension varies.

    Attributes:
        mode: how the file names the kind.
        gears: values for the dimensions that vary; the model takes one more input to choose one.
        order: the inputs as `--input_shape` listed them, which gears follow; () for the model's own.
    """

    mode: ClassVar[str] = ""
    inputs: Mapping[str, Dims]
    gears: Sequence[Gear] = ()
    order: Sequence[str] = ()

    @property
    def dims(self) -> dict[str, Dims]:
        """The declared shapes."""
        return {name: tuple(dims) for name, dims in self.inputs.items()}

    @property
    def all_gears(self) -> list[Gear]:
        """The gears as tuples."""
        return [tuple(gear) for gear in self.gears]

    @property
    def largest(self) -> Gear:
        """The gear that needs the most memory."""
        return max(self.all_gears, key=self._elements, default=())

    def fill(self, gear: Gear) -> dict[str, Dims]:
        """Return the shapes of one gear; without one, the declared shapes."""
        if not gear:
            return self.dims
        values = iter(gear)
        filled = {}
        for name in self.order or self.dims:
            values = self._values(values, gear)
            filled[name] = tuple(next(values) if dim == -1 else dim for dim in self.dims[name])
        return {name: filled[name] for name in self.dims}

    def joined(self, shapes: Mapping[str, Dims]) -> Dims:
        """Return the dims of all inputs, one behind the other, as `--input_shape` listed them."""
        return sum((shapes[name] for name in self.order or self.dims), ())

    def to_json(self) -> dict[str, object]:
        """Return what `shapes_of` reads."""
        return {"mode": self.mode, **asdict(self)}

    def _values(self, left: Iterator[int], gear: Gear) -> Iterator[int]:
        """Return what the next input's dimensions are filled from: each begins anew."""
        return iter(gear)

    def _elements(self, gear: Gear) -> int:
        return sum(math.prod(dims) for dims in self.fill(gear).values())


class Static(Shapes):
    """One shape."""

    mode = "static"


class StaticV2(Shapes):
    """One shape, and operators inside whose results vary: ACL's RuntimeV2 runs it, as it does ranges.

    Source: hicann/ge api/acl/acl_model/model/model.cpp (model_num above 1, or is_unknow_model).
    """

    mode = "static_v2"


class BatchGears(Shapes):
    """`atc --dynamic_batch_size`: gears (batch,) for dimension 0 of the inputs that have -1 there."""

    mode = "batch"


class ImageGears(Shapes):
    """`atc --dynamic_image_size`: gears (height, width)."""

    mode = "hw"


class DimsGears(Shapes):
    """`atc --dynamic_dims`: a gear gives the -1 of all inputs in order."""

    mode = "dims"

    def _values(self, left: Iterator[int], gear: Gear) -> Iterator[int]:
        return left


class Ranges(Shapes):
    """`atc --input_shape "x:1~8,16"`: each dimension a number, or (least, most); most -1 is open."""

    mode = "range"

    @property
    def dims(self) -> dict[str, Dims]:
        """The declared shapes."""
        return {
            name: tuple(-1 if isinstance(dim, (tuple, list)) else dim for dim in dims)
            for name, dims in self.inputs.items()
        }

    def limits(self, name: str) -> list[list[int]]:
        """Return [least, most] for every dimension of an input."""
        return [
            list(dim) if isinstance(dim, (tuple, list)) else [dim, dim] for dim in self.inputs[name]
        ]


def shapes_of(header: Mapping[str, object]) -> Shapes:
    """Return the shapes that a file describes."""
    kinds = {
        kind.mode: kind for kind in (Static, StaticV2, BatchGears, ImageGears, DimsGears, Ranges)
    }
    return kinds[header["mode"]](
        inputs=header["inputs"], gears=header["gears"], order=header["order"]
    )
