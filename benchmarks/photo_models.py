"""What `bench_ensembles` serves and sends: photo-sized JPEG files, preprocessing, a network."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from ge_backend.tensors import Array

__all__ = ["ENSEMBLE", "NETWORK", "PREPROCESS", "photos", "write_repository"]

ENSEMBLE, NETWORK, PREPROCESS = "photo_classifier", "photo_network", "photo_preprocess"
SIDE, CLASSES = 224, 100
HEIGHT, WIDTH, QUALITY = 480, 640, 90
IMAGE = {
    "resize": {"shortest": 256},
    "crop": [SIDE, SIDE],
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
}
BACKEND = 'backend: "ge"\ninstance_group [ { count: 1 kind: KIND_CPU } ]\n'
STEPS = f"""\
platform: "ensemble"
max_batch_size: 32
input [ {{ name: "image" data_type: TYPE_STRING dims: [ 1 ] }} ]
output [ {{ name: "scores" data_type: TYPE_FP32 dims: [ {CLASSES} ] }} ]
ensemble_scheduling {{
  step [
    {{
      model_name: "{PREPROCESS}" model_version: -1
      input_map {{ key: "image" value: "image" }}
      output_map {{ key: "pixels" value: "pixels" }}
    }},
    {{
      model_name: "{NETWORK}" model_version: -1
      input_map {{ key: "pixels" value: "pixels" }}
      output_map {{ key: "scores" value: "scores" }}
    }}
  ]
}}
"""


def photos(count: int) -> list[bytes]:
    """Return JPEG files about as hard to compress as photos: soft shapes, some grain."""
    generator = np.random.default_rng(0)
    files: list[bytes] = []
    for _ in range(count):
        coarse = generator.integers(0, 256, (24, 32, 3)).astype(np.uint8)
        soft = Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        grain = generator.normal(0, 4, (HEIGHT, WIDTH, 1))
        pixels = np.clip(np.asarray(soft) + grain, 0, 255).astype(np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=QUALITY)
        files.append(buffer.getvalue())
    return files


def write_repository(root: Path) -> None:
    """Write the ensemble and its two steps to `root`."""
    for name, config in ((PREPROCESS, BACKEND), (NETWORK, BACKEND), (ENSEMBLE, STEPS)):
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(config)
    (root / PREPROCESS / "1" / "image.json").write_text(json.dumps(IMAGE))
    onnx.save(_network(), str(root / NETWORK / "1" / "model.onnx"))


def _network() -> onnx.ModelProto:
    """Return a small convolutional network with random weights, FP32 [batch, 3, 224, 224] in."""
    generator = np.random.default_rng(1)
    widths = (3, 16, 32, 64, 128)
    constants: dict[str, Array] = {}
    nodes: list[onnx.NodeProto] = []
    tensor = "pixels"
    for at, (taken, given) in enumerate(itertools.pairwise(widths)):
        constants[f"w{at}"] = generator.normal(0, (9 * taken) ** -0.5, (given, taken, 3, 3))
        conv = helper.make_node(
            "Conv", [tensor, f"w{at}"], [f"c{at}"], pads=[1] * 4, strides=[2, 2]
        )
        nodes += [conv, helper.make_node("Relu", [f"c{at}"], [f"r{at}"])]
        tensor = f"r{at}"
    constants["head"] = generator.normal(0, widths[-1] ** -0.5, (widths[-1], CLASSES))
    nodes += [
        helper.make_node("GlobalAveragePool", [tensor], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "head"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["scores"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        NETWORK,
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", CLASSES])],
        [numpy_helper.from_array(a.astype(np.float32), name) for name, a in constants.items()],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
