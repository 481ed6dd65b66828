"""A run outside of traffic, and how far two answers are apart."""

import contextlib
import functools

import numpy as np
import pytest
from onnx import TensorProto, helper

from builders.graphs import TABLE, VOCABULARY, WIDTH, graph
from ge_backend.device.base import GraphSource
from ge_backend.errors import GraphFailed
from ge_backend.executor.client.session import Session
from ge_backend.executor.process.inline import connect_inline
from ge_backend.model.layout.layout import OutputLayout
from ge_backend.serving.assumptions.comparison import apart, run_once
from ge_backend.tensors import DATA_TYPES, float32_to_bf16

pytest.importorskip("onnxruntime")

LENGTH = 16
BUCKET = (4, LENGTH)


def test_a_run_that_is_refused(tmp_path):
    """The engine's own words."""
    ids = [("ids", TensorProto.INT64, ["batch", "length"])]
    y = [("y", TensorProto.FLOAT, ["batch", "length", WIDTH])]
    node = helper.make_node("Gather", ["table", "ids"], ["y"])
    (tmp_path / "model.onnx").write_bytes(graph([node], ids, y, [("table", TABLE)]))
    source = GraphSource.of(tmp_path / "model.onnx", threads=1)
    connect = functools.partial(connect_inline, "cpu", 0, 0)
    session = Session(connect, source, arena_bytes=1 << 16, on_restart=print)
    with contextlib.closing(session):
        within = np.full(BUCKET, VOCABULARY - 1)
        np.testing.assert_array_equal(run_once(session, {"ids": within})["y"], TABLE[within])
        with pytest.raises(GraphFailed, match="out of data bounds"):
            run_once(session, {"ids": np.full(BUCKET, VOCABULARY)})


def outputs_of(dtype):
    return [OutputLayout(name="y", dtype=DATA_TYPES[dtype], dims=(3,), axes=(-1,), names=("",))]


@pytest.mark.parametrize(
    ("dtype", "one", "other", "told"),
    [
        ("FP32", [1.0, 100.0, np.nan], [1.5, 100.0, np.nan], ""),
        ("FP32", [1.0, 100.0, 0.0], [1.0, 98.0, 0.0], "differs by 0.02 of its largest"),
        ("FP32", [np.inf, 1.0, 0.0], [-np.inf, 1.0, 0.0], "is finite in other places"),
        ("FP32", [0.0, 0.0, 0.0], [1e-9, 0.0, 0.0], ""),
        ("INT64", [1, 2, 3], [1, 2, 4], "differs in 1 of 3 elements"),
        ("BYTES", [b"a", b"b", b""], [b"a", b"b", b""], ""),
        ("BYTES", [b"a", b"b", b""], [b"a", b"c", b"d"], "differs in 2 of 3 elements"),
    ],
)
def test_how_answers_differ(dtype, one, other, told):
    """Real numbers by a part of the largest one, all else exactly."""
    kind = DATA_TYPES[dtype].numpy
    pair = [{"y": np.array([values], kind)} for values in (one, other)]
    _, found = apart(*pair, outputs_of(dtype), 1e-2)
    assert (told in found) if told else found == ""


def test_bf16_is_compared_by_its_values():
    """Its bit patterns are far apart where its values are near."""
    pair = [{"y": float32_to_bf16(np.array([[1.0, x, 0.0]]))} for x in (1e-8, -1e-8)]
    assert apart(*pair, outputs_of("BF16"), 1e-2)[1] == ""
