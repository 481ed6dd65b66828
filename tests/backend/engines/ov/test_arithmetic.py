"""What a precision is computed in, on processors with and without instructions for it."""

import logging

import numpy as np
import pytest

openvino = pytest.importorskip("openvino")
pytest.importorskip("onnx")

from builders.engine_faults import quantised  # noqa: E402
from builders.products import encoder, ids  # noqa: E402
from ge_backend.device.base import PLAIN, GraphSource  # noqa: E402
from ge_backend.device.machine.threads import Cores  # noqa: E402
from ge_backend.engines.ov import arithmetic  # noqa: E402
from ge_backend.engines.ov.arithmetic import Arithmetic, arithmetic_of, has_int8  # noqa: E402
from ge_backend.engines.ov.graph import OpenVinoGraph  # noqa: E402
from ge_backend.errors import Unsupported  # noqa: E402
from ge_backend.serving.assumptions.precision import cosine  # noqa: E402

KINDS = {True: "bf16", False: "f32"}
PRECISIONS = {True: "bf16", False: "origin"}


@pytest.fixture
def products(monkeypatch):
    """A processor that multiplies numbers of eight bits, or is taken for one."""
    monkeypatch.setattr(arithmetic, "has_int8", lambda: True)


@pytest.fixture
def load(tmp_path):
    """A function that loads a file in a precision."""
    graphs = []

    def load(content, precision):
        path = tmp_path / "model.onnx"
        path.write_bytes(content)
        source = GraphSource.of(path, precision=precision, threads=1)
        graphs.append(OpenVinoGraph(source, Cores(1)))
        return graphs[-1]

    yield load
    for graph in graphs:
        graph.close()


@pytest.mark.parametrize("bf16", [True, False])
@pytest.mark.parametrize("int8", [True, False])
def test_a_processor_that_lacks_a_precision_computes_in_the_next(monkeypatch, caplog, bf16, int8):
    """Eight bits, then BF16, then FP32; the log says so. What is in full stays so."""
    monkeypatch.setattr(arithmetic, "has_bf16", lambda: bf16)
    monkeypatch.setattr(arithmetic, "has_int8", lambda: int8)
    caplog.set_level(logging.INFO)
    assert arithmetic_of("int8", "m") == Arithmetic(kind=KINDS[bf16], compressed=int8)
    assert ("no products of 8 bits" in caplog.text) == (not int8)
    assert arithmetic_of("bf16", "m") == Arithmetic(kind=KINDS[bf16])
    assert ("no BF16" in caplog.text) == (not bf16)
    for precision in ("origin", "fp32"):
        assert arithmetic_of(precision, "m") == Arithmetic()
    assert arithmetic_of("int8", "m").instead_of("int8") == ("" if int8 else PRECISIONS[bf16])
    assert arithmetic_of("bf16", "m").instead_of("bf16") == ("" if bf16 else "origin")
    assert Arithmetic().instead_of("fp32") == ""
    assert arithmetic_of(PLAIN, "m").options["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == "0"


def test_instructions_are_read_from_the_system(monkeypatch, tmp_path):
    """Where that does not tell, there are none."""
    for flags, expected in (("fpu avx512_vnni", True), ("avx_vnni", True), ("avx512f", False)):
        cpu_info = tmp_path / "cpuinfo"
        cpu_info.write_text(f"model name : x\nflags\t\t: {flags}\n")
        monkeypatch.setattr(arithmetic, "CPU_INFO", cpu_info)
        assert has_int8() == expected
        assert bool(Arithmetic().options) == (not expected)
    cpu_info.write_text("processor : 0\nFeatures : asimd\n")  # an Arm, whose sums do not saturate
    assert not has_int8()
    assert not Arithmetic().options
    monkeypatch.setattr(arithmetic, "CPU_INFO", tmp_path / "none")
    assert not has_int8()


@pytest.mark.usefixtures("products")
def test_answers_of_eight_bits_are_near(load):
    """They are others than in full, whatever the shape."""
    full, lower = load(encoder(), "origin"), load(encoder(), "int8")
    for rows, length in ((1, 3), (4, 17)):
        expected, found = (
            graph.run(ids(rows, length), {}, exclusive=False)["y"] for graph in (full, lower)
        )
        assert cosine(expected, found) > 0.999
        assert not np.array_equal(expected, found)


@pytest.mark.usefixtures("products")
def test_a_quantised_file_is_computed_as_it_is(load, caplog):
    """It has no weights of real numbers left, and the log says so."""
    content = quantised(np.uint8(0), 0.05)
    given = {"x": np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32)}
    expected = load(content, "origin").run(given, {}, exclusive=False)
    caplog.set_level(logging.WARNING)
    found = load(content, "int8").run(given, {}, exclusive=False)
    assert "changes nothing" in caplog.text
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.usefixtures("products")
def test_weights_that_are_not_finite_name_their_file(load):
    """And what to change."""
    with pytest.raises(Unsupported, match=r"model\.onnx: weights .* not finite.*'precision'"):
        load(encoder(given=np.inf), "int8")
