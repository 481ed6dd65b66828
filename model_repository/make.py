"""Writes the small models of this repository: `python model_repository/make.py`.

The configurations are kept in git, the model files are not: they follow from this script, and a
fixed seed makes them the same everywhere.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

sys.dont_write_bytecode = True  # Triton would take a __pycache__ here for a model

# ruff: noqa: E402 - the line above comes first
import image_models
import language_models
import numpy as np
import sequence_models
import text_models
import torch
from onnx import TensorProto, helper
from onnx_file import save

HERE = Path(__file__).resolve().parent
SEED = 20_240_601
VOCABULARY = 1_000
EMBEDDING = 16
SCORES = 4


def mean_embedding(path: Path) -> None:
    """Mean of the embeddings of the tokens whose mask is 1; padding must not count."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["vectors"]),
        helper.make_node("Cast", ["attention_mask"], ["weights"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["weights", "last"], ["column"]),
        helper.make_node("Mul", ["vectors", "column"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "sequence_axis"], ["total"], keepdims=0),
        helper.make_node("ReduceSum", ["weights", "sequence_axis"], ["count"], keepdims=1),
        helper.make_node("Div", ["total", "count"], ["mean"]),
    ]
    constants = {
        "table": _table(EMBEDDING),
        "last": np.array([-1], np.int64),
        "sequence_axis": np.array([1], np.int64),
    }
    inputs = {
        "input_ids": (TensorProto.INT64, ["batch", "sequence"]),
        "attention_mask": (TensorProto.INT64, ["batch", "sequence"]),
    }
    outputs = {"mean": (TensorProto.FLOAT, ["batch", EMBEDDING])}
    save(path, nodes, inputs, outputs, constants)


def token_scores(path: Path) -> None:
    """Four scores per token; the output is as long as the input."""
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["scores"])]
    inputs = {"input_ids": (TensorProto.INT64, ["batch", "sequence"])}
    outputs = {"scores": (TensorProto.FLOAT, ["batch", "sequence", SCORES])}
    save(path, nodes, inputs, outputs, {"table": _table(SCORES)})


def add_sub(path: Path) -> None:
    """OUTPUT0 is the sum of the inputs, OUTPUT1 their difference, in FP32."""
    _add_sub(path, TensorProto.FLOAT)


def add_sub_int32(path: Path) -> None:
    """The same in INT32."""
    _add_sub(path, TensorProto.INT32)


def echo_bytes(path: Path) -> None:
    """Strings out as they came in."""
    nodes = [helper.make_node("Identity", ["text"], ["echo"])]
    inputs = {"text": (TensorProto.STRING, ["batch", "words"])}
    outputs = {"echo": (TensorProto.STRING, ["batch", "words"])}
    save(path, nodes, inputs, outputs, {})


class LengthsSum(torch.nn.Module):
    """Sum of the first `input_lengths` values of each row, whatever the padding holds."""

    def forward(self, values: torch.Tensor, input_lengths: torch.Tensor) -> torch.Tensor:
        """Return FP32 [batch, 1] for FP32 [batch, length] and INT64 [batch]."""
        real = torch.arange(values.shape[1]) < input_lengths.unsqueeze(1)
        return torch.where(real, values, 0.0).sum(dim=1, keepdim=True)


def lengths_sum(path: Path) -> None:
    """`LengthsSum` through torch.export, with the names that torch.export drops."""
    batch = torch.export.Dim("batch", min=1, max=64)
    length = torch.export.Dim("length", min=1, max=1024)
    example = (torch.ones(2, 5), torch.tensor([5, 3]))
    program = torch.export.export(
        LengthsSum(), example, dynamic_shapes=({0: batch, 1: length}, {0: batch})
    )
    values = next(node for node in program.graph.nodes if node.name == "values")
    symbols = map(str, values.meta["val"].shape)
    names = {
        "inputs": ["values", "input_lengths"],
        "outputs": ["total"],
        "axes": dict(zip(symbols, ("batch", "length"), strict=True)),
    }
    torch.export.save(program, str(path), extra_files={"ge_names.json": json.dumps(names)})


# Model folder -> (file in its version folder, what writes it)
MODELS: Mapping[str, tuple[str, Callable[[Path], None]]] = {
    "accumulator": ("model.onnx", sequence_models.accumulator),
    "add_sub": ("model.onnx", add_sub),
    "add_sub_int32": ("model.onnx", add_sub_int32),
    "anomaly_detector": ("model.onnx", sequence_models.anomaly_detector),
    "classifier_head": ("model.onnx", text_models.classifier_head),
    "echo_bytes": ("model.onnx", echo_bytes),
    "lengths_sum": ("model.pt2", lengths_sum),
    "mean_embedding": ("model.onnx", mean_embedding),
    "pair_tokenizer": ("tokenizer.json", text_models.tokenizer),
    "pooling": ("model.onnx", text_models.pooling),
    "preprocess": ("image.json", image_models.preprocess),
    "ranker_head": ("model.onnx", text_models.ranker_head),
    "shape_classifier": ("model.onnx", image_models.shape_classifier),
    "text_encoder": ("model.onnx", text_models.text_encoder),
    "tiny_writer": ("config.json", language_models.tiny_writer),
    "token_scores": ("model.onnx", token_scores),
    "tokenizer": ("tokenizer.json", text_models.tokenizer),
}
# Models without a file: their version folder is empty.
ENSEMBLES = (
    "image_classifier",
    "text_classifier",
    "text_classifier_fused",
    "text_embedding",
    "text_ranker",
)
# The host takes labels from a model's own folder: a fused ensemble needs copies of its steps'.
LABELS = {"text_classifier_fused": "classifier_head"}


def make(into: Path) -> None:
    """Write every model to `into/<model>/1`, and its configuration where `into` is elsewhere."""
    torch.set_num_threads(1)  # what is trained comes out the same on any number of cores
    for name in (*MODELS, *ENSEMBLES):
        version = into / name / "1"
        version.mkdir(parents=True, exist_ok=True)
        if name in MODELS:
            filename, write = MODELS[name]
            write(version / filename)
        for given in HERE.joinpath(name).glob("*.*") if into != HERE else ():
            shutil.copyfile(given, into / name / given.name)
    for name, step in LABELS.items():
        shutil.copyfile(HERE / step / "labels.txt", into / name / f"{step}.labels.txt")


def _add_sub(path: Path, dtype: int) -> None:
    nodes = [
        helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
        helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
    ]
    values = (dtype, ["batch", 16])
    inputs = {"INPUT0": values, "INPUT1": values}
    outputs = {"OUTPUT0": values, "OUTPUT1": values}
    save(path, nodes, inputs, outputs, {})


def _table(columns: int) -> np.ndarray:
    values = np.random.default_rng(SEED).standard_normal((VOCABULARY, columns))
    return values.astype(np.float32)


def main(arguments: list[str]) -> None:
    """Write the models here or into another folder."""
    parser = argparse.ArgumentParser(description="Write the small models of this repository.")
    parser.add_argument("--into", type=Path, default=HERE, help="a folder to fill (default: here)")
    into = parser.parse_args(arguments).into.resolve()
    make(into)
    print(f"{len(MODELS)} models and {len(ENSEMBLES)} ensembles in {into}")


if __name__ == "__main__":
    main(sys.argv[1:])
