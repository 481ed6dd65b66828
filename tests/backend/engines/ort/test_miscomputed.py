"""What ONNX Runtime computes otherwise than the file says, and what becomes of it here."""

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper

from builders import engine_faults as faults
from ge_backend.device.base import GraphSource
from ge_backend.engines.kinds.cpu import CpuDevice
from ge_backend.errors import Unsupported

WIDTH, OUT, BLOCK = 128, 24, 32
GROUPS = WIDTH // BLOCK


def packed(codes, bits):
    """Return whole numbers of so many bits in bytes, the first in the lowest bits."""
    each = 8 // bits
    parts = [codes[:, at::each].astype(np.uint8) << np.uint8(bits * at) for at in range(each)]
    return np.bitwise_or.reduce(parts)


class Weights:
    """Weights of four bits or two, as the operator stores them, and as numbers."""

    def __init__(self, bits=4):
        random = np.random.default_rng(0)
        self.bits = bits
        self.codes = random.integers(0, 1 << bits, (OUT, WIDTH))
        self.zeros = random.integers(0, 1 << bits, (OUT, GROUPS))
        self.scales = random.uniform(0.05, 0.2, (OUT, GROUPS)).astype(np.float32)
        self.order = random.permutation(np.arange(WIDTH) // BLOCK).astype(np.int32)

    def model(self, zeros=None, *, ordered=True, sent=False):
        """Return a file; zero points are a weight of it, or `sent` with each request."""
        held = {
            "w": packed(self.codes, self.bits).reshape(OUT, GROUPS, -1),
            "s": self.scales,
            **({"z": zeros} if zeros is not None and not sent else {}),
            **({"g": self.order} if ordered else {}),
        }
        node = helper.make_node(
            "MatMulNBits",
            ["x", "w", "s", "" if zeros is None else "z", "g" if ordered else ""],
            ["y"],
            name="only",
            domain="com.microsoft",
            K=WIDTH,
            N=OUT,
            bits=self.bits,
            block_size=BLOCK,
        )
        given = [("x", faults.FLOAT, ["rows", WIDTH])]
        if sent:
            given.append(("z", TensorProto.UINT8, list(zeros.shape)))
        return faults.model([node], given, [("y", faults.FLOAT, ["rows", OUT])], held.items())

    def right(self, x, zeros, *, ordered=True):
        """Return what the file says."""
        order = self.order if ordered else np.arange(WIDTH) // BLOCK
        return x @ ((self.codes - zeros[:, order]) * self.scales[:, order]).astype(np.float32).T


def answer(tmp_path, content, x):
    """Return the engine's answer to x."""
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    graph = CpuDevice().load(GraphSource.of(path, engine="onnxruntime"))
    try:
        return graph.run({"x": x}, {}, exclusive=True)["y"]
    finally:
        graph.close()


@pytest.fixture
def x():
    """Return some rows."""
    return np.random.default_rng(1).standard_normal((3, WIDTH)).astype(np.float32)


@pytest.mark.parametrize("sent", [False, True])
def test_an_order_of_groups_beside_packed_zero_points_is_refused(tmp_path, x, sent):
    """The message says how to export it, for a client's zero points, too."""
    some = Weights()
    with pytest.raises(
        Unsupported, match=r"wrong numbers.*'only'.*zero points of the scales' type"
    ):
        answer(tmp_path, some.model(packed(some.zeros, 4), sent=sent), x)


def test_two_bits_in_an_order_of_groups_are_refused(tmp_path, x):
    """There the default zero points are wrong, too."""
    with pytest.raises(Unsupported, match="weights of two bits; export it with its columns"):
        answer(tmp_path, Weights(2).model(), x)


def test_no_engine_of_the_table_serves_them(tmp_path):
    """OpenVINO is wrong, too: what the first one says is told."""
    pytest.importorskip("openvino")
    some = Weights()
    path = tmp_path / "model.onnx"
    path.write_bytes(some.model(packed(some.zeros, 4)))
    with pytest.raises(Unsupported, match="ONNX Runtime gives wrong numbers"):
        CpuDevice().load(GraphSource.of(path))


@pytest.mark.parametrize("kind", ["reals", "none", "packed, no order", "two bits, no order"])
def test_what_is_right_is_served(tmp_path, x, kind):
    """The message's ways out are among it."""
    some = Weights(2 if "two" in kind else 4)
    zeros = {
        "reals": some.zeros.astype(np.float32),
        "none": None,
        "packed, no order": packed(some.zeros, 4),
        "two bits, no order": packed(some.zeros, 2),
    }[kind]
    ordered = "no order" not in kind
    got = answer(tmp_path, some.model(zeros, ordered=ordered), x)
    meant = np.full_like(some.zeros, 8) if zeros is None else some.zeros
    np.testing.assert_allclose(got, some.right(x, meant, ordered=ordered), atol=1e-4)


def test_sums_of_bytes_do_not_saturate(tmp_path):
    """ONNX Runtime by itself adds up pairs in 16 bits, on a processor without VNNI."""
    weights = np.full((WIDTH, 16), 127, np.int8)
    x_value = helper.make_tensor_value_info("x", TensorProto.UINT8, ["rows", WIDTH])
    y_value = helper.make_tensor_value_info("y", TensorProto.INT32, ["rows", 16])
    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    held = [numpy_helper.from_array(weights, "w")]
    graph = helper.make_graph([node], "g", [x_value], [y_value], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    got = answer(tmp_path, model.SerializeToString(), np.full((3, WIDTH), 255, np.uint8))
    np.testing.assert_array_equal(got, np.full((3, 16), WIDTH * 127 * 255))


def test_activations_beside_int4_weights_are_not_rounded(tmp_path, x):
    """Nothing in the file says so; ONNX Runtime by itself would, to 8 bits."""
    random = np.random.default_rng(0)
    codes, zeros = random.integers(-8, 8, (WIDTH, 16)), random.integers(-4, 4, (GROUPS, 16))
    scales = random.uniform(0.2, 1, (GROUPS, 16)).astype(np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=0, block_size=BLOCK),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    held = [
        helper.make_tensor(name, TensorProto.INT4, array.shape, array.flatten())
        for name, array in (("q", codes), ("z", zeros))
    ]
    x_value = helper.make_tensor_value_info("x", faults.FLOAT, ["rows", WIDTH])
    y_value = helper.make_tensor_value_info("y", faults.FLOAT, ["rows", 16])
    held.append(numpy_helper.from_array(scales, "s"))
    graph = helper.make_graph(nodes, "g", [x_value], [y_value], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    weights = ((codes - np.repeat(zeros, BLOCK, 0)) * np.repeat(scales, BLOCK, 0)).astype(
        np.float32
    )
    got = answer(tmp_path, model.SerializeToString(), x)
    np.testing.assert_allclose(got, x @ weights, atol=1e-3)


def pooled(*, counted, fused=False):
    """Return a quantised file: averages over 3 x 3, 2 apart, the last of them past the end."""
    how = {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1, "count_include_pad": counted}
    one = helper.make_node
    pool = [
        one("DequantizeLinear", ["q", "s", "z"], ["d"]),
        one("AveragePool", ["d"], ["p"], **how),
        one("QuantizeLinear", ["p", "s", "z"], ["r"]),
    ]
    if fused:
        given = ["q", "s", "z", "s", "z"]
        pool = [one("QLinearAveragePool", given, ["r"], domain="com.microsoft", name="only", **how)]
    return faults.model(
        [
            one("QuantizeLinear", ["x", "s", "z"], ["q"]),
            *pool,
            one("DequantizeLinear", ["r", "s", "z"], ["y"]),
        ],
        [("x", faults.FLOAT, ["batch", 1, "h", "w"])],
        [("y", faults.FLOAT, None)],
        [("s", np.float32(0.05)), ("z", np.uint8(3))],
        opset=21,
    )


@pytest.mark.parametrize("counted", [0, 1])
def test_an_average_past_the_end_is_of_what_is_there(tmp_path, counted):
    """Quantised, too: ONNX Runtime's own quantised pool divides by the whole window."""
    even = np.full((2, 1, 6, 6), 2, np.float32)
    got = answer(tmp_path, pooled(counted=counted), even)
    np.testing.assert_allclose(got, np.full((2, 1, 3, 3), 2), atol=0.06)


def test_a_file_of_such_a_pool_is_refused(tmp_path):
    """With how to quantise it, where the operator itself is in the file."""
    even = np.full((2, 1, 6, 6), 2, np.float32)
    with pytest.raises(Unsupported, match=r"QLinearAveragePool 'only'.*QuantFormat\.QDQ"):
        answer(tmp_path, pooled(counted=1, fused=True), even)
    got = answer(tmp_path, pooled(counted=0, fused=True), even)
    np.testing.assert_allclose(got, np.full((2, 1, 3, 3), 2), atol=0.06)


def layers(scales):
    """Return a quantised file of two layers with the biases of these steps, and what it says."""
    random = np.random.default_rng(0)
    weights = random.integers(-100, 100, (2, 8, 8)).astype(np.int8)
    steps = [np.float32(2e-2), np.float32(1e-3)]
    bias = random.integers(-9000, 9000, 8).astype(np.int32)
    one, at, nodes = helper.make_node, "x", []
    held = {"s": np.float32(0.05), "z": np.uint8(128), "c": bias}
    for layer, (step, scale) in enumerate(zip(steps, scales, strict=True)):
        w, name = f"w{layer}", f"c{scale}"
        held |= {w: weights[layer], w + "s": step, name + "s": np.float32(scale)}
        if name not in {made for node in nodes for made in node.output}:
            nodes.append(one("DequantizeLinear", ["c", name + "s"], [name]))
        nodes += [
            one("QuantizeLinear", [at, "s", "z"], [w + "q"]),
            one("DequantizeLinear", [w + "q", "s", "z"], [w + "d"]),
            one("DequantizeLinear", [w, w + "s"], [w + "r"]),
            one("Gemm", [w + "d", w + "r", name], [f"h{layer}"]),
        ]
        at = f"h{layer}"
    nodes += [
        one("QuantizeLinear", [at, "s", "z"], ["r"]),
        one("DequantizeLinear", ["r", "s", "z"], ["y"]),
    ]
    ends = [("x", faults.FLOAT, ["rows", 8])], [("y", faults.FLOAT, ["rows", 8])]

    def right(x):
        for w, step, scale in zip(weights, steps, scales, strict=True):
            x = np.clip(np.round(x / 0.05), -128, 127) * 0.05 @ (w * step) + bias * scale
        return np.clip(np.round(x / 0.05), -128, 127) * 0.05

    return faults.model(nodes, *ends, held.items(), opset=21), right


@pytest.mark.parametrize("scales", [(1e-3, 1e-3), (1e-3, 5e-5)])
def test_a_bias_of_two_layers_has_its_own_steps(tmp_path, scales):
    """ONNX Runtime by itself takes each layer's for it."""
    content, right = layers(scales)
    x = np.random.default_rng(1).standard_normal((5, 8)).astype(np.float32)
    np.testing.assert_allclose(answer(tmp_path, content, x), right(x), atol=0.12)


def test_zeros_around_a_picture_are_of_its_maximum(tmp_path):
    """ONNX Runtime by itself takes them for the pool's own padding, which is not."""
    content = faults.model(
        [
            helper.make_node("Pad", ["x", "ends"], ["p"]),
            helper.make_node("MaxPool", ["p"], ["y"], kernel_shape=[3, 3]),
        ],
        [("x", faults.FLOAT, ["batch", 1, "h", "w"])],
        [("y", faults.FLOAT, None)],
        [("ends", np.array([0, 0, 1, 1, 0, 0, 1, 1]))],
    )
    got = answer(tmp_path, content, np.full((2, 1, 4, 4), -1, np.float32))
    expected = np.zeros((2, 1, 4, 4), np.float32)
    expected[:, :, 1:3, 1:3] = -1
    np.testing.assert_array_equal(got, expected)


def test_a_quotient_of_whole_numbers_is_cut_before_it_is_multiplied(tmp_path):
    """ONNX Runtime by itself divides the other factor instead."""
    content = faults.model(
        [
            helper.make_node("Div", ["one", "x"], ["q"]),
            helper.make_node("Mul", ["q", "six"], ["y"]),
        ],
        [("x", faults.INT64, ["n"])],
        [("y", faults.INT64, ["n"])],
        [("one", np.array(1)), ("six", np.array(6))],
    )
    np.testing.assert_array_equal(answer(tmp_path, content, np.array([1, 2, 3])), [6, 0, 0])
