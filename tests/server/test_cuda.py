"""Models of every kind behind the real server, on a GPU that is not there: a stand-in computes."""

import io
import json
import queue
import re

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("onnxruntime")

from builders.checkpoints import as_sentence_encoder, write_checkpoint  # noqa: E402
from builders.graphs import (  # noqa: E402
    RAGGED,
    TABLE,
    VOCABULARY,
    WIDTH,
    accumulator,
    masked_mean,
    mean_of,
    parameters,
    row_sums,
    sum_and_difference,
    token_rows,
    write_model,
)
from builders.metrics import metric  # noqa: E402
from builders.null_models import comes_true  # noqa: E402
from builders.sequences import Steps  # noqa: E402
from builders.standstill import standing_still  # noqa: E402
from builders.text_stream import GREEDY, TextStream  # noqa: E402
from builders.torch_modules import MaskedMean  # noqa: E402
from builders.writer import PROMPTS, make_writer  # noqa: E402
from fakes.cuda_device import EXECUTORS  # noqa: E402

VECTOR = f"data_type: TYPE_FP32 dims: [ {WIDTH} ]"
ROWS = f"data_type: TYPE_FP32 dims: [ -1, {WIDTH} ]"
EMBED = f"""
max_batch_size: 8
input [ {{ name: "ids" data_type: TYPE_INT64 {RAGGED} }} ]
output [ {{ name: "y" {ROWS} }} ]
"""
ADD_UP = f"""
max_batch_size: 8
input [ {{ name: "x" {ROWS} allow_ragged_batch: true }} ]
output [ {{ name: "y" {VECTOR} }} ]
"""
DELAY = "dynamic_batching { max_queue_delay_microseconds: 20000 }\n"
BUCKETS = parameters(buckets__rows="1,4,8", buckets__sequence="8,16,40")
SUMS = ("sums", {"x": "rows"}, {"y": "total"})
SUMS_IN_TORCH = ("sums_in_torch", *SUMS[1:])
NEAR = {"encoder": 1e-5, "encoder_bf16": 0.05}
CACHE = parameters(block_size="4", kv_cache_bytes="1MiB", max_num_batched_tokens="64")
ONE = "data_type: TYPE_FP32 dims: [ 1 ]"
STATEFUL = f"""
max_batch_size: 4
input [ {{ name: "x" {ONE} }} ]
output [ {{ name: "y" {ONE} }} ]
sequence_batching {{
  oldest {{ max_candidate_sequences: 8 max_queue_delay_microseconds: 1000 }}
  state [ {{ input_name: "h" output_name: "h_next" {ONE} }} ]
}}
"""


class RowSums(torch.nn.Module):
    """What `row_sums` computes."""

    def forward(self, x):
        return x.sum(1)


class Accumulator(torch.nn.Module):
    """What `accumulator` computes."""

    def forward(self, x, h):
        return h + x, h + x


def exported(module, example, axes, inputs, outputs=("y",)):
    """Return the bytes of a .pt2 that takes tensors like `example`, whose first axes are free."""
    dims = {at: torch.export.Dim(name, max=64) for at, name in enumerate(axes)}
    program = torch.export.export(
        module, tuple(example.clone() for _ in inputs), dynamic_shapes=(dims,) * len(inputs)
    )
    given = program.graph_signature.user_inputs[0]
    shape = next(node for node in program.graph.nodes if node.name == given).meta["val"].shape
    symbols = map(str, shape[: len(axes)])
    names = {
        "inputs": list(inputs),
        "outputs": list(outputs),
        "axes": dict(zip(symbols, axes, strict=True)),
    }
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={"ge_names.json": json.dumps(names)})
    return file.getvalue()


