"""Weights that lie on a file are what they were, and leave memory once OpenVINO has packed them."""

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import openvino
import pytest
from openvino import Type
from openvino import opset13 as ops

from builders.language import make
from ge_backend.engines.ov.arithmetic import has_int8
from ge_backend.engines.ov.model import compile_for_cpu, shared
from ge_text.openvino.weights_file import WeightsFile

SIZE = 256
# 30 million weights in products.
LARGE = {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "initializer_range": 0.02,
}
GROWN = """
import sys
from pathlib import Path
from ge_backend.device.machine.host_memory import give_back_freed
from ge_backend.model.files.checkpoint import read_checkpoint
from ge_text.openvino.nearness import fixed_ids, log_probabilities
from ge_text.openvino.open import load_openvino

def own():
    give_back_freed()
    rollup = Path("/proc/self/smaps_rollup").read_text()
    fields = dict(line.split(":", 1) for line in rollup.splitlines() if ":" in line)
    return sum(int(fields[name].split()[0]) for name in ("Anonymous", "Pss_File")) * 1024

dtype, folder = sys.argv[1:]
for name in (folder + "/small", folder + "/large"):
    before = own()
    checkpoint = read_checkpoint(Path(name))
    ids = fixed_ids(checkpoint)
    made = load_openvino(
        checkpoint, dtype=dtype.replace("INT8", "BF16"), threads=1, compressed=dtype == "INT8"
    )
    log_probabilities(made, ids[:1])
print(sum(product.inputs * sum(product.layers.values()) for product in made.products))
print(own() - before)
"""


def graph(kind, dtype):
    """Return rows [N, SIZE] times weights of a type, and those weights as an array of bits."""
    bits = np.random.default_rng(1).normal(size=(SIZE, SIZE)).astype(np.float32)
    if kind != Type.f32:
        bits = (bits.view(np.uint32) >> 16).astype(np.uint16).view(np.int16)
    rows = ops.parameter([-1, SIZE], dtype=Type.f32)
    weights = openvino.op.Constant(shared(bits.astype(dtype), kind), shared_memory=False)
    product = ops.matmul(rows, ops.convert(weights, Type.f32), False, True)
    return openvino.Model([ops.result(product)], [rows], "product")


def compiled(model):
    return compile_for_cpu(model, precision="f32", threads=1)


@pytest.mark.parametrize(("kind", "dtype"), [(Type.f32, np.float32), (Type.bf16, np.int16)])
def test_a_graph_computes_what_it_did(tmp_path, kind, dtype):
    """Bit for bit, before its pages are dropped and after, in shapes that were not run before."""
    model = graph(kind, dtype)
    rows = np.random.default_rng(2).normal(size=(9, SIZE)).astype(np.float32)
    before = compiled(model)
    expected = {count: before([rows[:count]])[0] for count in (1, 9)}
    weights = WeightsFile(model, tmp_path)
    found = compiled(model)
    assert np.array_equal(found([rows[:1]])[0], expected[1])
    weights.drop_pages()
    assert np.array_equal(found([rows[:1]])[0], expected[1])
    assert np.array_equal(found([rows])[0], expected[9])


def test_the_file_has_no_name(tmp_path):
    """So no other process can change or shorten it, and none is left behind."""
    kept = WeightsFile(graph(Type.f32, np.float32), tmp_path)
    assert not list(tmp_path.iterdir())
    assert mapped_from(tmp_path)
    del kept
    assert not mapped_from(tmp_path)


def mapped_from(folder):
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    return [line for line in maps.splitlines() if str(folder) in line]


def test_without_room_for_a_file_weights_stay_in_memory(tmp_path, caplog):
    """The model is served all the same, and the log has the reason."""
    model = graph(Type.f32, np.float32)
    with caplog.at_level(logging.WARNING):
        weights = WeightsFile(model, tmp_path / "missing")
    assert "weights stay in memory" in caplog.text
    assert "missing" in caplog.text
    weights.drop_pages()
    assert np.isfinite(compiled(model)([np.ones((1, SIZE), np.float32)])[0]).all()


@pytest.mark.parametrize("dtype", ["FP32", "INT8"])
def test_a_served_model_has_its_weights_once(tmp_path, dtype):
    """Packed ones, and at most half as much again; what is loaded for the first time is apart."""
    if dtype == "INT8" and not has_int8():
        pytest.skip("text of eight bits is refused here")
    make(tmp_path / "small", "llama")
    make(tmp_path / "large", "llama", **LARGE)
    command = [sys.executable, "-c", GROWN, dtype, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    numbers, grown = map(int, done.stdout.split())
    size = numbers * (1 if dtype == "INT8" else 4)
    assert 0.9 * size < grown < 1.5 * size, f"{grown / size:.2f} times the weights"
