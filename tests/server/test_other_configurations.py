"""What the server serves counts where it is not what config.pbtxt says."""

import json

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from builders.graphs import graph, parameters, write_model

X = np.array([[1, 2]], np.float32)
MANY = np.ones((40, 2), np.float32)
TENSORS = 'input [ { name: "x" %s } ] output [ { name: "y" %s } ]' % (
    ("data_type: TYPE_FP32 dims: [ -1 ]",) * 2
)


def operator(name, dims=("batch", "n")):
    """Return a graph x -> y of one operator."""
    tensors = [(tensor, TensorProto.FLOAT, dims) for tensor in ("x", "y")]
    return graph([helper.make_node(name, ["x"], ["y"])], tensors[:1], tensors[1:])


def step(model, source, target):
    return {
        "model_name": model,
        "model_version": -1,
        "input_map": {"x": source},
        "output_map": {"y": target},
    }


def steps(first, second):
    """Return the steps of an ensemble of two."""
    return {"step": [step(first, "x", "m"), step(second, "m", "y")]}


def ensemble(first, second):
    """Return its configuration, which protobuf reads without quotes around names."""
    lines = ", ".join(
        f'{{ model_name: "{model}" model_version: -1 input_map {{ key: "x" value: "{source}" }} '
        f'output_map {{ key: "y" value: "{target}" }} }}'
        for model, source, target in ((first, "x", "m"), (second, "m", "y"))
    )
    return f'platform: "ensemble" max_batch_size: 8 {TENSORS} ensemble_scheduling {{ step [ {lines} ] }}'


@pytest.fixture(scope="module")
def server(tmp_path_factory, triton_server):
    """Reads configurations of the name `edge`; models are loaded, and handed in, by requests."""
    models = tmp_path_factory.mktemp("models")
    batches = "max_batch_size: 8\n"
    for name in ("Neg", "Identity", "Exp"):
        write_model(models, name.lower(), batches, operator(name))
    write_model(models, "named", batches, operator("Exp"))
    (models / "named" / "1" / "small.onnx").write_bytes(operator("Neg"))
    write_model(models, "unbatched", "", operator("Identity"))
    for name, members in (("chain", ("neg", "exp")), ("one", ("named", "identity"))):
        (models / name / "1").mkdir(parents=True)
        (models / name / "config.pbtxt").write_text(ensemble(*members))
        write_model(models, f"{name}_fused", parameters(fuse=name), b"")
        (models / f"{name}_fused" / "1" / "model.onnx").unlink()
    for name, text in (
        ("chain", ensemble("identity", "exp")),
        ("named", f'backend: "ge"\n{batches}default_model_filename: "small.onnx"\n'),
        ("unbatched", 'backend: "ge"\nmax_batch_size: 0\n'),
    ):
        (models / name / "configs").mkdir()
        (models / name / "configs" / "edge.pbtxt").write_text(text)
    return triton_server(
        models,
        arguments=(
            "--model-control-mode=explicit",
            "--load-model=*",
            "--model-config-name=edge",
        ),
    )


def answer(client, model, x=X):
    tensor = grpcclient.InferInput("x", list(x.shape), "FP32")
    tensor.set_data_from_numpy(x)
    return client.infer(model, [tensor], client_timeout=60).as_numpy("y")


def test_a_fused_model_takes_what_a_server_reads_by_another_name(client):
    """Its ensemble's steps, and a step's file, as the host's own ensembles."""
    for name, wanted in (("chain", np.exp(X)), ("one", -X)):
        np.testing.assert_allclose(answer(client, name), wanted, rtol=1e-6)
        np.testing.assert_allclose(answer(client, f"{name}_fused"), wanted, rtol=1e-6)


def test_no_batches_that_are_said_there_are_kept(client):
    """Config.pbtxt says nothing of them."""
    np.testing.assert_array_equal(answer(client, "unbatched", MANY), MANY)


def test_no_batches_of_a_load_request_are_kept(client):
    """Also where all of the model comes along."""
    config = {"backend": "ge", "max_batch_size": 0}
    brought = {"file:1/model.onnx": operator("Neg", ("points", 2))}
    client.load_model("brought", config=json.dumps(config), files=brought)
    np.testing.assert_array_equal(answer(client, "brought", MANY), -MANY)
    config["parameters"] = {"max_graphs": {"string_value": "100"}}
    client.load_model("identity", config=json.dumps({**config, "max_batch_size": 4}))
    assert client.get_model_config("identity").config.max_batch_size == 4
    client.load_model("identity", config=json.dumps(config))
    np.testing.assert_array_equal(answer(client, "identity", MANY), MANY)
    client.load_model("identity")


def test_a_fused_model_takes_what_load_requests_have_changed(client):
    """An ensemble's steps, or a step's settings; of a step that brought its file it is refused."""
    tensor = {"data_type": "TYPE_FP32", "dims": [-1]}
    changed = {
        "platform": "ensemble",
        "max_batch_size": 8,
        "input": [{"name": "x", **tensor}],
        "output": [{"name": "y", **tensor}],
        "ensemble_scheduling": steps("identity", "neg"),
    }
    client.load_model("chain", config=json.dumps(changed))
    load_anew(client, "chain_fused")
    np.testing.assert_array_equal(answer(client, "chain"), -X)
    np.testing.assert_array_equal(answer(client, "chain_fused"), -X)
    settings = {"backend": "ge", "max_batch_size": 8, "default_model_filename": "model.onnx"}
    client.load_model("named", config=json.dumps(settings))
    load_anew(client, "one_fused")
    np.testing.assert_allclose(answer(client, "one_fused"), np.exp(X), rtol=1e-6)
    brought = {"file:1/model.onnx": operator("Neg")}
    client.load_model("named", config=json.dumps({**settings, "max_batch_size": 4}), files=brought)
    client.unload_model("one_fused")
    told = "step 'named': model 'named' is served from files that came with its load request"
    with pytest.raises(InferenceServerException, match=told):
        client.load_model("one_fused")


def test_responses_have_parameters_where_the_server_has_them(server, client):
    """Else a model that is to send some is refused, with the release that brought them."""
    config = {
        "backend": "ge",
        "max_batch_size": 8,
        "parameters": {"response_parameters": {"string_value": "on"}},
    }
    if server.abilities.has("response_parameters"):
        client.load_model("neg", config=json.dumps(config))
        tensor = grpcclient.InferInput("x", list(X.shape), "FP32")
        tensor.set_data_from_numpy(X)
        told = client.infer("neg", [tensor], client_timeout=60).get_response().parameters
        assert (told["rows"].int64_param, told["padding"].int64_param) == (1, 0)
        assert told["bucket"].string_param == "1x2"
    else:
        with pytest.raises(InferenceServerException, match=r"came with Triton 2\.55 \(25\.02\)"):
            client.load_model("neg", config=json.dumps(config))
    client.load_model("neg")
    np.testing.assert_array_equal(answer(client, "neg"), -X)


def load_anew(client, model):
    client.unload_model(model)
    client.load_model(model)
