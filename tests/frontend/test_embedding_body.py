"""Embeddings: what is asked, and the answer."""

import base64
import json

import numpy as np
import pytest

from ge_openai.api_error import ApiError
from ge_openai.embedding_body import embedding_answer, read_embedding

VECTORS = np.array([[0.5, -1.0], [0.25, 2.0]], np.float32)


def asked(**given):
    return read_embedding(json.dumps({"model": "m", "input": ["a", "b"], **given}).encode())


def test_one_text_or_several():
    """In order; an empty text is one."""
    assert asked().inputs == ("a", "b")
    assert asked(input="a").inputs == ("a",)
    assert asked(input=[""]).inputs == ("",)


def test_tokens_of_one_text_or_of_several():
    """A list of numbers is one text."""
    assert asked(input=[1, 2]).inputs == ((1, 2),)
    assert asked(input=[[1, 2], [3]]).inputs == ((1, 2), (3,))


@pytest.mark.parametrize("given", [None, [], [[]], [1, "a"], [-1], [True], 3, ["a"] * 2049])
def test_other_inputs_are_refused(given):
    """The field is named."""
    with pytest.raises(ApiError) as caught:
        asked(input=given)
    assert caught.value.param == "input"


def test_both_encodings_have_the_same_numbers():
    """Base64 is of float32, little endian."""
    plain = embedding_answer(asked(), VECTORS, 7)
    assert [each["embedding"] for each in plain["data"]] == VECTORS.tolist()
    assert [each["index"] for each in plain["data"]] == [0, 1]
    assert plain["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    packed = embedding_answer(asked(encoding_format="base64"), VECTORS, 7)["data"][1]["embedding"]
    assert np.frombuffer(base64.b64decode(packed), "<f4").tolist() == VECTORS[1].tolist()


def test_another_size_is_refused():
    """These models cannot be cut."""
    embedding_answer(asked(dimensions=2), VECTORS, 7)
    with pytest.raises(ApiError, match="embeddings have 2"):
        embedding_answer(asked(dimensions=1), VECTORS, 7)
    for form in ("int8", {}):
        with pytest.raises(ApiError, match="encoding_format"):
            asked(encoding_format=form)
