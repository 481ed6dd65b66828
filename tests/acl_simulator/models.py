"""Writing model files for tests: `write_om`, and `write_bundle` for several in one."""

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from acl_simulator.graphs import Graph
from acl_simulator.machine.address_space import align_up
from acl_simulator.om_file import (
    ALIGNMENT,
    BUNDLE_MAGIC,
    MODEL_DEF,
    NUMBERS,
    ONNX_NAMES,
    PARTITION,
    TABLE,
    WEIGHTS_DATA,
    file_header,
    size_of,
)
from acl_simulator.shapes import Shapes

__all__ = ["write_bundle", "write_om"]


def write_om(
    path: Path | str,
    graph: Graph,
    shapes: Shapes,
    *,
    soc: str = "Ascend910B3",
    work_bytes: int | None = None,
    weight_bytes: int | None = None,
    duration_ms: float = 1.0,
    name: str = "",
    output_names: str = ONNX_NAMES,
    vnpu: bool = False,
    aipp_max: int = 0,
) -> Path:
    """Write a model file and return its path.

    Args:
        path: where; the suffix is usually `.om`.
        graph: what it computes.
        shapes: how its input shapes may vary.
        soc: the chip that it is built for; others refuse it.
        work_bytes: the work memory that it declares; None: as much as it uses.
        weight_bytes: likewise for weights.
        duration_ms: virtual time of one run.
        name: how messages call it; the file's stem if empty.
        vnpu: it runs on a part of a device, too.
        aipp_max: bytes of the largest image, where it is told what to do with them.
        output_names: `{node}:{index}:{name}` as ATC names the outputs of an ONNX model,
            `{node}:{index}` or `output_{at}_{node}_{index}` as it names others.

    Raises:
        ValueError: the declared memory is less than the model uses, or the shapes are not for
            this graph.
    """
    path = Path(path)
    _check(graph, shapes)
    weights = graph.weights()
    image, placed = _image(weights)
    header = {
        "name": name or path.stem,
        "soc": soc,
        "graph": graph.to_json(),
        "shapes": shapes.to_json(),
        "work_bytes": _declared("work", work_bytes, _work_used(graph, shapes)),
        "weight_bytes": _declared("weight", weight_bytes, _weights_used(weights)),
        "duration_ms": duration_ms,
        "output_names": output_names,
        "vnpu": vnpu,
        "aipp_max": aipp_max,
        "weights": placed,
        "checksum": zlib.crc32(image),
    }
    text = json.dumps(header).encode()
    partitions = (MODEL_DEF, text), (WEIGHTS_DATA, image)
    table = TABLE.pack(len(partitions))
    offset = 0
    for kind, content in partitions:
        table += PARTITION.pack(kind, offset, len(content))
        offset += len(content)
    path.write_bytes(file_header(len(table) + offset) + table + text + image)
    return path


def write_bundle(path: Path | str, models: Sequence[Path]) -> Path:
    """Write several model files as one, and return its path."""
    files = [model.read_bytes() for model in models]
    sizes = struct.pack(f"<I{len(files)}I", len(files), *map(len, files))
    Path(path).write_bytes(BUNDLE_MAGIC + sizes + b"".join(files))
    return Path(path)


def _check(graph: Graph, shapes: Shapes) -> None:
    if list(shapes.dims) != list(graph.inputs):
        raise ValueError(f"shapes for {list(shapes.dims)}, the graph takes {list(graph.inputs)}")
    outputs = graph.dims(shapes.fill(shapes.largest))
    if shapes.mode != "range" and any(-1 in dims for dims in outputs.values()):
        raise ValueError(f"outputs {outputs}: only a range model may have such ones")


def _work_used(graph: Graph, shapes: Shapes) -> int:
    """A run keeps the inputs of the largest gear in its work memory; RuntimeV2 takes its own."""
    if shapes.mode in {"range", "static_v2"}:
        return 0
    largest = shapes.fill(shapes.largest)
    sizes = [size_of(NUMBERS[dtype], largest[name]) for name, dtype in graph.inputs.items()]
    return sum(align_up(size, ALIGNMENT) for size in sizes)


def _image(weights: Mapping[str, np.ndarray]) -> tuple[bytes, list[tuple[object, ...]]]:
    """Return weights as they lie on a device, and what lies where: name, type, shape, offset."""
    image, placed = b"", []
    for name, array in weights.items():
        placed.append((name, array.dtype.str, array.shape, len(image)))
        image += array.tobytes()
        image += bytes(align_up(len(image), ALIGNMENT) - len(image))
    return image, placed


def _weights_used(weights: Mapping[str, np.ndarray]) -> int:
    return sum(align_up(array.nbytes, ALIGNMENT) for array in weights.values())


def _declared(kind: str, declared: int | None, used: int) -> int:
    if declared is None:
        return used
    if declared < used:
        raise ValueError(f"{declared} bytes of {kind} memory are declared, {used} are used")
    return declared