def ensemble(sums):
    """Return an ensemble of sums and means over the rows of a text; `sums` is its second step."""
    steps = (
        ("tokens", {"ids": "IDS"}, {"y": "rows"}),
        sums,
        ("average", {"ids": "IDS"}, {"y": "average"}),
        ("joined", {"a": "total", "b": "average"}, {"sum": "sum", "diff": "diff"}),
    )

    def maps(kind, pairs):
        return " ".join(f'{kind} {{ key: "{key}" value: "{value}" }}' for key, value in pairs)

    listed = ", ".join(
        f'{{ model_name: "{model}" model_version: -1 '
        f"{maps('input_map', given.items())} {maps('output_map', made.items())} }}"
        for model, given, made in steps
    )
    return f"""
platform: "ensemble"
max_batch_size: 8
input [ {{ name: "IDS" data_type: TYPE_INT64 dims: [ -1 ] }} ]
output [ {{ name: "sum" {VECTOR} }}, {{ name: "diff" {VECTOR} }} ]
ensemble_scheduling {{ step [ {listed} ] }}
"""


def write_fused(models):
    """Write ensembles with and without torch, one step of which is completed from its file."""
    rows = torch.zeros(2, 3, WIDTH)
    in_torch = exported(RowSums(), rows, ("batch", "sequence"), ["x"])
    write_model(models, "tokens", EMBED + BUCKETS, token_rows())
    write_model(models, "sums", ADD_UP + BUCKETS, row_sums())
    write_model(models, "sums_in_torch", ADD_UP + BUCKETS, in_torch, "model.pt2")
    write_model(models, "average", model=masked_mean())
    write_model(models, "joined", model=sum_and_difference())
    for name, sums in (("fused", SUMS), ("fused_with_torch", SUMS_IN_TORCH)):
        (models / f"{name}_steps" / "1").mkdir(parents=True)
        (models / f"{name}_steps" / "config.pbtxt").write_text(ensemble(sums))
        write_model(models, name, DELAY + parameters(fuse=f"{name}_steps"))


def write_encoders(models):
    """Write one checkpoint in two precisions."""
    for name, precision in zip(NEAR, ("origin", "bf16"), strict=True):
        # Several models are opened at once here, on few cores: a test of it may not end in time.
        write_model(models, name, DELAY + parameters(precision=precision, assume="rows"))
        as_sentence_encoder(write_checkpoint(models / name / "1"))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    models = tmp_path_factory.mktemp("models")
    write_fused(models)
    write_encoders(models)
    ids = torch.zeros(2, 5, dtype=torch.int64)
    mean = exported(MaskedMean(), ids, ("batch", "sequence"), ["ids", "attention_mask"])
    write_model(models, "mean", DELAY + BUCKETS, mean, "model.pt2")
    step = exported(Accumulator(), torch.zeros(2, 1), ("batch",), ["x", "h"], ["y", "h_next"])
    write_model(models, "running", STATEFUL, accumulator())
    write_model(models, "running_in_torch", STATEFUL, step, "model.pt2")
    write_model(models, "writer", CACHE)
    return models


@pytest.fixture(scope="module")
def writer(models):
    """The checkpoint that the server writes with, and transformers' model of it."""
    return make_writer(models / "writer" / "1")


@pytest.fixture(scope="module")
def server(triton_server, models, writer):
    server = triton_server(models, environment={**EXECUTORS, "GE_DEVICE": "cuda:0"})
    yield server
    assert complaints(server) == []


def complaints(server):
    """Return what executors and stubs have logged that is more than information."""
    return re.findall(
        r"^ge executor \S+ \[\d+\] (?!INFO).*|^[WE].* logs\.py.*",
        server.options.log_file.read_text(),
        re.MULTILINE,
    )


def together(client, server, model, name, requests):
    """Send requests at once; return what came for each, in order."""
    done = queue.Queue()
    with standing_still(server):
        for index, ids in enumerate(requests):
            item = grpcclient.InferInput(name, ids.shape, "INT64")
            item.set_data_from_numpy(ids)
            client.async_infer(
                model, [item], lambda result, error, at=index: done.put((at, error or result))
            )
    answers = dict(done.get(timeout=60) for _ in requests)
    for answer in answers.values():
        assert not isinstance(answer, InferenceServerException), str(answer)
    return [answers[index] for index in range(len(requests))]


