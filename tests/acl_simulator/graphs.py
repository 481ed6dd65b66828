"""The small graphs that models here compute, in NumPy.

A graph is a frozen value. Its weights are given to `compute`, because a running model reads them
from device memory.
"""

import base64
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from acl_simulator.shapes import Dims

__all__ = [
    "GRAPHS",
    "Accumulate",
    "Affine",
    "ChannelMeans",
    "Echo",
    "Encoder",
    "Graph",
    "Kept",
    "MatMul",
    "OnnxPhotos",
    "PixelMeans",
    "Sums",
    "TokenRows",
    "TopK",
]

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Graph:
    """One input `x`, one output `y` of the same type and shape, no weights: kinds override that.

    Attributes:
        dtype: Triton's name for the type of what it computes with.
    """

    dtype: str = "FP32"

    @property
    def inputs(self) -> dict[str, str]:
        """Types by input name."""
        return {"x": self.dtype}

    @property
    def outputs(self) -> dict[str, str]:
        """Types by output name."""
        return {"y": self.dtype}

    def dims(self, inputs: Mapping[str, Dims]) -> dict[str, Dims]:
        """Return the output shapes for input shapes; -1 stays -1, and is what only a run tells."""
        return {"y": inputs["x"]}

    def weights(self) -> dict[str, np.ndarray]:
        """Return the weights by name."""
        return {}

    def compute(self, inputs: Arrays, weights: Arrays) -> dict[str, np.ndarray]:
        """Return the outputs by name."""
        raise NotImplementedError

    def expected(self, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Return what a model of this graph ought to answer."""
        return self.compute(inputs, self.weights())

    def to_json(self) -> dict[str, Any]:
        """Return what `GRAPHS` builds it from."""
        return {"kind": type(self).__name__, "parameters": asdict(self)}


@dataclass(frozen=True)
class Echo(Graph):
    """y = x, for every type."""

    def compute(self, inputs: Arrays, weights: Arrays) -> dict[str, np.ndarray]:
        return {"y": inputs["x"].copy()}


@dataclass(frozen=True)
class Affine(Graph):
    """y = a * x + b."""

    a: float = 2.0
    b: float = 1.0

    def weights(self) -> dict[str, np.ndarray]:
        return {"a": np.array([self.a], np.float64), "b": np.array([self.b], np.float64)}

    def compute(self, inputs: Arrays, weights: Arrays) -> dict[str, np.ndarray]:
        x = inputs["x"]
        return {"y": (weights["a"] * x + weights["b"]).astype(x.dtype)}


@dataclass(frozen=True)
class Sums(Graph):
    """y = x summed over the last axis."""

    def dims(self, inputs: Mapping[str, Dims]) -> dict[str, Dims]:
        return {"y": inputs["x"][:-1]}

    def compute(self, inputs: Arrays, weights: Arrays) -> dict[str, np.ndarray]:
        x = inputs["x"]
        return {"y": x.sum(axis=-1, dtype=x.dtype)}


@dataclass(frozen=True)
class Kept(Graph):
    """x [n] -> y: what is not zero. Only the run tells how many: for range models."""

    def dims(self, inputs: Mapping[str, Dims]) -> dict[str, Dims]:
        return {"y": (-1,)}

    def compute(self, inputs: Arrays, weights: Arrays) -> dict[str, np.ndarray]:
        return {"y": inputs["x"][inputs["x"] != 0]}


@dataclass(frozen=True)
class MatMul(Graph):
    """x [..., rows] -> y [..., columns], by a matrix drawn from `seed`."""

    rows: int = 8
    columns: int = 4
    seed: int = 1

    def dims(self, inputs: Mapping[str, Dims]) -> dict[str, Dims]:
        return {"y": (*inputs["x"][:-1], self.columns)}

    def weights(self) -> dict[str, np.ndarray]:
        return {"w": _normal(self.seed, self.rows, self.columns)}

    def compute(self, inputs: Arrays, weights: Arrays) -> dict[str, np.ndarray]:
        return {"y": (inputs["x"] @ weights["w"]).astype(inputs["x"].dtype)}


@dataclass(frozen=True)
class TopK(Graph):
    """x [..., n] -> values, indices [..., count]: the largest of each row, and where they are.

    Attributes:
        indices: their type: INT64 in ONNX, INT32 in what ATC makes of it.
    """

    count: int = 3
    indices: str = "INT64"

    @property
    def outputs(self) -> dict[str, str]:
        return {"values": self.dtype, "indices": self.indices}

    def dims(self, inputs: Mapping[str, Dims]) -> dict[str, Dims]:
        return dict.fromkeys(self.outputs, (*inputs["x"][:-1], self.count))

    def compute(self, inputs: Arrays, weights: Arrays) -> dict[str, np.ndarray]:
        x = inputs["x"]
        indices = np.argsort(-x, axis=-1, kind="stable")[..., : self.count]
        values = np.take_along_axis(x, indices, axis=-1)
        return {"values": values, "indices": indices.astype(self.indices.lower())}


@dataclass(frozen=True)
class TokenRows(Graph):
    """input_ids [batch, sequence] -> y [batch, sequence, width]: rows of a table."""

    dtype: str = "INT64"
    vocabulary: int = 100
    width: int = 4
    seed: int = 1

    @property
    def inputs(self) -> dict[str, str]:
        return {"input_ids": self.dtype}

    @property
    def outputs(self) -> dict[str, str]:
        return {"y": "FP32"}

    def dims(self, inputs: Mapping[str, Dims]) -> dict[str, Dims]:
        return {"y": (*inputs["input_ids"], self.width)}

    def weights(self) -> dict[str, np.ndarray]:
        return {"table": _normal(self.seed, self.vocabulary, self.width)}

    def compute(self, inputs: Arrays, weights: Arrays) -> dict[str, np.ndarray]:
        return {"y": _gather(weights["table"], inputs["input_ids"])}


@dataclass(frozen=True)
class Encoder(Graph):
    """A transformer's encoder in small: input_ids, attention_mask [batch, sequence] -> y [batch, width].

    Embedding, one head of masked attention, the mean of the real tokens. A row's result does not
    depend on its padding or on the other rows, to the last bit. Ids outside the vocabulary fail,
    in padding too.
    """

    dtype: str = "INT64"
    vocabulary: int = 100
    width: int = 8
    seed: int = 1

    @property
    def inputs(self) -> dict[str, str]:
        return {"input_ids": self.dtype, "attention_mask": self.dtype}

    @property
    def outputs(self) -> dict[str, str]:
        return {"y": "FP32"}

    def dims(self, inputs: Mapping[str, Dims]) -> dict[str, Dims]:
        return {"y": (inputs["input_ids"][0], self.width)}

    def weights(self) -> dict[str, np.ndarray]:
        square = self.width, self.width
        return {
            "table": _normal(self.seed, self.vocabulary, self.width),
            "query": _normal(self.seed + 1, *square),
            "key": _normal(self.seed + 2, *square),
            "value": _normal(self.seed + 3, *square),
        }

    def compute(self, inputs: Arrays, weights: Arrays) -> dict[str, np.ndarray]:
        rows = _gather(weights["table"], inputs["input_ids"])
        masks = inputs["attention_mask"] != 0
        y = np.zeros((len(rows), self.width), np.float32)
        for at, (row, mask) in enumerate(zip(rows, masks, strict=True)):
            if mask.any():
                y[at] = self._attend(row[mask], weights).mean(axis=0)
        return {"y": y}

    def _attend(self, tokens: np.ndarray, weights: Arrays) -> np.ndarray:
        scores = (tokens @ weights["query"]) @ (tokens @ weights["key"]).T
        scores = np.exp(scores / np.float32(np.sqrt(self.width)))
        scores /= scores.sum(axis=1, keepdims=True)
        return scores @ (tokens @ weights["value"])


@dataclass(frozen=True)
class ChannelMeans(Graph):
    """An image classifier in small: x [batch, 3, height, width] -> y [batch, 3], each channel's mean."""

    def dims(self, inputs: Mapping[str, Dims]) -> dict[str, Dims]:
        return {"y": inputs["x"][:2]}

    def compute(self, inputs: Arrays, weights: Arrays) -> dict[str, np.ndarray]:
        return {"y": inputs["x"].mean(axis=(2, 3), dtype=np.float32)}


@dataclass(frozen=True)
class PixelMeans(Graph):
    """The same with AIPP compiled in: x UINT8 [batch, height, width, 3], of which (x - mean) * scale."""

    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    scale: tuple[float, ...] = (1.0, 1.0, 1.0)

    @property
    def inputs(self) -> dict[str, str]:
        return {"x": "UINT8"}

    @property
    def outputs(self) -> dict[str, str]:
        return {"y": "FP32"}

    def dims(self, inputs: Mapping[str, Dims]) -> dict[str, Dims]:
        return {"y": (inputs["x"][0], inputs["x"][3])}

    def compute(self, inputs: Arrays, weights: Arrays) -> dict[str, np.ndarray]:
        x = (inputs["x"].astype(np.float32) - np.float32(self.mean)) * np.float32(self.scale)
        return {"y": x.mean(axis=(1, 2), dtype=np.float32)}


@dataclass(frozen=True)
class OnnxPhotos(Graph):
    """A whole ONNX model with one input, FP32 [batch, channels, height, width], by onnx's evaluator.

    The file is its one weight. With `scale` AIPP is compiled in: the input is UINT8
    [batch, height, width, channels], of which (x - mean) * scale, in FP16 as the device makes it.

    Attributes:
        file: in base64.
    """

    file: str = ""
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()

    @property
    def inputs(self) -> dict[str, str]:
        (name,) = (tensor.name for tensor in self._parsed.graph.input)
        return {name: "UINT8" if self.scale else "FP32"}

    @property
    def outputs(self) -> dict[str, str]:
        return {tensor.name: "FP32" for tensor in self._parsed.graph.output}

    def dims(self, inputs: Mapping[str, Dims]) -> dict[str, Dims]:
        ((rows, *_),) = inputs.values()
        return {
            tensor.name: (rows, *(dim.dim_value for dim in tensor.type.tensor_type.shape.dim[1:]))
            for tensor in self._parsed.graph.output
        }

    def weights(self) -> dict[str, np.ndarray]:
        return {"file": np.frombuffer(base64.b64decode(self.file), np.uint8)}

    def compute(self, inputs: Arrays, weights: Arrays) -> dict[str, np.ndarray]:
        import onnx
        from onnx.reference import ReferenceEvaluator

        ((name, x),) = inputs.items()
        if self.scale:
            x = (x.astype(np.float32) - np.float32(self.mean)) * np.float16(self.scale)
            x = x.astype(np.float16).astype(np.float32).transpose(0, 3, 1, 2)
        model = ReferenceEvaluator(onnx.load_from_string(weights["file"].tobytes()))
        return dict(zip(self.outputs, model.run(None, {name: x}), strict=True))

    @property
    def _parsed(self) -> Any:
        import onnx

        return onnx.load_from_string(base64.b64decode(self.file))


@dataclass(frozen=True)
class Accumulate(Graph):
    """One step of a sequence: y and h_next are h + x [batch, width], n_next is n + 1 [batch, 1]."""

    @property
    def inputs(self) -> dict[str, str]:
        return dict.fromkeys(("x", "h", "n"), self.dtype)

    @property
    def outputs(self) -> dict[str, str]:
        return dict.fromkeys(("y", "h_next", "n_next"), self.dtype)

    def dims(self, inputs: Mapping[str, Dims]) -> dict[str, Dims]:
        return {"y": inputs["x"], "h_next": inputs["h"], "n_next": inputs["n"]}

    def compute(self, inputs: Arrays, weights: Arrays) -> dict[str, np.ndarray]:
        total = inputs["h"] + inputs["x"]
        return {
            "y": total,
            "h_next": total.copy(),
            "n_next": inputs["n"] + inputs["n"].dtype.type(1),
        }


def _normal(seed: int, rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, columns), scale=0.5).astype(np.float32)


def _gather(table: np.ndarray, ids: np.ndarray) -> np.ndarray:
    if ids.size and not 0 <= ids.min() <= ids.max() < len(table):
        raise IndexError(f"an id outside 0..{len(table) - 1}: {ids.min()} or {ids.max()}")
    return table[ids]


GRAPHS = {
    g.__name__: g
    for g in (
        Echo,
        Affine,
        ChannelMeans,
        Sums,
        TopK,
        Kept,
        MatMul,
        OnnxPhotos,
        PixelMeans,
        TokenRows,
        Encoder,
        Accumulate,
    )
}
