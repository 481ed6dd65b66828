"""Opening sessions of ONNX Runtime, and what they say of a file."""

import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper  # noqa: E402

from builders.graphs import graph, masked_mean  # noqa: E402
from ge_backend.engines.ort import session as onnx_session  # noqa: E402
from ge_backend.engines.ort.session import (  # noqa: E402
    open_session,
    read_signature,
    signature_of,
)
from ge_backend.errors import DeviceUnavailable, ModelError  # noqa: E402


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a model and returns its path as a string."""

    def write(content):
        path = tmp_path / "model.onnx"
        path.write_bytes(content)
        return str(path)

    return write


def test_the_signature_of_a_file(written):
    """Names, types and axes, whether or not the file is opened to be run."""
    path = written(masked_mean())
    signature = read_signature(path)
    assert [(spec.name, spec.describe()) for spec in signature.inputs] == [
        ("ids", "INT64 [batch, sequence]"),
        ("attention_mask", "INT64 [batch, sequence]"),
    ]
    assert [spec.describe() for spec in signature.outputs] == ["FP32 [batch, 4]"]
    assert signature_of(open_session(path, 1, spin=False), path) == signature


def test_outputs_whose_shape_the_file_leaves_out(written):
    """They are inferred, with the names of the axes: that is why a session is asked."""
    model = onnx.load_model_from_string(masked_mean())
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert read_signature(written(model.SerializeToString())).outputs[0].describe() == (
        "FP32 [batch, 4]"
    )


def test_a_type_that_the_host_does_not_carry(written):
    """The message lists those that it does."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    y = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, ["n"])
    node = helper.make_node("SequenceConstruct", ["x"], ["y"])
    model = helper.make_model(
        helper.make_graph([node], "g", [x], [y]), opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ir_version = 8
    with pytest.raises(ModelError, match=r"no output is a tensor: 'y' \(seq.*zipmap=False"):
        read_signature(written(model.SerializeToString()))


def test_outputs_that_are_no_tensors_are_left_out_beside_others(written, caplog):
    """As a classifier's of scikit-learn: a map for each row, which the log names."""
    nodes = [
        helper.make_node("Identity", ["x"], ["label"]),
        helper.make_node(
            "ZipMap", ["x"], ["by_class"], domain="ai.onnx.ml", classlabels_int64s=[0, 1]
        ),
    ]
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in ("x", "label")
    ]
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    rows = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.INT64, value))
    model = helper.make_model(
        helper.make_graph(
            nodes, "g", tensors[:1], [helper.make_value_info("by_class", rows), tensors[1]]
        ),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)],
    )
    model.ir_version = 8
    signature = read_signature(written(model.SerializeToString()))
    assert [spec.name for spec in signature.outputs] == ["label"]
    assert "left out 'by_class' (seq(map(int64" in caplog.text
    assert "zipmap=False" in caplog.text


@pytest.mark.parametrize("content", [b"", b"not a model"])
def test_a_file_that_is_no_model(written, content):
    """The engine's reason, in one line."""
    with pytest.raises(ModelError, match="ONNX Runtime cannot load it") as caught:
        open_session(written(content), 1, spin=True)
    assert "\n" not in str(caught.value)


def test_a_model_with_an_operator_that_is_not_known(written):
    """It is not loaded, which other engines might have done."""
    node = helper.make_node("Unheard", ["x"], ["y"], domain="elsewhere")
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy"]
    built = helper.make_graph([node], "g", tensors[:1], tensors[1:])
    model = helper.make_model(built, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    with pytest.raises(ModelError, match="cannot load it"):
        read_signature(written(model.SerializeToString()))


def test_a_provider_that_this_build_lacks_is_refused(written):
    """ONNX Runtime itself would compute on the CPU."""
    with pytest.raises(DeviceUnavailable, match=r"needs CUDAExecutionProvider; .*has only .*CPU"):
        open_session(written(masked_mean()), 1, ("CUDAExecutionProvider", {}), spin=False)


def test_a_provider_that_does_not_load_is_refused(written, monkeypatch):
    """ONNX Runtime says so only in its log, and opens the session on the CPU."""
    opened = onnx_session.onnxruntime.InferenceSession

    def fall_back(path, options, providers, **_):
        return opened(path, options, providers=["CPUExecutionProvider"])

    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnx_session.onnxruntime, "get_available_providers", lambda: providers)
    monkeypatch.setattr(onnx_session.onnxruntime, "InferenceSession", fall_back)
    with pytest.raises(DeviceUnavailable, match="fell back to CPUExecutionProvider"):
        open_session(written(masked_mean()), 1, ("CUDAExecutionProvider", {}), spin=False)


def test_a_provider_that_does_not_start_is_refused_for_its_own_reason(written, monkeypatch):
    """ONNX Runtime's Python would print it, and open the session on the CPU."""

    class Session(onnx_session.onnxruntime.InferenceSession):
        def _create_inference_session(self, providers, *rest):
            self._fallback_providers = ["CPUExecutionProvider"]
            if providers != self._fallback_providers:
                raise RuntimeError("CUDA_PATH is set but CUDA wasnt able to be loaded")
            super()._create_inference_session(providers, *rest)

    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnx_session.onnxruntime, "get_available_providers", lambda: providers)
    monkeypatch.setattr(onnx_session.onnxruntime, "InferenceSession", Session)
    message = "needs CUDAExecutionProvider, which does not start: CUDA_PATH is set"
    with pytest.raises(DeviceUnavailable, match=message):
        open_session(written(masked_mean()), 1, ("CUDAExecutionProvider", {}), spin=False)


@pytest.mark.parametrize("dims", [None, [], [1]])
def test_an_input_of_any_rank_is_refused_and_a_scalar_is_not(written, dims):
    """ONNX Runtime says the same of both; only the file knows."""
    kind = TensorProto.FLOAT
    nodes = [helper.make_node("Add", ["x", "k"], ["y"])]
    given, told = [("x", kind, ["batch"]), ("k", kind, dims or [])], [("y", kind, ["batch"])]
    model = onnx.load_from_string(graph(nodes, given, told))
    if dims is None:
        model.graph.input[1].type.tensor_type.ClearField("shape")
    path = written(model.SerializeToString())
    if dims is None:
        with pytest.raises(ModelError, match="input 'k' has any number of dimensions; export it"):
            read_signature(path)
        return
    assert read_signature(path).input("k").dims == tuple(dims)
