"""A real encoder, quantised by the tools that people use: computed as it is, or refused."""

from __future__ import annotations

import io
import logging
import subprocess
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from builders.environments import NotHere, installed
from builders.graphs import parameters, write_model

pytest.importorskip("openvino")
onnx = pytest.importorskip("onnx")
quantization = pytest.importorskip("onnxruntime.quantization")
encoder = pytest.importorskip("demo.encoder")

from ge_backend.device.base import GraphSource, open_device  # noqa: E402
from ge_backend.engines.ov.arithmetic import has_int8  # noqa: E402
from ge_backend.errors import Unsupported  # noqa: E402
from ge_backend.serving.assumptions.precision import cosine  # noqa: E402

pytestmark = [
    pytest.mark.skipif(not has_int8(), reason="nothing is computed in eight bits here"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(600),
]

CACHE = Path(encoder.__file__).resolve().parents[1] / ".cache" / "encoder"
NNCF = ("nncf==3.4.0", "openvino==2026.4.1", "onnx==1.23.2")
# Its two ways, in that environment: weights alone, and activations, too.
BY_NNCF = """
import sys, numpy as np, nncf, openvino
given, folder = sys.argv[1:]
read = openvino.Core().read_model
random = np.random.default_rng(0)
rows = [random.integers(1000, 20000, (1, length)) for length in (8, 24, 64, 100)]
texts = nncf.Dataset([{"input_ids": ids, "attention_mask": np.ones_like(ids)} for ids in rows])
how = {"model_type": nncf.ModelType.TRANSFORMER, "subset_size": len(rows)}
for name, made in {
    "nncf_weights": nncf.compress_weights(read(given), mode=nncf.CompressWeightsMode.INT8_ASYM),
    "nncf_whole": nncf.quantize(read(given), texts, **how),
}.items():
    openvino.save_model(made, f"{folder}/{name}.xml", compress_to_fp16=False)
"""
# The least cosine with answers in full. What takes ranges of activations from a few rows of
# made-up ids, as here, keeps little.
LEAST = {
    "dynamic.onnx": 0.97,
    "products.onnx": 0.8,
    "nncf_weights.xml": 0.997,
    "nncf_whole.xml": 0.95,
}
IDS = np.random.default_rng(1).integers(1000, 20000, (3, 40))


class Rows(quantization.CalibrationDataReader):
    """Rows of made-up ids, the last two of each padding."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self._rows = iter([random.integers(1000, 20000, (1, length)) for length in (8, 24, 64)])

    def get_next(self):
        """Return inputs of one row; None at the end."""
        ids = next(self._rows, None)
        if ids is None:
            return None
        mask = np.ones_like(ids)
        mask[:, -2:] = 0
        return {"input_ids": ids, "attention_mask": mask}


@pytest.fixture(scope="module")
def full() -> Path:
    """The encoder's file in FP32."""
    return encoder.prepare(CACHE, Console(file=io.StringIO())).onnx


@pytest.fixture(scope="module")
def files(full, tmp_path_factory) -> Path:
    """A folder with what the tools make of it."""
    folder = tmp_path_factory.mktemp("quantised")
    try:
        python = installed(NNCF, "nncf")
    except NotHere as missing:
        pytest.skip(str(missing))
    subprocess.run([python, "-c", BY_NNCF, full, folder], check=True, capture_output=True)
    quantization.quantize_dynamic(full, folder / "dynamic.onnx", per_channel=True)
    kinds = {"op_types_to_quantize": ["MatMul"]}
    quantization.quantize_static(full, folder / "products.onnx", Rows(), **kinds)
    quantization.quantize_static(full, folder / "whole.onnx", Rows())
    return folder


def answer(file, precision):
    """Return the embeddings of three rows, as OpenVINO computes them."""
    source = GraphSource.of(file, engine="openvino", precision=precision, threads=1)
    graph = open_device("cpu").load(source)
    try:
        feeds = {"input_ids": IDS, "attention_mask": np.ones_like(IDS)}
        return graph.run(feeds, {}, exclusive=False)[graph.signature.outputs[0].name]
    finally:
        graph.close()


def test_a_file_in_full_gets_eight_bits(full):
    """They are nearer than what most tools make of it."""
    found = cosine(answer(full, "origin"), answer(full, "int8"))
    assert 0.997 < found < 0.99999


@pytest.mark.parametrize("name", LEAST)
def test_a_quantised_file_is_computed_as_it_is(full, files, caplog, name):
    """Near what it says in full; `precision: int8` says that it changes nothing, and does not."""
    plain = answer(files / name, "origin")
    assert LEAST[name] < cosine(answer(full, "origin"), plain) < 0.9999
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(answer(files / name, "int8"), plain)
    assert "precision 'int8' changes nothing: no product has weights of real" in caplog.text


def test_a_mask_that_is_quantised_is_refused_for_openvino(files, tmp_path):
    """Of -3.4e38, as `quantize_static` writes it by default where it has seen padding.

    Without `precision` ONNX Runtime computes the file.
    """
    open_offline = pytest.importorskip("ge_tools.model.offline").open_offline
    held = onnx.load(files / "whole.onnx").graph.initializer
    assert any(
        np.max(onnx.numpy_helper.to_array(each)) > 1e36 for each in held if each.data_type == 1
    )
    for name, how in (("plain", ""), ("int8", parameters(precision="int8"))):
        content = (files / "whole.onnx").read_bytes()
        write_model(tmp_path, name, "max_batch_size: 8\n" + how, content)
    with open_offline(tmp_path / "plain", cache_dir=tmp_path / "cache") as opened:
        assert opened.session.engine == "onnxruntime"
        assert not [each for each in opened.verdicts if not each.holds]
    with (
        pytest.raises(Unsupported, match=r"as far apart as those of a mask.*onnxruntime"),
        open_offline(tmp_path / "int8", cache_dir=tmp_path / "cache"),
    ):
        pass
