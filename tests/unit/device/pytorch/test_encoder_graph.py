"""A checkpoint as a graph: what it says of itself, and that it writes where it is told to."""

import logging

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from builders.checkpoints import (
    LENGTH,
    WIDTH,
    as_sentence_encoder,
    write_checkpoint,
)
from ge_backend.device.base import GraphSource
from ge_backend.device.kinds.cpu import CpuDevice
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
    assert [spec.name for spec in graph.signature.inputs] == ["input_ids", "attention_mask"]
    (output,) = graph.signature.outputs
    assert (output.name, output.dims) == ("sentence_embedding", (-1, WIDTH))
    assert graph.signature.axis_limits == {"sequence": LENGTH}
    assert graph.packed
    assert not graph.static_shapes


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


@pytest.mark.parametrize(("kind", "told"), [("Bert", True), ("ModernBert", False)])
def test_a_classifier_tells_that_it_takes_no_kinds_of_tokens(tmp_path, caplog, kind, told):
    """A ranker of BERT's kind would answer wrongly for a pair, and nobody would know."""
    caplog.set_level(logging.INFO)
    folder = write_checkpoint(tmp_path, classifier=True, kind=kind)
    source = GraphSource.of(folder / "config.json", threads=1, engine="transformers")
    CpuDevice().load(source).close()
    assert ("token_type_ids" in caplog.text) == told
