"""Embeddings: what is asked, and the answer."""

import base64
import json

import numpy as np
import pytest

from ge_backend.openai.api_error import ApiError
from ge_backend.openai.embedding_body import embedding_answer, read_embedding

VECTORS = np.array([[0.5, -1.0], [0.25, 2.0]], np.float32)


def asked(**given):
    return read_embedding(json.dumps({"model": "m", "input": ["a", "b"], **given}).encode())


def test_one_text_or_several():
    """In order; an empty text is one."""
    assert asked().texts == ("a", "b")
    assert asked(input="a").texts == ("a",)
    assert asked(input=[""]).texts == ("",)


@pytest.mark.parametrize("given", [None, [], [1, 2], [[1]], 3, ["a"] * 2049])
def test_other_inputs_are_refused(given):
    """Tokens, too: the tokenizer is the server's."""
    with pytest.raises(ApiError) as caught:
        asked(input=given)
    assert caught.value.param == "input"


def test_both_encodings_have_the_same_numbers():
    """Base64 is of float32, little endian."""
    plain = embedding_answer(asked(), VECTORS)
    assert [each["embedding"] for each in plain["data"]] == VECTORS.tolist()
    assert [each["index"] for each in plain["data"]] == [0, 1]
    packed = embedding_answer(asked(encoding_format="base64"), VECTORS)["data"][1]["embedding"]
    assert np.frombuffer(base64.b64decode(packed), "<f4").tolist() == VECTORS[1].tolist()


def test_another_size_is_refused():
    """These models cannot be cut."""
    embedding_answer(asked(dimensions=2), VECTORS)
    with pytest.raises(ApiError, match="embeddings have 2"):
        embedding_answer(asked(dimensions=1), VECTORS)
    for form in ("int8", {}):
        with pytest.raises(ApiError, match="encoding_format"):
            asked(encoding_format=form)
