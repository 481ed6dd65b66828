"""Files as repositories and exporters leave them: behind links, with maps, or not what they seem."""

import json

import numpy as np
import onnx
import pytest
import tritonclient.grpc as grpcclient
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

from builders.graphs import plus_one, write_model
from ge_backend.errors import ServerError

X = np.ones((2, 3), np.float32)
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 9\n"
# File -> its content, and what the server's log says of it.
UNUSABLE = {
    "model.onnx": (POINTER, "model.onnx is a pointer of Git LFS"),
    "tokenizer.json": (POINTER, "tokenizer.json is a pointer of Git LFS"),
    "model.safetensors": ((10_000).to_bytes(8, "little") + b"{", "it is cut short or no"),
}
BERT = {"model_type": "bert", "architectures": ["BertModel"]}


def write_release(store, number):
    """Write a graph x -> y of weights that are all `number`, in files named after their release."""
    weights = numpy_helper.from_array(np.full((3, 2), number, np.float32), "w")
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size])
        for name, size in (("x", 3), ("y", 2))
    ]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = helper.make_model(
        helper.make_graph([node], "g", tensors[:1], tensors[1:], [weights]),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    model.ir_version = 8
    file = store / f"r{number}.onnx"
    onnx.save_model(
        model, file, save_as_external_data=True, location="model.data", size_threshold=0
    )
    (store / "model.data").rename(store / f"r{number}.data")
    return file


def scores_with_a_map():
    """Return x -> probabilities, and a map for each row beside them, as scikit-learn's are."""
    domain = "ai.onnx.ml"
    nodes = [
        helper.make_node("Identity", ["x"], ["probabilities"]),
        helper.make_node(
            "ZipMap", ["x"], ["by_class"], domain=domain, classlabels_int64s=[0, 1, 2]
        ),
    ]
    rows = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3])
        for name in ("x", "probabilities")
    ]
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.INT64, value))
    model = helper.make_model(
        helper.make_graph(
            nodes, "g", rows[:1], [rows[1], helper.make_value_info("by_class", maps)]
        ),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(domain, 3)],
    )
    model.ir_version = 8
    return model.SerializeToString()


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Models whose files are links into a store, and one with a map among its outputs."""
    models, store = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("store")
    files = {number: write_release(store, number) for number in (1, 2)}
    # The store has another release's weights under the name that the graph asks for.
    (store / "model.data").write_bytes((store / "r1.data").read_bytes())
    for name in ("linked", "graph_linked"):
        write_model(models, name, "", b"")
        version = models / name / "1"
        (version / "model.onnx").unlink()
        (version / "model.onnx").symlink_to(files[2])
    (models / "linked" / "1" / "model.data").symlink_to(store / "r2.data")
    data = (store / "r2.data").read_bytes()
    (models / "graph_linked" / "1" / "model.data").write_bytes(data)
    write_model(models, "mapped", "", scores_with_a_map())
    return models


@pytest.fixture(scope="module")
def server(models, triton_server):
    return triton_server(models)


def answer(client, model, output):
    tensor = grpcclient.InferInput("x", list(X.shape), "FP32")
    tensor.set_data_from_numpy(X)
    return client.infer(model, [tensor], client_timeout=60).as_numpy(output)


@pytest.mark.parametrize("model", ["linked", "graph_linked"])
def test_weights_beside_a_link_are_served(client, model):
    """Not those beside what it leads to, which are of another release."""
    np.testing.assert_array_equal(answer(client, model, "y"), np.full((2, 2), 6))


def test_a_classifier_of_scikit_learn_answers_with_its_tensors(client):
    """Its map for each row is left out."""
    np.testing.assert_array_equal(answer(client, "mapped", "probabilities"), X)
    assert answer(client, "mapped", "by_class") is None


def test_a_timeout_that_is_over_on_arrival_is_said_in_its_unit(client):
    """A client may mean milliseconds."""
    tensor = grpcclient.InferInput("x", list(X.shape), "FP32")
    tensor.set_data_from_numpy(X)
    with pytest.raises(InferenceServerException, match="its timeout is 1 microseconds"):
        client.infer("mapped", [tensor], timeout=1)


def test_files_that_are_not_what_they_seem_are_named(triton_server, tmp_path):
    """One line in the log for each, with what to do."""
    for file, (content, _) in UNUSABLE.items():
        folder = tmp_path / file.replace(".", "_")
        (folder / "1").mkdir(parents=True)
        (folder / "config.pbtxt").write_text('backend: "ge"\n')
        (folder / "1" / file).write_bytes(content)
        if file.endswith("safetensors"):
            (folder / "1" / "config.json").write_text(json.dumps(BERT))
    with pytest.raises(ServerError) as refused:
        triton_server(tmp_path)
    for _, told in UNUSABLE.values():
        assert told in str(refused.value)


def test_without_completion_outputs_have_to_be_declared(triton_server, tmp_path):
    """Else answers would be empty."""
    inputs = 'input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]\n'
    write_model(tmp_path, "silent", f"max_batch_size: 8\n{inputs}", plus_one(TensorProto.FLOAT))
    with pytest.raises(ServerError, match="its configuration has no output, and the server"):
        triton_server(tmp_path, arguments=("--disable-auto-complete-config",))
