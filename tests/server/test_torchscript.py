"""TorchScript on the real server by the conventions of Triton's PyTorch backend."""

import io
import threading
from typing import List  # noqa: UP035 - TorchScript reads it

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from builders.graphs import write_model

torch = pytest.importorskip("torch")

PAIR = """
max_batch_size: 4
input [ { name: "%s" data_type: TYPE_FP32 dims: [ 2 ] },
        { name: "%s" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "%s" data_type: %s dims: [ 2 ] },
         { name: "%s" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""
FLAT = """
max_batch_size: 8
input [ { name: "values" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]
output [ { name: "doubled" data_type: TYPE_FP32 dims: [ -1 ] },
         { name: "total" data_type: TYPE_FP32 dims: [ 1 ] } ]
batch_input [
  {
    kind: BATCH_ELEMENT_COUNT target_name: "counts" data_type: TYPE_FP32 source_input: "values"
  }
]
batch_output [
  { target_name: "doubled" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "values" }
]
dynamic_batching { max_queue_delay_microseconds: 200000 preferred_batch_size: [ 3 ] }
"""
COUNTER = """
max_batch_size: 2
input [ { name: "INPUT__0" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT__0" data_type: TYPE_INT32 dims: [ 1 ] },
         { name: "OUTPUT_STATE__1" data_type: TYPE_INT32 dims: [ 1 ] } ]
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  control_input [
    {
      name: "START__2"
      control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ]
    },
    {
      name: "READY__3"
      control [ { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } ]
    }
  ]
  state [
    {
      input_name: "INPUT_STATE__1" output_name: "OUTPUT_STATE__1"
      data_type: TYPE_INT32 dims: [ 1 ]
    }
  ]
}
"""
TEXTS = """
max_batch_size: 0
input [ { name: "texts" data_type: TYPE_STRING dims: [ -1 ] } ]
output [ { name: "OUTPUT__0" data_type: TYPE_STRING dims: [ -1 ] } ]
"""
# Names of two inputs and two outputs, the output's type, and what of the reason says why not.
REFUSED = {
    "beyond": (("a", "b", "Y__1", "TYPE_FP32", "Y__2"), "output Y__2 in the model configuration"),
    "another_type": (
        ("a", "b", "Y__0", "TYPE_INT64", "Y__1"),
        "configuration expects datatype TYPE_INT64 for output 'Y__0', model provides float32",
    ),
}
SERVED = {
    "unordered": (
        ("X__1", "X__0", "Y__1", "TYPE_FP32", "Y__0"),
        ("X__0", "X__1"),
        ("Y__0", "Y__1"),
    ),
    "arguments": (("b", "a", "Y__0", "TYPE_FP32", "Y__1"), ("a", "b"), ("Y__0", "Y__1")),
    "mixed": (("first", "X__0", "Y__1", "TYPE_FP32", "sum"), ("first", "X__0"), ("Y__1", "sum")),
}


class Pair(torch.nn.Module):
    def forward(self, a, b):
        return a - b, a + b


class Flat(torch.nn.Module):
    """Sees all requests' values in a row and how many each has."""

    def forward(self, counts, values):
        owner = torch.repeat_interleave(counts.to(torch.int64))
        totals = torch.zeros_like(counts).index_add(0, owner, values)
        return values * 2, totals.unsqueeze(1)


class Counter(torch.nn.Module):
    def forward(self, value, total, start, ready):
        kept = torch.logical_and(ready, torch.logical_not(start))
        total = kept * total + value
        return total, total


class Texts(torch.nn.Module):
    def forward(self, texts: List[str]) -> List[str]:  # noqa: UP006
        return texts


def scripted(module):
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(module), buffer)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def client(triton_server, tmp_path_factory):
    """A client of a server with a model per convention; some of them are refused."""
    models = tmp_path_factory.mktemp("models")
    pair = scripted(Pair())
    for name, (fields, *_) in (SERVED | REFUSED).items():
        write_model(models, name, PAIR % fields, pair, "model.pt")
    write_model(models, "flat", FLAT, scripted(Flat()), "model.pt")
    write_model(models, "counter", COUNTER, scripted(Counter()), "model.pt")
    write_model(models, "texts", TEXTS, scripted(Texts()), "model.pt")
    write_model(models, "silent", "", pair, "model.pt")
    server = triton_server(models, arguments=("--exit-on-error=false", "--strict-readiness=false"))
    with grpcclient.InferenceServerClient(server.grpc) as connected:
        yield connected


def tensors(kind="FP32", **arrays):
    made = []
    for name, array in arrays.items():
        item = grpcclient.InferInput(name, list(array.shape), kind)
        item.set_data_from_numpy(array)
        made.append(item)
    return made


@pytest.mark.parametrize("model", SERVED)
def test_names_decide_which_tensor_is_which(client, model):
    """By index, by argument, or as config.pbtxt lists them where the names say neither."""
    _, (first, second), (less, more) = SERVED[model]
    a, b = np.array([[5, 7]], np.float32), np.array([[2, 3]], np.float32)
    answer = client.infer(model, tensors(**{second: b, first: a}))
    assert answer.as_numpy(less).tolist() == [[3, 4]]
    assert answer.as_numpy(more).tolist() == [[7, 10]]


def test_ragged_inputs_are_flat_and_scattered_back(client):
    """Requests of different lengths are one flat tensor there, and each gets its own part."""
    sizes, answers = (2, 4, 1), {}

    def send(size):
        values = np.full((1, size), size, np.float32)
        answers[size] = client.infer("flat", tensors(values=values))

    threads = [threading.Thread(target=send, args=(size,)) for size in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for size in sizes:
        assert answers[size].as_numpy("doubled").tolist() == [[2 * size] * size]
        assert answers[size].as_numpy("total").tolist() == [[size * size]]


def test_states_are_results_by_index_and_outputs_if_declared(client):
    """A sequence adds up; its next state is an answer as well, and another sequence has its own."""
    for step, value in enumerate((3, 4, 5)):
        for sequence, factor in ((7, 1), (8, 10)):
            given = tensors("INT32", INPUT__0=np.array([[value * factor]], np.int32))
            edges = {"sequence_start": step == 0, "sequence_end": step == 2}
            answer = client.infer("counter", given, sequence_id=sequence, **edges)
            total = sum((3, 4, 5)[: step + 1]) * factor
            assert answer.as_numpy("OUTPUT__0").tolist() == [[total]]
            assert answer.as_numpy("OUTPUT_STATE__1").tolist() == [[total]]


@pytest.mark.parametrize(
    ("model", "said"),
    [(name, said) for name, (_, said) in REFUSED.items()]
    + [
        ("texts", "unsupported datatype TYPE_STRING for input 'texts'"),
        ("silent", "model configuration must contain at least one input, none were specified"),
    ],
)
def test_what_cannot_be_served_is_refused_at_load(client, model, said):
    """The repository's index has the reason, and the other models serve."""
    index = client.get_model_repository_index(as_json=True)["models"]
    assert said in next(item["reason"] for item in index if item["name"] == model)
    with pytest.raises(InferenceServerException, match="no available versions"):
        client.infer(model, tensors(a=np.zeros((1, 2), np.float32)))
