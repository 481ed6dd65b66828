"""A checkpoint as a graph: what it says of itself, and that it writes where it is told to."""

import json

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.numpy import load_file, save_file

from builders.checkpoints import (
    LENGTH,
    WIDTH,
    as_sentence_encoder,
    write_checkpoint,
)
from ge_backend.device.base import GraphSource
from ge_backend.engines.kinds.cpu import CpuDevice
from ge_backend.errors import GraphFailed


@pytest.fixture(scope="module", params=["transformers", "openvino"])
def graph(request, tmp_path_factory):
    if request.param == "openvino":
        pytest.importorskip("openvino")
    folder = as_sentence_encoder(write_checkpoint(tmp_path_factory.mktemp("encoder")))
    source = GraphSource.of(folder / "config.json", threads=1, engine=request.param)
    graph = CpuDevice().load(source)
    yield graph
    graph.close()


def inputs(rows=2, length=5, fill=7):
    whole = np.full((rows, length), fill, np.int64)
    return {"input_ids": whole, "attention_mask": np.ones_like(whole)}


def test_it_says_what_it_takes_and_gives(graph):
    """Two free axes, the longest text of the folder, one vector per row, and no padding."""
    assert [(spec.name, spec.optional) for spec in graph.signature.inputs] == [
        ("input_ids", False),
        ("attention_mask", False),
        ("token_type_ids", True),
    ]
    (output,) = graph.signature.outputs
    assert (output.name, output.dims) == ("sentence_embedding", (-1, WIDTH))
    assert graph.signature.axis_limits == {"sequence": LENGTH}
    assert graph.shape_policy.packed
    assert not graph.shape_policy.prepared


def test_results_go_where_they_are_wanted(graph):
    """Into an array that fits, else into one of their own; inputs may be read-only."""
    given = inputs()
    given["input_ids"].flags.writeable = False
    place = np.zeros((2, WIDTH), np.float32)
    found = graph.run(given, {"sentence_embedding": place}, exclusive=False)
    assert found["sentence_embedding"] is place
    other = graph.run(
        given, {"sentence_embedding": np.zeros((3, WIDTH), np.float32)}, exclusive=True
    )
    np.testing.assert_allclose(other["sentence_embedding"], place, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(place, axis=1), 1, atol=1e-5)


def test_scratch_is_what_was_measured(request, graph):
    """Of the smallest prepared shape that covers the one asked for; OpenVINO's is not seen."""
    graph.prepare(inputs(4, 8))
    measured = graph.workspace_bytes(dict.fromkeys(inputs(), (2, 6)))
    assert (measured > 0) == ("transformers" in request.node.name)


def test_a_token_that_is_not_in_the_vocabulary_fails_the_run(graph):
    """In torch's words or much like them; the backend turns it into the client's error."""
    with pytest.raises(GraphFailed, match="index out of range"):
        graph.run(inputs(fill=200), {}, exclusive=False)


@pytest.mark.parametrize(("kind", "rows"), [("Bert", 1), ("Roberta", 1), ("ModernBert", 2)])
def test_who_tells_no_types_apart_takes_none(tmp_path, kind, rows):
    """Neither with one row in the table, as RoBERTa has it, nor where no module looks there."""
    folder = write_checkpoint(tmp_path, kind=kind)
    config = json.loads((folder / "config.json").read_text()) | {"type_vocab_size": rows}
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    table = weights.pop("embeddings.token_type_embeddings.weight", None)
    weights |= {} if table is None else {"embeddings.token_type_embeddings.weight": table[:rows]}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    source = GraphSource.of(folder / "config.json", threads=1, engine="transformers")
    graph = CpuDevice().load(source)
    assert [spec.name for spec in graph.signature.inputs] == ["input_ids", "attention_mask"]
    graph.close()


def test_types_are_told_apart(graph):
    """Those that are not sent are 0."""
    types = np.arange(10).reshape(2, 5) % 2
    told, untold, none = (
        graph.run({**inputs(), **given}, {}, exclusive=False)["sentence_embedding"]
        for given in ({"token_type_ids": types}, {"token_type_ids": types * 0}, {})
    )
    np.testing.assert_allclose(untold, none, atol=1e-6)
    assert np.abs(told - none).max(1).min() > 1e-3
