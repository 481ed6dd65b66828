"""Sessions share scratch memory, and what they leave is given back."""

import subprocess
import sys

import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper  # noqa: E402

from ge_backend.engines.ort.arena import _IDENTITY, release_unused, use_shared_arena  # noqa: E402

# In a process of its own, where nothing else takes and gives memory.
PROGRAM = """
import gc, sys
import numpy as np, onnx, onnxruntime
from onnx import TensorProto, helper, numpy_helper
from ge_backend.engines.ort.arena import release_unused, use_shared_arena

MIB = 1 << 20
SIDE = 1024  # 4 MiB a tensor

def model():
    weights = np.random.default_rng(1).random((SIDE, SIDE), dtype=np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"])]
    nodes += [helper.make_node("Exp", [a], [b]) for a, b in ("ab", "bc")]
    nodes += [helper.make_node("Sum", ["a", "b", "c"], ["y"])]
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [tensor("x", 1, ["n", SIDE])], [tensor("y", 1, ["n", SIDE])],
        [numpy_helper.from_array(weights, "w")],
    )
    made = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    return made.SerializeToString()

def resident():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(l for l in lines if l.startswith("VmRSS")).split()[1]) * 1024

def session(shared):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    if shared:
        use_shared_arena(options)
    return onnxruntime.InferenceSession(MODEL, options, providers=["CPUExecutionProvider"])

def scratch(shared, count):
    sessions = [session(shared) for _ in range(count)]
    x = np.ones((SIDE, SIDE), np.float32)
    sessions[0].run(None, {"x": x})
    before = resident()
    for one in sessions[1:]:
        one.run(None, {"x": x})
    return sessions, resident() - before

MODEL = model()
del onnx
release_unused()
begun = resident()
sessions = [session(True)]
before = resident()
for rows in range(16, SIDE + 1, 16):
    sessions[0].run(None, {"x": np.ones((rows, SIDE), np.float32)})
climbed = resident() - before
sessions, shared = scratch(True, 9)
full = resident()
sessions.clear()
gc.collect()
release_unused()
left = resident() - begun
own = scratch(False, 9)[1]
print(shared // MIB, own // MIB, (full - begun) // MIB, left // MIB, climbed // MIB)
"""


@pytest.fixture(scope="module")
def figures():
    """MiB: what eight further sessions took, shared and alone; at most in all, left at the end.

    And what one took whose runs became longer and longer.
    """
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    names = ("shared", "own", "full", "left", "climbed")
    return dict(zip(names, map(int, done.stdout.split()), strict=True))


def test_further_sessions_take_no_further_scratch(figures):
    """Each run needs three tensors of 4 MiB at once; alone each session keeps its own."""
    assert figures["own"] >= 8 * 12
    assert figures["shared"] <= 8


def test_the_order_of_sizes_hardly_matters(figures):
    """Sixty-four sizes, each above the one before, take not much more than the largest's 12 MiB."""
    assert figures["climbed"] <= 40


def test_what_closed_sessions_held_is_given_back(figures):
    """Nine times 4 MiB of weights, packed and not, and the scratch."""
    assert figures["full"] >= 9 * 4
    assert figures["left"] <= figures["full"] / 3


def test_the_built_in_model_is_what_it_says():
    """The bytes are the identity of one float, as the onnx library writes it."""
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "",
        [tensor("x", TensorProto.FLOAT, [1])],
        [tensor("y", TensorProto.FLOAT, [1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    assert onnx.load_from_string(_IDENTITY) == model


def test_sessions_that_stay_run_on(tmp_path):
    """Giving back takes nothing from them, before their first run or after."""
    options = onnxruntime.SessionOptions()
    use_shared_arena(options)
    session = onnxruntime.InferenceSession(_IDENTITY, options, providers=["CPUExecutionProvider"])
    for _ in range(2):
        release_unused()
        assert session.run(None, {"x": [2.0]})[0].tolist() == [2.0]
