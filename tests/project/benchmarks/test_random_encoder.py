"""Checkpoints of random weights."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnxruntime")

from benchmarks import random_encoder  # noqa: E402
from benchmarks.encoder.systems import CHECKPOINT  # noqa: E402
from benchmarks.rivals.forward import ENGINES, load_forward, pad  # noqa: E402

from ge_backend.model.files.encoder_folder import read_encoder_folder  # noqa: E402


def test_both_files_are_of_one_encoder(tmp_path, monkeypatch):
    """Of the size that was asked for, as sentence-transformers has it; the rivals' code runs it."""
    monkeypatch.setitem(random_encoder.SIZES, "bert-small", (2, 32, 2))
    assert random_encoder.write_encoder("bert-small", tmp_path) == 32
    folder = read_encoder_folder(tmp_path / CHECKPOINT)
    assert (folder.output, folder.pooling, folder.normalised) == (
        "sentence_embedding",
        "mean",
        True,
    )
    forward = load_forward("torch", tmp_path / ENGINES["torch"], 1)
    rows = [torch.arange(5, 5 + count).numpy() for count in (3, 7)]
    found = forward(*pad(rows))
    assert found.shape == (2, 32)
    assert abs((found**2).sum(1) - 1).max() < 1e-5
