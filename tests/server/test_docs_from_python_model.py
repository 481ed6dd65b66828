"""The models in docs/from_python_model.md, old and new, answer alike on the real server."""

import re
import shutil

import numpy as np
import pytest
import tritonclient.http as httpclient

from builders.pages import ROOT
from builders.sequences import Steps

PAGE = (ROOT / "docs" / "from_python_model.md").read_text()
FILES = re.findall(r"^```\w+ models/(\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
# What the page says of models that it does not show.
FILES += [
    (
        "sum_python/config.pbtxt",
        """\
backend: "python"
max_batch_size: 8
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
sequence_batching { oldest { max_candidate_sequences: 64 } }
instance_group [ { count: 1 kind: KIND_CPU } ]
""",
    ),
    (
        "sum_python/1/model.py",
        """\
from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils

START, END = 1, 2


class TritonPythonModel:
    def initialize(self, args):
        self.session = onnxruntime.InferenceSession(str(Path(__file__).with_name("model.onnx")))
        self.states = {}

    def execute(self, requests):
        names = [request.correlation_id() for request in requests]
        for name, request in zip(names, requests):
            if request.flags() & START:
                self.states[name] = np.zeros(1, np.float32)
        feeds = {
            "INPUT": np.concatenate(
                [pb_utils.get_input_tensor_by_name(r, "INPUT").as_numpy() for r in requests]
            ),
            "sum": np.stack([self.states[name] for name in names]),
        }
        outputs, states = self.session.run(["OUTPUT", "next_sum"], feeds)
        for name, request, state in zip(names, requests, states):
            self.states[name] = state
            if request.flags() & END:
                del self.states[name]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", row[None])]) for row in outputs
        ]
""",
    ),
    (
        "clean/config.pbtxt",
        """\
backend: "python"
max_batch_size: 16
input [ { name: "html" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
""",
    ),
    (
        "clean/1/model.py",
        """\
import re

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            pages = pb_utils.get_input_tensor_by_name(request, "html").as_numpy()
            texts = [[re.sub(rb"<[^>]*>", b" ", page) for page in row] for row in pages]
            text = pb_utils.Tensor("text", np.array(texts, object))
            responses.append(pb_utils.InferenceResponse([text]))
        return responses
""",
    ),
    (
        "classify_html/config.pbtxt",
        """\
platform: "ensemble"
max_batch_size: 16
input [ { name: "html" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "scores" data_type: TYPE_FP32 dims: [ 3 ] } ]
ensemble_scheduling {
  step [
    { model_name: "clean" model_version: -1
      input_map { key: "html" value: "html" } output_map { key: "text" value: "text" } },
    { model_name: "text_classifier" model_version: -1
      input_map { key: "text" value: "text" } output_map { key: "scores" value: "scores" } }
  ]
}
""",
    ),
]
# Models of the page -> the example model whose file they are said to have.
GRAPHS = {
    "embed_python": "mean_embedding",
    "embed": "mean_embedding",
    "sum_python": "accumulator",
    "sum": "accumulator",
    "embed_declared": "mean_embedding",
}
# Models that the page's own call or contain.
CALLED = ("tokenizer", "text_encoder", "classifier_head", "text_classifier")
TEXTS = ("Rain is expected", "She scored two goals", "Two eggs and some butter in the soup")


@pytest.fixture(scope="module")
def server(triton_server, made_models, tmp_path_factory):
    """A real server with the page's models and those that they call."""
    repository = tmp_path_factory.mktemp("models")
    for name, text in FILES:
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)
        (repository / name.split("/")[0] / "1").mkdir(exist_ok=True)
    declare(repository)
    for name, example in GRAPHS.items():
        shutil.copyfile(
            made_models / example / "1" / "model.onnx", repository / name / "1" / "model.onnx"
        )
    for name in CALLED:
        (repository / name).symlink_to(made_models / name)
    return triton_server(repository)


def declare(repository):
    """Write `embed_declared`: the Python model's folder with one word changed, model.py and all."""
    shutil.copytree(repository / "embed_python", repository / "embed_declared")
    config = repository / "embed_declared" / "config.pbtxt"
    config.write_text(config.read_text().replace('backend: "python"', 'backend: "ge"'))


def answers(server, model, wanted, name, arrays):
    """Return a model's answers to requests of one input, all in flight at once."""
    with httpclient.InferenceServerClient(server.http, concurrency=len(arrays)) as client:
        kinds = {"int64": "INT64", "object": "BYTES"}
        begun = []
        for array in arrays:
            given = httpclient.InferInput(name, array.shape, kinds[str(array.dtype)])
            given.set_data_from_numpy(array)
            begun.append(client.async_infer(model, [given]))
        return [request.get_result().as_numpy(wanted) for request in begun]


def strings(*texts):
    """Return BYTES [texts, 1]."""
    return np.array([[text.encode()] for text in texts], object)


def test_the_page_has_models():
    """The pattern that finds them still does."""
    assert len(FILES) >= 12
    assert {name.split("/")[0] for name, _ in FILES} >= set(GRAPHS) - {"embed_declared"}


def test_an_encoder_answers_as_its_python_model(server):
    """Requests of all lengths and several rows, in flight together, however much is declared."""
    random = np.random.default_rng(3)
    asked = [random.integers(0, 1000, (1 + n % 3, 1 + 7 * n)) for n in range(16)]

    old, new, declared = (
        answers(server, model, "mean", "input_ids", asked)
        for model in ("embed_python", "embed", "embed_declared")
    )

    assert [found.shape for found in new] == [(len(ids), 16) for ids in asked]
    assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(old, new, strict=True))
    assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(old, declared, strict=True))


def test_sequences_answer_as_their_python_model(server):
    """Steps of several sequences, interleaved; each answer is the sum so far."""
    found = {}
    for model in ("sum_python", "sum"):
        with Steps(server.grpc, model, given="INPUT", wanted="OUTPUT") as steps:
            for step in range(4):
                for name in (1, 2, 3):
                    steps.send(name, 10 * name + step, start=step == 0, end=step == 3)
            found[model] = steps.take(12)

    assert found["sum"] == found["sum_python"]
    assert len(found["sum"]) == 3


def test_a_pipeline_answers_as_its_python_model(server):
    """The Python model that calls our models, the host's ensemble of them, and the fused one."""
    asked = [strings(text) for text in TEXTS]

    old, hosts, fused = (
        answers(server, model, "scores", "text", asked)
        for model in ("classify_python", "text_classifier", "classify")
    )

    assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(old, hosts, strict=True))
    assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(old, fused, strict=True))


def test_an_ensemble_may_begin_with_python(server):
    """Tags are taken out by a Python model; what follows is ours."""
    tagged = [strings(f"<p>{text}</p>") for text in TEXTS]

    found = answers(server, "classify_html", "scores", "html", tagged)

    expected = answers(server, "text_classifier", "scores", "text", [strings(t) for t in TEXTS])
    assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(found, expected, strict=True))
