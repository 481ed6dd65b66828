"""What is right: every text alone through ONNX Runtime, without server, batch or padding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime

from demo.encoder import INPUTS, OUTPUT
from demo.traffic import Reply
from ge_backend.tensors import Array

__all__ = ["largest_difference", "nearest", "unpadded"]


def unpadded(onnx: Path, rows: Sequence[Array]) -> Array:
    """Return FP32 [rows, 384]: each row run by itself at its own length."""
    session = onnxruntime.InferenceSession(str(onnx), providers=["CPUExecutionProvider"])
    ids, mask = INPUTS
    found = [
        session.run([OUTPUT], {ids: row[np.newaxis], mask: np.ones((1, len(row)), np.int64)})[0]
        for row in rows
    ]
    return np.concatenate(found)


def largest_difference(replies: Sequence[Reply], truth: Array) -> float:
    """Return the largest absolute difference of any element; NaN if any reply has one."""
    errors = [np.abs(reply.embedding - truth[reply.index]).max() for reply in replies]
    return float(np.max(errors))


def nearest(embeddings: Array) -> tuple[Array, Array]:
    """Return, per row, the index of the most similar other row and the cosine similarity."""
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    similarity = unit @ unit.T
    np.fill_diagonal(similarity, -np.inf)
    best = similarity.argmax(axis=1)
    return best, similarity[np.arange(len(best)), best]
