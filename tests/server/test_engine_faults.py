"""Graphs that an engine is known to compute wrongly, on the real server: no answer is wrong."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as grpcclient
from onnx import helper
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from builders import engine_faults as faults
from builders.graphs import parameters, write_model
from builders.metrics import metric
from builders.null_models import comes_true

pytest.importorskip("openvino")

WAYS = {
    "default": {},
    "openvino": {"engine": "openvino"},
    "auto": {"engine": "auto"},
    "bf16": {"precision": "bf16"},
}
ENGINES = ("onnxruntime", "openvino")
CLOSE = {"default": 1e-4, "openvino": 1e-4, "auto": 1e-4, "bf16": 5e-2}
FRAMES = f"""
max_batch_size: 8
input [ {{ name: "frames" data_type: TYPE_FP32 dims: [ -1, {faults.WIDTH} ]
           allow_ragged_batch: true }} ]
output [ {{ name: "last" data_type: TYPE_FP32 dims: [ {2 * faults.SIZE} ] }} ]
dynamic_batching {{ max_queue_delay_microseconds: 20000 preferred_batch_size: [ 8 ] }}
parameters {{ key: "generate.lengths" value {{ string_value: "lengths" }} }}
parameters {{ key: "buckets.time" value {{ string_value: "8,32" }} }}
"""


def antialiased():
    """Take x [batch, 1, 8, 8] -> y: half as large, of which OpenVINO knows a coarser way."""
    return faults.model(
        [helper.make_node("Resize", ["x", "", "by"], ["y"], mode="linear", antialias=1)],
        [("x", faults.FLOAT, ["batch", 1, 8, 8])],
        [("y", faults.FLOAT, ["batch", 1, 4, 4])],
        [("by", np.array([1, 1, 0.5, 0.5], np.float32))],
    )


@pytest.fixture(scope="module")
def server(triton_server, tmp_path_factory):
    """A server with each graph by each way to choose an engine."""
    models = tmp_path_factory.mktemp("models")
    for way, how in WAYS.items():
        write_model(models, f"frames_{way}", FRAMES + parameters(**how), faults.row_lengths())
        write_model(models, f"rotary_{way}", parameters(**how), faults.rotary())
        write_model(models, f"resize_{way}", parameters(**how), antialiased())
    for engine in ENGINES:
        write_model(models, f"weighted_{engine}", parameters(engine=engine), faults.weighted())
        alone = "max_batch_size: 0\n" + parameters(engine=engine)
        write_model(models, f"weighted_alone_{engine}", alone, faults.weighted())
    for name in ("input_0", "/Cast_output_0"):
        declared = f'input [ {{ name: "{name}" data_type: TYPE_FP32 dims: [ 4 ] }} ]\n'
        model = f"ir_{len(name)}"
        write_model(models, model, f"max_batch_size: 8\n{declared}")
        faults.with_several_names(models / model / "1")
    write_model(models, "ir")
    faults.with_several_names(models / "ir" / "1")
    return triton_server(models, arguments=("--exit-on-error=false", "--strict-readiness=false"))


def infer(client, model, output, **arrays):
    """Return one output of one request."""
    inputs = []
    for name, array in arrays.items():
        item = grpcclient.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        item.set_data_from_numpy(np.ascontiguousarray(array))
        inputs.append(item)
    return client.infer(model, inputs).as_numpy(output)


def reference(content, **arrays):
    """Return what ONNX Runtime computes of one request alone."""
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return session.run(None, arrays)[0]


@pytest.mark.parametrize("way", WAYS)
def test_rows_of_unequal_lengths_answer_as_alone(client, way):
    """In a batch of eight, within buckets and beyond the largest."""
    random = np.random.default_rng(2)
    lengths = [3, 8, 5, 31, 1, 70, 17, 40] * 2
    rows = [random.standard_normal((1, n, faults.WIDTH)).astype(np.float32) for n in lengths]
    with ThreadPoolExecutor(len(rows)) as clients:
        answers = list(
            clients.map(lambda row: infer(client, f"frames_{way}", "last", frames=row), rows)
        )
    for row, answer in zip(rows, answers, strict=True):
        size = np.array([row.shape[1]], np.int32)
        expected = reference(faults.row_lengths(), frames=row, lengths=size)
        np.testing.assert_allclose(answer, expected, atol=CLOSE[way])


@pytest.mark.parametrize("way", WAYS)
def test_positions_beyond_256_are_told_apart(client, way):
    """Each row by its own, in rows as short and as long as they come."""
    for rows, length in ((1, 8), (3, 40), (1, 900)):
        positions = np.random.default_rng(length).integers(0, 1000, (rows, length))
        x = np.random.default_rng(1).standard_normal((rows, length, 64)).astype(np.float32)
        answer = infer(client, f"rotary_{way}", "y", positions=positions, x=x)
        expected = reference(faults.rotary(), positions=positions, x=x)
        lengths = np.linalg.norm(answer, axis=-1) * np.linalg.norm(expected, axis=-1)
        assert ((answer * expected).sum(-1) / lengths).min() > 0.999


@pytest.mark.parametrize("way", ["default", "auto"])
def test_what_openvino_leaves_out_another_engine_computes(server, client, way):
    """Wherever the user leaves it to us."""
    x = np.random.default_rng(1).standard_normal((2, 1, 8, 8)).astype(np.float32)
    answer = infer(client, f"resize_{way}", "y", x=x)
    np.testing.assert_allclose(answer, reference(antialiased(), x=x), atol=1e-5)
    named = {"model": f"resize_{way}", "engine": "onnxruntime"}
    assert comes_true(lambda: metric(server, "ge_engine_info", **named) == 1)


@pytest.mark.parametrize("way", ["openvino", "bf16"])
def test_it_is_refused_where_only_openvino_could(server, client, way):
    """At load, with the reason and what to set."""
    assert not client.is_model_ready(f"resize_{way}")
    index = {model.name: model.reason for model in client.get_model_repository_index().models}
    assert "OpenVINO leaves out antialias=1 of the Resize" in index[f"resize_{way}"]
    assert "'onnxruntime'" in index[f"resize_{way}"]


@pytest.mark.parametrize("model", ["weighted", "weighted_alone"])
@pytest.mark.parametrize("way", ENGINES)
def test_shapes_that_do_not_go_together_are_refused(client, model, way):
    """With both tensors' names, whatever an engine would broadcast; what does go is answered."""
    ids = np.arange(12).reshape(2, 6)
    weights = np.linspace(0, 1, 12, dtype=np.float32).reshape(2, 6)
    answer = infer(client, f"{model}_{way}", "y", ids=ids, weights=weights)
    expected = reference(faults.weighted(), ids=ids, weights=weights)
    np.testing.assert_allclose(answer, expected, atol=1e-4)
    for one, other, said in (
        (ids[:, :1], weights, r"'weights'.*'ids'"),
        (ids, weights[:, :1], r"'weights'.*'ids'"),
        # Of batches that differ Triton itself says so, where it knows of batches.
        (ids, weights[:1], r"'weights'.*'ids'|batch size does not match other inputs"),
        (ids[:1], weights, r"'weights'.*'ids'|batch size does not match other inputs"),
    ):
        with pytest.raises(InferenceServerException, match=said) as caught:
            infer(client, f"{model}_{way}", "y", ids=one, weights=other)
        assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("model", "name"), [("ir", "input_0"), ("ir_7", "input_0"), ("ir_14", "/Cast_output_0")]
)
def test_an_input_of_several_names_goes_by_the_one_that_is_declared(client, model, name):
    """By the one that its converted file had where none is."""
    assert [item.name for item in client.get_model_metadata(model).inputs] == [name]
    x = np.array([[-1, 2, -3, 4]], np.float32)
    np.testing.assert_array_equal(infer(client, model, "y", **{name: x}), np.maximum(x, 0))
