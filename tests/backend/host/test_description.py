"""What a model says of the tokenizer that reads its texts."""

import json

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from builders.text import write_tokenizer
from ge_backend.errors import InvalidRequest, OutOfMemory
from ge_backend.host.room import Room

OPTIONS = (("npu.x", "y"), ("tokenizer.max_length", "7"), ("tokenizer.strip", " true"))


@pytest.fixture
def described(pb_utils, tmp_path):
    """The description of a tokenizer beside which a file names one more token."""
    from ge_backend.host.description import TokenizerDescription

    path = tmp_path / "tokenizer.json"
    write_tokenizer(path)
    (tmp_path / "added_tokens.json").write_text('{"<a>": 12}')
    (tmp_path / "config.json").write_text('{"vocab_size": 13}')
    return TokenizerDescription(path, OPTIONS)


def request(pb_utils, known, outputs=("description", "input_ids")):
    """Return a request of a text that goes by a description; None: by none."""
    tensors = [pb_utils.Tensor("text", np.array([[b"a"]], object))]
    if known is not None:
        tensors.append(pb_utils.Tensor("description", np.array(known, object)))
    return pb_utils.InferenceRequest(tensors, outputs)


def said(response):
    (tensor,) = response.output_tensors()
    assert (tensor.name(), tensor.shape()) == ("description", [1, 1])
    return json.loads(tensor.as_numpy()[0, 0])


def test_it_has_the_tokenizer_and_its_options(pb_utils, described):
    """With the tokens that the files beside it name; options of others are none of it."""
    found = said(described.answer(request(pb_utils, [[b""]]), Room()))
    tokens = json.loads(found["tokenizer"])["added_tokens"]
    assert {token["content"]: token["id"] for token in tokens}["<a>"] == 12
    assert found["options"] == {"max_length": "7", "strip": "true"}


def test_a_request_that_goes_by_it_or_by_none_is_for_the_graph(pb_utils, described, tmp_path):
    """Another one learns what was loaded, whatever lies in its place by now."""
    from ge_backend.host.description import TokenizerDescription

    found = said(described.answer(request(pb_utils, [[b"7f"]]), Room()))
    for known in (None, [[found["id"].encode()]]):
        assert described.answer(request(pb_utils, known), Room()) is None
    write_tokenizer(tmp_path / "tokenizer.json", max_length=3)
    assert said(described.answer(request(pb_utils, [[b""]]), Room())) == found
    anew = TokenizerDescription(tmp_path / "tokenizer.json", OPTIONS)
    assert said(anew.answer(request(pb_utils, [[found["id"].encode()]]), Room())) != found


def test_it_is_not_sent_where_it_is_not_wanted(pb_utils, described):
    """A response with what its request does not name ends some stubs."""
    response = described.answer(request(pb_utils, [[b""]], ("input_ids",)), Room())
    assert response.output_tensors() == []


def test_what_cannot_be_answered_is_refused(pb_utils, described, shared):
    """No text at all, and no room in shared memory."""
    with pytest.raises(InvalidRequest, match="expected a text"):
        described.answer(request(pb_utils, np.zeros((0, 1))), Room())
    shared(left=0, free=0)
    with pytest.raises(OutOfMemory):
        described.answer(request(pb_utils, [[b""]]), Room())
