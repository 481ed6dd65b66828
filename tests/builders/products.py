"""Small ONNX encoders whose products have weights that are worth eight bits."""

import numpy as np
from onnx import TensorProto, helper

from builders.graphs import graph

__all__ = ["INNER", "WORDS", "encoder", "ids"]

WORDS, INNER = 200, 128


def encoder(*, spoilt=False, given=None):
    """Take ids, attention_mask [batch, sequence] -> y [batch, INNER]: the mean of two layers' rows.

    With `spoilt` a weight of each channel is so large, and never used, that eight bits do not tell
    the others apart; BF16 does.
    """
    random = np.random.default_rng(3)
    table = random.normal(size=(WORDS, INNER)).astype(np.float32)
    first = (random.normal(size=(INNER, INNER)) / np.sqrt(INNER)).astype(np.float32)
    second = (random.normal(size=(INNER, INNER)) / np.sqrt(INNER)).astype(np.float32)
    if spoilt:
        table[:, 0], first[0] = 0, 60
    if given is not None:
        first[0, 0] = given
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("MatMul", ["rows", "first"], ["inner"]),
        helper.make_node("Tanh", ["inner"], ["bent"]),
        helper.make_node("MatMul", ["bent", "second"], ["told"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["mask3"]),
        helper.make_node("Mul", ["told", "mask3"], ["real"]),
        helper.make_node("ReduceSum", ["real", "one"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["mask", "one"], ["count"], keepdims=1),
        helper.make_node("Div", ["sum", "count"], ["y"]),
    ]
    constants = [("table", table), ("first", first), ("second", second)]
    return graph(
        nodes,
        [(n, TensorProto.INT64, ["batch", "sequence"]) for n in ("ids", "attention_mask")],
        [("y", TensorProto.FLOAT, ["batch", INNER])],
        [*constants, ("last", np.array([-1])), ("one", np.array([1]))],
    )


def ids(rows, length, seed=0):
    """Return inputs of rows as long as each other."""
    words = np.random.default_rng(seed).integers(0, WORDS, (rows, length))
    return {"ids": words, "attention_mask": np.ones_like(words)}
