"""Tensors in shared memory instead of messages, on the real server, over both protocols."""

import json
import urllib.error
import urllib.request

import grpc
import numpy as np
import pytest
from onnx import TensorProto
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from builders.graphs import (
    RAGGED,
    TABLE,
    VOCABULARY,
    WIDTH,
    non_zero,
    parameters,
    plus_one,
    token_rows,
    write_model,
)
from builders.null_models import comes_true
from builders.regions import Region, Speaker
from fakes.null_device import EXECUTORS
from ge_tools.tritonserver import TritonServer

NBYTES = 1 << 16
OUT = NBYTES // 2  # where the outputs begin; the inputs lie before
TOKENS = f"""
max_batch_size: 16
input [ {{ name: "ids" data_type: TYPE_INT64 {RAGGED} }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ -1, {WIDTH} ] }} ]
dynamic_batching {{ max_queue_delay_microseconds: 20000 }}
"""
HELD = """
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """The file that is there while the model `held` runs, and ends the run when removed."""
    return tmp_path_factory.mktemp("held") / "file"


@pytest.fixture(scope="module")
def server(triton_server, tmp_path_factory, held) -> TritonServer:
    """A server with outputs of a foretold size, of an unknown size, of bytes, and one that waits."""
    models = tmp_path_factory.mktemp("models")
    write_model(models, "tokens", TOKENS, token_rows())
    write_model(models, "found", "", non_zero())
    write_model(models, "echo", "", plus_one(TensorProto.STRING))
    tensor = {"dtype": "FP32", "dims": ["batch", "length"]}
    null = {
        "inputs": [{"name": "x", **tensor}],
        "outputs": [{"name": "y", **tensor, "compute": "echo", "of": "x"}],
        "faults": [{"on": "run", "do": "hold", "file": str(held)}],
    }
    config = HELD + parameters(device="null", warmup="off")
    write_model(models, "held", config, json.dumps(null).encode(), "model.null")
    return triton_server(models, environment=EXECUTORS)


@pytest.fixture(params=["grpc", "http"])
def speaker(request, server):
    """A client of each protocol."""
    speaker = Speaker(server, request.param)
    yield speaker
    assert speaker.registered() == []
    speaker.client.close()


@pytest.fixture
def region(speaker):
    """A region that the server knows; nothing is left of it afterwards."""
    region = Region(speaker.client, "region", NBYTES)
    yield region
    region.close()


def some_ids(seed, rows=2, length=5):
    return np.random.default_rng(seed).integers(0, VOCABULARY, (rows, length))


def check_serving(speaker):
    """See that a plain request is answered as ever."""
    ids = some_ids(9)
    answer = speaker.client.infer("tokens", [speaker.input("ids", ids)]).as_numpy("y")
    assert np.array_equal(answer, TABLE[ids])


def test_inputs_and_outputs_at_offsets_of_one_region(speaker, region):
    """The answer says shape and type; the values are where the client wanted them."""
    ids = some_ids(1)
    outputs = [speaker.output("y", (region, OUT + 64, 4096))]
    result = speaker.client.infer(
        "tokens", [speaker.input("ids", ids, (region, 128))], outputs=outputs
    )

    assert speaker.shape(result, "y") == [2, 5, WIDTH]
    assert np.array_equal(region.read(np.float32, (2, 5, WIDTH), OUT + 64), TABLE[ids])


def test_requests_of_all_lengths_share_a_region(speaker, region):
    """They are batched as ever, and each finds its own output in its own place."""
    asked = [some_ids(seed, rows=1 + seed % 3, length=1 + 3 * seed) for seed in range(12)]
    step = OUT // len(asked)
    answers = [
        speaker.begin(
            "tokens",
            [speaker.input("ids", ids, (region, step * place))],
            [speaker.output("y", (region, OUT + step * place, step))],
        )
        for place, ids in enumerate(asked)
    ]
    for place, (ids, answer) in enumerate(zip(asked, answers, strict=True)):
        shape = speaker.shape(answer(), "y")
        assert np.array_equal(region.read(np.float32, shape, OUT + step * place), TABLE[ids])


@pytest.mark.parametrize("shared", ["input", "output"])
def test_either_side_alone(speaker, region, shared):
    """An input from a region with an output in the message, and the other way round."""
    ids = some_ids(2)
    place = {"input": (region, 0)} if shared == "input" else {"output": (region, OUT, 4096)}
    result = speaker.client.infer(
        "tokens",
        [speaker.input("ids", ids, place.get("input"))],
        outputs=[speaker.output("y", place.get("output"))],
    )
    got = result.as_numpy("y") if shared == "input" else region.read(np.float32, (2, 5, WIDTH), OUT)
    assert np.array_equal(got, TABLE[ids])


def test_an_output_of_unknown_size(speaker, region):
    """A place that is large enough is asked for; the answer says how much of it is filled."""
    for values in ([0, 1, 0, 2], [3] * 50):
        x = np.array(values, np.float32)
        result = speaker.client.infer(
            "found",
            [speaker.input("x", x, (region, 0))],
            outputs=[speaker.output("y", (region, OUT, 8 * len(x)))],
        )
        shape = speaker.shape(result, "y")
        assert np.array_equal(region.read(np.int64, shape, OUT), [np.nonzero(x)[0]])


def test_bytes_in_and_out(speaker, region):
    """Strings lie there serialised, each behind its length; empty ones too."""
    words = np.array([[b"", "ü".encode(), b"long " * 50], [b"a", b"b\0c", b""]], dtype=object)
    result = speaker.client.infer(
        "echo",
        [speaker.input("x", words, (region, 8))],
        outputs=[speaker.output("y", (region, OUT, 4096))],
    )
    assert speaker.shape(result, "y") == [2, 3]
    assert np.array_equal(region.read(np.object_, (2, 3), OUT), words)


def test_status_and_unregistering(speaker):
    """The server lists what it knows; one region, or all of them, can be taken away."""
    regions = [Region(speaker.client, name, 4096) for name in ("one", "two", "three")]
    assert speaker.registered() == ["one", "three", "two"]
    with pytest.raises(InferenceServerException, match="already in manager"):
        speaker.client.register_system_shared_memory("one", regions[0].key, 4096)

    speaker.client.unregister_system_shared_memory("two")
    assert speaker.registered() == ["one", "three"]
    speaker.client.unregister_system_shared_memory()
    assert speaker.registered() == []
    with pytest.raises(InferenceServerException, match="Unable to find") as caught:
        speaker.client.infer("tokens", [speaker.input("ids", some_ids(1), (regions[0], 0))])
    assert status(caught.value) == NOT_FOUND
    for region in regions:
        region.close()  # a second time is no error


def test_a_region_in_use_stays(server, speaker, region, held):
    """Unregistering is refused while a request uses the region, or put off; that one is answered."""
    x = np.full((1, 8), 7, np.float32)
    answer = speaker.begin(
        "held", [speaker.input("x", x, (region, 0))], [speaker.output("y", (region, OUT, 64))]
    )
    assert comes_true(held.exists)
    try:
        if server.abilities.has("lasting_regions"):
            speaker.client.unregister_system_shared_memory(region.name)
        else:
            with pytest.raises(InferenceServerException, match="currently in use") as caught:
                speaker.client.unregister_system_shared_memory(region.name)
            assert status(caught.value) == INTERNAL
    finally:
        held.unlink()
    answer()
    assert np.array_equal(region.read(np.float32, (1, 8), OUT), x)
    check_serving(speaker)


INTERNAL, NOT_FOUND, INVALID = ("INTERNAL", 500), ("NOT_FOUND", 404), ("INVALID_ARGUMENT", 400)


def status(error):
    """Return the kind of error, whichever protocol tells it."""
    text = str(error.status())
    return next(
        kind for kind in (INTERNAL, NOT_FOUND, INVALID) if kind[0] in text or text == str(kind[1])
    )


# What is asked for -> (input's region, offset, bytes), (output's …), status, text
WRONG = {
    "unknown region for an input": (("none", 0, 80), None, NOT_FOUND, "Unable to find"),
    "unknown region for an output": (None, ("none", 0, 160), NOT_FOUND, "Unable to find"),
    "an input beyond the region": (("region", NBYTES - 8, 80), None, INVALID, "Invalid offset"),
    "an offset behind the region": (("region", NBYTES + 8, 80), None, INVALID, "Invalid offset"),
    "an output beyond the region": (None, ("region", NBYTES - 8, 160), INVALID, "Invalid offset"),
    "too few bytes for the shape": (("region", 0, 72), None, INVALID, "Expected 80, got 72"),
    "too many bytes for the shape": (("region", 0, 88), None, INVALID, "Expected 80, got 88"),
    "too little room for the output": (None, ("region", OUT, 152), INTERNAL, "at least 160 bytes"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_goes_wrong_is_told(speaker, region, case):
    """The status says whose fault it is, the text what to change, and the next request works."""
    source, target, kind, text = WRONG[case]
    ids = some_ids(3)
    item, output = speaker.input("ids", ids), speaker.output("y")
    if source is not None:
        name, offset, nbytes = source
        item.set_shared_memory(name, nbytes, offset)
    if target is not None:
        name, offset, nbytes = target
        output.set_shared_memory(name, nbytes, offset)
    with pytest.raises(InferenceServerException, match=text) as caught:
        speaker.client.infer("tokens", [item], outputs=[output])
    assert status(caught.value) == kind
    check_serving(speaker)


@pytest.mark.parametrize(
    ("key", "nbytes", "offset"),
    [("/ge-test-none", 64, 0), ("", NBYTES + 4096, 0), ("", NBYTES, 4096)],
    ids=["no such memory", "larger than the memory", "an offset that leaves too little"],
)
def test_what_cannot_be_registered(server, speaker, region, key, nbytes, offset):
    """The server opens the memory when it is told of it, and says so if it cannot."""
    named = not server.abilities.has("nameless_regions")
    text = "shared memory region: '/ge-test" if named else "shared memory region"
    with pytest.raises(InferenceServerException, match=text) as caught:
        speaker.client.register_system_shared_memory("other", key or region.key, nbytes, offset)
    assert status(caught.value) == INTERNAL
    assert speaker.registered() == ["region"]
    check_serving(speaker)


def test_a_bad_output_place_costs_the_neighbours_nothing(speaker, region):
    """Of requests that share a batch only the one without room for its output fails."""
    asked = [some_ids(seed, rows=1, length=4) for seed in range(6)]
    answers = [
        speaker.begin(
            "tokens",
            [speaker.input("ids", ids)],
            [speaker.output("y", (region, OUT + 1024 * place, 8 if place == 3 else 1024))],
        )
        for place, ids in enumerate(asked)
    ]
    for place, (ids, answer) in enumerate(zip(asked, answers, strict=True)):
        if place == 3:
            with pytest.raises(InferenceServerException, match="at least 64 bytes"):
                answer()
        else:
            answer()
            got = region.read(np.float32, (1, 4, WIDTH), OUT + 1024 * place)
            assert np.array_equal(got, TABLE[ids])


def ask_raw(speaker, data, **place):
    """Send a request as no client library would: any parameters, with data or without.

    Returns (status, the error's text), or (None, the output) where it was answered.
    """
    place = {f"shared_memory_{key}": value for key, value in place.items()}
    if speaker.protocol == "grpc":
        request = service_pb2.ModelInferRequest(model_name="tokens")
        tensor = request.inputs.add(name="ids", datatype="INT64", shape=[2, 5])
        for key, value in place.items():
            kind = "string_param" if isinstance(value, str) else "int64_param"
            setattr(tensor.parameters[key], kind, value)
        if data is not None:
            request.raw_input_contents.append(data.tobytes())
        with grpc.insecure_channel(speaker.url) as channel:
            call = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                service_pb2.ModelInferRequest.SerializeToString,
                service_pb2.ModelInferResponse.FromString,
            )
            try:
                raw = call(request, timeout=30).raw_output_contents[0]
            except grpc.RpcError as error:
                return error.code().name, error.details()
        return None, np.frombuffer(raw, np.float32).reshape(2, 5, WIDTH)
    tensor = {"name": "ids", "datatype": "INT64", "shape": [2, 5], "parameters": place}
    if data is not None:
        tensor["data"] = data.tolist()
    asked = urllib.request.Request(
        f"http://{speaker.url}/v2/models/tokens/infer", json.dumps({"inputs": [tensor]}).encode()
    )
    try:
        with urllib.request.urlopen(asked, timeout=30) as page:
            answer = json.load(page)["outputs"][0]["data"]
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]
    return None, np.array(answer, np.float32).reshape(2, 5, WIDTH)


def test_a_byte_size_without_a_region(speaker):
    """Without data it is refused by both protocols; with data HTTP takes the data, gRPC does not."""
    code, text = ask_raw(speaker, None, byte_size=80)
    assert code in INVALID
    assert "shared_memory_region" in text
    ids = some_ids(4)
    code, answer = ask_raw(speaker, ids, byte_size=80)
    if speaker.protocol == "grpc":
        assert code in INVALID
    else:
        assert np.array_equal(answer, TABLE[ids])
    check_serving(speaker)


def test_a_region_without_a_byte_size(speaker, region):
    """Refused: nothing else says how much of the region is meant."""
    code, _ = ask_raw(speaker, None, region=region.name)
    assert code in INVALID
    check_serving(speaker)


def test_both_data_and_a_region(speaker, region):
    """HTTP refuses it; gRPC takes the region and drops the data."""
    there, along = some_ids(5), some_ids(6)
    code, answer = ask_raw(speaker, along, region=region.name, byte_size=region.write(there))
    if speaker.protocol == "http":
        assert code in INVALID
        assert "only one of" in answer
    else:
        assert np.array_equal(answer, TABLE[there])
    check_serving(speaker)
