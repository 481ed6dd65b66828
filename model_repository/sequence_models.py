"""Models with state: a running sum, and a recurrent network that watches signals.

The network is trained here, in seconds, to tell the next value of smooth signals; how wrong it was
is how odd a value is.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from onnx import TensorProto, helper
from onnx_file import save

__all__ = ["accumulator", "anomaly_detector"]

SEED = 20_240_603
HIDDEN = 16
STEPS, SIGNALS, LENGTH = 120, 64, 48


def accumulator(path: Path) -> None:
    """Write OUTPUT = INPUT + the sum of all inputs of the sequence before."""
    nodes = [
        helper.make_node("Add", ["INPUT", "sum"], ["OUTPUT"]),
        helper.make_node("Identity", ["OUTPUT"], ["next_sum"]),
    ]
    values = (TensorProto.FLOAT, ["batch", 1])
    save(path, nodes, {"INPUT": values, "sum": values}, {"OUTPUT": values, "next_sum": values}, {})


def anomaly_detector(path: Path) -> None:
    """Write one step of a GRU: how far a value is from what was expected, and what is next.

    FP32 [batch, 1] value -> FP32 [batch, 1] score; states `hidden` [batch, 16] and `expected`
    [batch, 1].
    """
    network, head = _trained()
    weights = {name: _onnx_gates(value) for name, value in network.named_parameters()}
    constants = {
        "W": weights["weight_ih_l0"][np.newaxis],
        "R": weights["weight_hh_l0"][np.newaxis],
        "B": np.concatenate([weights["bias_ih_l0"], weights["bias_hh_l0"]])[np.newaxis],
        "head": head.weight.detach().numpy().T.copy(),
        "bias": head.bias.detach().numpy().copy(),
        "first": np.array([0], np.int64),
    }
    nodes = [
        helper.make_node("Sub", ["value", "expected"], ["error"]),
        helper.make_node("Abs", ["error"], ["score"]),
        helper.make_node("Unsqueeze", ["value", "first"], ["series"]),
        helper.make_node("Unsqueeze", ["hidden", "first"], ["before"]),
        helper.make_node(
            "GRU",
            ["series", "W", "R", "B", "", "before"],
            ["", "after"],
            hidden_size=HIDDEN,
            linear_before_reset=1,
        ),
        helper.make_node("Squeeze", ["after", "first"], ["next_hidden"]),
        helper.make_node("MatMul", ["next_hidden", "head"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["next_expected"]),
    ]
    value = (TensorProto.FLOAT, ["batch", 1])
    hidden = (TensorProto.FLOAT, ["batch", HIDDEN])
    inputs = {"value": value, "hidden": hidden, "expected": value}
    outputs = {"score": value, "next_hidden": hidden, "next_expected": value}
    save(path, nodes, inputs, outputs, constants)


def _trained() -> tuple[torch.nn.GRU, torch.nn.Linear]:
    """Return a network and its head, fitted to tell the next value of sums of two sines."""
    torch.manual_seed(SEED)
    network = torch.nn.GRU(1, HIDDEN, batch_first=True)
    head = torch.nn.Linear(HIDDEN, 1)
    optimiser = torch.optim.Adam([*network.parameters(), *head.parameters()], lr=0.01)
    for _ in range(STEPS):
        signals = _signals()
        told = head(network(signals[:, :-1])[0])
        loss = torch.nn.functional.mse_loss(told, signals[:, 1:])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return network, head


def _signals() -> torch.Tensor:
    """Return FP32 [SIGNALS, LENGTH, 1]: slow sines of random phase, pace and height."""
    time = torch.arange(LENGTH).view(1, 1, LENGTH)
    pace = 0.1 + 0.3 * torch.rand(SIGNALS, 2, 1)
    phase = 6.3 * torch.rand(SIGNALS, 2, 1)
    height = 0.5 * torch.rand(SIGNALS, 2, 1)
    return (height * torch.sin(pace * time + phase)).sum(1).unsqueeze(-1)


def _onnx_gates(weights: torch.Tensor) -> np.ndarray:
    """Return a GRU's weights in ONNX's order of gates, update first; torch has reset first."""
    reset, update, new = weights.detach().numpy().reshape(3, HIDDEN, *weights.shape[1:])
    return np.concatenate([update, reset, new])
