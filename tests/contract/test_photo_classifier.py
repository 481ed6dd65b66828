"""The image classifier of the model repository, with its preprocessing compiled in (AIPP)."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("PIL")
pytest.importorskip("torch")
pytest.importorskip("onnx")

from builders.cann import fake_cann
from builders.images import encoded
from builders.npu import Npu, run
from builders.simulated_onnx import of_photos
from ge_backend.device.base import GraphSource
from ge_backend.engines.kinds.cpu import CpuDevice

ROOT = Path(__file__).resolve().parents[2]
COUNT = 16
MAKE = f"""
from pathlib import Path
import numpy as np
from image_models import _drawings, preprocess, shape_classifier
folder = Path({{folder!r}})
preprocess(folder / "image.json")
shape_classifier(folder / "classifier" / "1" / "model.onnx")
drawings, labels = _drawings({COUNT}, np.random.default_rng(7))
np.savez(folder / "drawings.npz", drawings=drawings, labels=labels)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The two steps of the ensemble, and drawings with what they show."""
    folder = tmp_path_factory.mktemp("classifier")
    (folder / "classifier" / "1").mkdir(parents=True)
    script = MAKE.format(folder=str(folder))
    subprocess.run([sys.executable, "-c", script], cwd=ROOT / "model_repository", check=True)
    return folder


@pytest.fixture
def npu(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(fake_cann(tmp_path / "cann") / "bin"), prepend=os.pathsep)
    monkeypatch.setenv("GE_CACHE_DIR", str(tmp_path / "cache"))
    npu = Npu(tmp_path)
    yield npu
    npu.close()


def documented_aipp():
    """Return the configuration that docs/compile.md has for the classifier."""
    blocks = re.findall(r"aipp_op \{[^}]*\}", (ROOT / "docs" / "compile.md").read_text())
    (block,) = (block for block in blocks if "127.5" in block)
    return block


def steps(made, photos):
    """Return the scores that the ensemble's two steps give on the CPU."""
    cpu = CpuDevice(lanes=1)
    graphs = [
        cpu.load(GraphSource.of(made / name)) for name in ("image.json", "classifier/1/model.onnx")
    ]
    files = np.array([[encoded(photo)] for photo in photos], dtype=object)
    scores = run(graphs[1], **run(graphs[0], image=files))["scores"]
    for graph in graphs:
        graph.close()
    return scores


def test_the_classifier_takes_photos_themselves(made, npu):
    """One model instead of two, a quarter of the bytes, and the classes that both steps give."""
    path = npu.folder / "model.onnx"
    path.write_bytes(of_photos((made / "classifier" / "1" / "model.onnx").read_bytes()))
    (npu.folder / "aipp.cfg").write_text(documented_aipp())
    graph = npu.load(path, **{"atc.insert_op_conf": "aipp.cfg"})
    assert graph.signature.input("pixels").describe() == "UINT8 [batch, 32, 32, 3]"
    graph.compile([{"pixels": (rows, 32, 32, 3)} for rows in (4, COUNT)])
    with np.load(made / "drawings.npz") as file:
        drawings, labels = file["drawings"], file["labels"]
    photos = np.clip(np.rint(127.5 * (drawings.transpose(0, 2, 3, 1) + 1)), 0, 255).astype(np.uint8)
    before = npu.sim.uploaded_bytes
    scores = run(graph, pixels=photos)["scores"]
    assert npu.sim.uploaded_bytes - before == photos.nbytes
    expected = steps(made, photos)
    assert np.array_equal(scores.argmax(1), expected.argmax(1))
    assert np.allclose(scores, expected, atol=1e-5)
    assert (scores.argmax(1) == labels).mean() > 0.9
    assert len(set(labels.tolist())) == 4
