"""The steps of the image ensemble: preprocessing, and a small network that tells shapes.

The network is trained for a few seconds on drawings of circles, squares, triangles and crosses of
any colour and size.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from onnx import TensorProto, helper
from onnx_file import save
from torch import nn

__all__ = ["preprocess", "shape_classifier"]

SEED = 20_240_603
SIDE = 32
DRAWINGS, STEPS, BATCH = 1_000, 120, 50
# How often the trained network may be wrong about drawings that it has not seen.
MAX_WRONG = 0.05

LABELS = (Path(__file__).parent / "shape_classifier" / "labels.txt").read_text().split()
IMAGE = {
    # The shorter side becomes 32 pixels, then the middle is kept.
    "resize": {"shortest": SIDE},
    "crop": [SIDE, SIDE],
    "mean": [0.5, 0.5, 0.5],
    "std": [0.5, 0.5, 0.5],
}


def preprocess(path: Path) -> None:
    """Write what is done with an image: for this model file no more than a description."""
    path.write_text(json.dumps(IMAGE, indent=2) + "\n")


def shape_classifier(path: Path) -> None:
    """Write the trained network: FP32 [batch, 3, 32, 32] in, one score for each label out."""
    weights = {name: value.numpy() for name, value in _trained().state_dict().items()}
    halved = {"pads": [1] * 4, "strides": [2, 2]}
    nodes = [
        helper.make_node("Conv", ["pixels", "0.weight", "0.bias"], ["a"], **halved),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "2.weight", "2.bias"], ["c"], **halved),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("Conv", ["d", "4.weight", "4.bias"], ["e"], pads=[1] * 4),
        helper.make_node("Relu", ["e"], ["f"]),
        helper.make_node("GlobalMaxPool", ["f"], ["g"]),
        helper.make_node("Flatten", ["g"], ["h"]),
        helper.make_node("Gemm", ["h", "8.weight", "8.bias"], ["i"], transB=1),
        helper.make_node("Softmax", ["i"], ["scores"], axis=1),
    ]
    inputs = {"pixels": (TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])}
    outputs = {"scores": (TensorProto.FLOAT, ["batch", len(LABELS)])}
    save(path, nodes, inputs, outputs, weights)


def _trained() -> nn.Sequential:
    """Return the network, trained.

    Raises:
        ValueError: it is wrong about drawings that it has not seen too often.
    """
    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # beside other busy processes several threads wait for each other
    network = nn.Sequential(
        nn.Conv2d(3, 12, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(12, 24, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(24, 48, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(48, len(LABELS)),
    )
    generator = np.random.default_rng(SEED)
    images, labels = _drawings(DRAWINGS, generator)
    optimiser = torch.optim.Adam(network.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=2e-2, total_steps=STEPS)
    for _ in range(STEPS):
        chosen = torch.from_numpy(generator.choice(DRAWINGS, BATCH, replace=False))
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(images[chosen]), labels[chosen]).backward()
        optimiser.step()
        schedule.step()
    with torch.inference_mode():
        images, labels = _drawings(DRAWINGS // 4, generator)
        wrong = float((network(images).argmax(1) != labels).float().mean())
    if wrong > MAX_WRONG:
        raise ValueError(f"the network is wrong about {wrong:.1%} of new drawings")
    return network


def _drawings(count: int, generator: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images FP32 [count, 3, 32, 32] as preprocessing makes them, and their labels.

    Each has a shape on a ground of another colour: one of the two is darker in each channel.
    """
    labels = generator.integers(0, len(LABELS), count)
    radius = generator.uniform(0.2, 0.42, (count, 1, 1))
    x, y = generator.uniform(radius, 1 - radius, (2, count, 1, 1))
    fine = 2 * SIDE  # so that edges are smooth after halving
    down, right = np.mgrid[0:fine, 0:fine] / fine
    places = (right - x) / radius, (down - y) / radius
    shapes = [inside(*places) for inside in map(INSIDE.get, LABELS)]
    covered = np.choose(labels[:, np.newaxis, np.newaxis], shapes)
    share = covered.reshape(count, 1, SIDE, 2, SIDE, 2).mean(axis=(3, 5))
    ground, ink = generator.uniform(0, 0.35, (2, count, 3, 1, 1))
    lighter = generator.permuted(np.stack([ground, ink + 0.65]), axis=0)
    images = lighter[0] + share * (lighter[1] - lighter[0])
    noisy = images + generator.normal(0, 0.02, images.shape)
    return torch.from_numpy((2 * noisy - 1).astype(np.float32)), torch.from_numpy(labels)


# Where a shape is that reaches from -1 to 1, y downwards.
INSIDE = {
    "circle": lambda x, y: x**2 + y**2 <= 1,
    "square": lambda x, y: np.maximum(abs(x), abs(y)) <= 0.9,
    "triangle": lambda x, y: (y <= 0.9) & (abs(x) <= (y + 1) / 1.9),
    "cross": lambda x, y: (np.minimum(abs(x), abs(y)) <= 0.25) & (np.maximum(abs(x), abs(y)) <= 1),
}