def unequal(seed, count, vocabulary=VOCABULARY, longest=40, rows=3):
    generator = np.random.default_rng(seed)
    return [
        generator.integers(3, vocabulary, (generator.integers(1, rows + 1), length))
        for length in generator.integers(1, longest + 1, count)
    ]


@pytest.mark.parametrize(
    ("model", "sums"), [("fused", "sums"), ("fused_with_torch", "sums_in_torch")]
)
def test_what_steps_of_an_ensemble_hand_on_stays_on_the_device(client, server, model, sums):
    """Unequal requests, grouped anew before each step; one step is completed from its file."""
    log = server.options.log_file.read_text()
    staying = re.findall(rf'ge {model}: ensemble \S+: of (\S+) stays on the device: y"', log)
    assert staying == ["tokens", sums, "average"]
    for seed in range(3):
        sent = unequal(seed, 20)
        for ids, answer in zip(sent, together(client, server, model, "IDS", sent), strict=True):
            total, average = TABLE[ids].sum(axis=1), TABLE[ids].mean(axis=1)
            for name, truth in {"sum": total + average, "diff": total - average}.items():
                np.testing.assert_allclose(answer.as_numpy(name), truth, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", NEAR)
def test_texts_are_encoded_as_they_are_alone(client, server, models, model):
    """Their rows lie end to end in one run; bf16 is near."""
    alone = transformers.BertModel.from_pretrained(models / model / "1").eval()
    sent = unequal(4, 20, vocabulary=200, longest=32, rows=1)
    for ids, answer in zip(sent, together(client, server, model, "input_ids", sent), strict=True):
        with torch.inference_mode():
            hidden = alone(input_ids=torch.from_numpy(ids)).last_hidden_state
        truth = torch.nn.functional.normalize(hidden.mean(1), dim=1).numpy()
        np.testing.assert_allclose(answer.as_numpy("sentence_embedding"), truth, atol=NEAR[model])


def test_unequal_requests_share_captured_buckets(client, server):
    """All that runs was captured at load: what runs eagerly is a warning in the log."""
    sent = unequal(5, 40)
    for ids, answer in zip(sent, together(client, server, "mean", "ids", sent), strict=True):
        np.testing.assert_allclose(answer.as_numpy("y"), mean_of(ids), rtol=1e-4, atol=1e-5)
    rows = sum(map(len, sent))
    assert comes_true(lambda: executions(client, "mean")[0] == rows)  # after answers
    assert executions(client, "mean")[1] < len(sent)
    assert complaints(server) == []


def executions(client, model):
    """Return how many rows and how many batches a model has had."""
    (found,) = client.get_inference_statistics(model).model_stats
    return found.inference_count, found.execution_count


def test_texts_are_what_transformers_writes(server, writer):
    """Several together, of unequal lengths."""
    with grpcclient.InferenceServerClient(server.grpc) as client:
        stream = TextStream(client)
        for prompt in PROMPTS:
            stream.ask(text_input=prompt, outputs=("output_ids",))
        for prompt, responses in zip(PROMPTS, stream.wait().values(), strict=True):
            truth = writer.truth(prompt, GREEDY["max_tokens"])
            assert [tensors["output_ids"] for tensors in responses] == [truth]


@pytest.mark.parametrize("model", ["running", "running_in_torch"])
def test_interleaved_sequences_have_their_own_state(server, model):
    """Each adds up what came to it, in ONNX Runtime and in torch."""
    names, count = (11, 12, 13), 5
    with Steps(server.grpc, model) as steps:
        for number in range(count):
            for name in names:
                steps.send(name, name, start=number == 0, end=number == count - 1)
            assert steps.take(len(names)) == {name: [name * (number + 1)] for name in names}


@pytest.mark.parametrize("model", ["fused/average", "mean", "encoder", "writer", "running"])
def test_the_device_is_up(server, model):
    """Under the name by which models are sent there, for whatever they are."""
    wanted = {"device": "cuda:0", "model": model}
    assert comes_true(lambda: metric(server, "ge_device_up", **wanted) == 1)
