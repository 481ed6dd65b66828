"""Model files of the simulator, as they are read (`models.py` writes them).

The container is ATC's: a header of 256 bytes, a table of partitions, and these. Of the partitions
there are two: the model's definition, which is ours (JSON), and its weights, as they lie on the
device. Source: hicann/ge inc/framework/common/framework_types_internal.h (ModelFileHeader,
ModelPartitionTable).
"""

import json
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from acl_simulator.codes import DATA_TYPES, Code, Format
from acl_simulator.graphs import GRAPHS, Graph
from acl_simulator.machine.address_space import align_up
from acl_simulator.refusals import Refusal
from acl_simulator.shapes import Dims, Shapes, shapes_of

__all__ = [
    "AIPP_INPUT",
    "ALIGNMENT",
    "BUNDLE_MAGIC",
    "GEAR_INPUT",
    "MAGIC",
    "MODEL_DEF",
    "NUMBERS",
    "ONNX_NAMES",
    "PARTITION",
    "TABLE",
    "WEIGHTS_DATA",
    "Om",
    "Tensor",
    "file_header",
    "read_bundle",
    "read_om",
    "size_of",
]

MAGIC = b"IMOD"
HEADER_BYTES, LENGTH_AT = 256, 184  # of the file's header, and where its length stands
TABLE, PARTITION = struct.Struct("<I4x"), struct.Struct("<i4xQQ")  # number; type, offset, size
MODEL_DEF, WEIGHTS_DATA = 0, 1
BUNDLE_MAGIC = b"SIMULATED-OM-BUNDLE\n"
GEAR_INPUT = "ascend_mbatch_shape_data"
AIPP_INPUT, AIPP_BYTES = "ascend_dynamic_aipp_data", 256
GEAR_VALUE_BYTES = 4
ONNX_NAMES = "{node}:{index}:{name}"
INT32 = 3
ALIGNMENT = 64  # of each array in weight memory, and of each input that a run keeps
NUMBERS = {name: number for number, (name, _) in DATA_TYPES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """An input or output as the model describes it.

    Attributes:
        key, name: how the graph calls it, and how the file does.
        size: bytes in the largest gear; 0 where that is not known.
    """

    key: str
    name: str
    dtype: int
    dims: Dims
    size: int
    format: int = Format.ND

    @property
    def numpy(self) -> np.dtype:
        """NumPy's type, bit patterns where it has none."""
        return DATA_TYPES[self.dtype][1]


@dataclass(frozen=True, kw_only=True)
class Om:
    """A model file, read.

    Attributes:
        name: how messages call it; the file's stem unless it says otherwise.
        soc: the chip that it is built for.
        work_bytes, weight_bytes: device memory that it needs; no work memory for RuntimeV2.
        duration_ms: how long one run takes.
        vnpu: it has only tasks that a part of a device runs, too.
        aipp_max: bytes of the largest image of a model that is told what to do with them; 0: it
            is not.
        output_names: how the file names outputs; ATC makes `node:index:name` of an ONNX output.
    """

    name: str
    soc: str
    graph: Graph
    shapes: Shapes
    work_bytes: int
    weight_bytes: int
    duration_ms: float
    output_names: str
    weights: dict[str, np.ndarray]
    vnpu: bool = False
    aipp_max: int = 0

    @property
    def is_range(self) -> bool:
        """Whether its shapes are free within ranges."""
        return self.shapes.mode == "range"

    @property
    def is_v2(self) -> bool:
        """Whether RuntimeV2 runs it, which takes work memory as it runs and has no gears."""
        return self.shapes.mode in {"range", "static_v2"}

    @cached_property
    def inputs(self) -> list[Tensor]:
        """The inputs, -1 where a dimension varies, with the one more that gears need."""
        dims, largest = self.shapes.dims, self.shapes.fill(self.largest)
        tensors = [
            self._tensor(name, name, dtype, dims[name], largest[name])
            for name, dtype in self.graph.inputs.items()
        ]
        if self.aipp_max:
            rows = largest["x"][0]
            tensors[0] = replace(
                tensors[0], dims=(dims["x"][0], -1, -1, -1), size=rows * self.aipp_max
            )
            tensors.append(
                Tensor(
                    key=AIPP_INPUT, name=AIPP_INPUT, dtype=4, dims=(AIPP_BYTES,), size=AIPP_BYTES
                )
            )
        if self.shapes.gears:
            count = len(self.largest)
            size = GEAR_VALUE_BYTES * count
            tensors.append(
                Tensor(key=GEAR_INPUT, name=GEAR_INPUT, dtype=INT32, dims=(count,), size=size)
            )
        return tensors

    @cached_property
    def outputs(self) -> list[Tensor]:
        """The outputs, in the largest gear; -1 where a dimension of a range model varies."""
        dims = self.output_dims(self.largest)
        return [
            self._tensor(key, self._output_name(at, key), dtype, dims[key], dims[key])
            for at, (key, dtype) in enumerate(self.graph.outputs.items())
        ]

    @property
    def largest(self) -> Dims:
        """The gear that runs if none is set; () without gears."""
        return self.shapes.largest

    def output_dims(self, gear: Dims) -> dict[str, Dims]:
        """Return the output shapes of a gear, by the graph's names."""
        return self.graph.dims(self.shapes.fill(gear))

    def weight_offsets(self) -> dict[str, int]:
        """Return where in the weight memory each array lies."""
        offsets, end = {}, 0
        for name, array in self.weights.items():
            offsets[name] = end
            end = align_up(end + array.nbytes, ALIGNMENT)
        return offsets

    def _output_name(self, at: int, key: str) -> str:
        node = f"{type(self.graph).__name__}_{at}"
        return self.output_names.format(node=node, index=0, at=at, name=key)

    def _tensor(self, key: str, name: str, dtype: str, dims: Dims, largest: Dims) -> Tensor:
        number = NUMBERS[dtype]
        layout = Format.NCHW if self.shapes.mode == "hw" else Format.ND
        size = size_of(number, largest)
        return Tensor(key=key, name=name, dtype=number, dims=dims, size=size, format=layout)


def size_of(dtype: int, dims: Sequence[int]) -> int:
    """Return the bytes of a tensor; 0 where a dimension is not known."""
    return 0 if -1 in dims else math.prod(dims) * DATA_TYPES[dtype][1].itemsize


def read_om(data: bytes) -> Om:
    """Return the model in a file's bytes.

    Raises:
        Refusal: it is no model file, or a damaged one.
    """
    if not data.startswith(MAGIC):
        raise Refusal(Code.INVALID_FILE, f"no model file: it begins with {data[:16]!r}")
    try:
        return _parse(data)
    except (ValueError, KeyError, struct.error) as error:
        raise Refusal(Code.GE_LOAD, f"the model file is damaged: {error}") from error


def read_bundle(data: bytes) -> list[Om]:
    """Return the models in a bundle's bytes.

    Raises:
        Refusal: it is no bundle, or a model in it is damaged.
    """
    if not data.startswith(BUNDLE_MAGIC):
        raise Refusal(Code.INVALID_FILE, f"no bundle: it begins with {data[:20]!r}")
    (count,) = struct.unpack_from("<I", data, len(BUNDLE_MAGIC))
    sizes = struct.unpack_from(f"<{count}I", data, len(BUNDLE_MAGIC) + 4)
    models, at = [], len(BUNDLE_MAGIC) + 4 + 4 * count
    for size in sizes:
        models.append(read_om(data[at : at + size]))
        at += size
    return models


def file_header(length: int) -> bytes:
    """Return the header of a file with so many bytes after it."""
    header = bytearray(HEADER_BYTES)
    header[:12] = MAGIC + struct.pack("<II", HEADER_BYTES, 0x10000000)
    struct.pack_into("<Q", header, LENGTH_AT, length)
    return bytes(header)


def _parse(data: bytes) -> Om:
    (length,) = struct.unpack_from("<Q", data, LENGTH_AT)
    if length != len(data) - HEADER_BYTES:
        raise ValueError(f"the header says {length} bytes, {len(data) - HEADER_BYTES} are there")
    (count,) = TABLE.unpack_from(data, HEADER_BYTES)
    at = HEADER_BYTES + TABLE.size
    start = at + count * PARTITION.size
    partitions = {}
    for kind, _, size in PARTITION.iter_unpack(data[at:start]):
        partitions[kind] = data[start : start + size]
        start += size
    header = json.loads(partitions[MODEL_DEF])
    image = partitions[WEIGHTS_DATA]
    if zlib.crc32(image) != header.pop("checksum"):
        raise ValueError("the weights' checksum differs")
    weights = {
        name: np.frombuffer(image, np.dtype(dtype), math.prod(shape), offset).reshape(shape)
        for name, dtype, shape, offset in header.pop("weights")
    }
    kind, parameters = header.pop("graph").values()
    shapes = shapes_of(header.pop("shapes"))
    try:
        return Om(graph=GRAPHS[kind](**parameters), shapes=shapes, weights=weights, **header)
    except TypeError as error:
        raise ValueError(f"the header does not describe a model: {error}") from error
