"""Embeddings and scores, in batches, before a server that is made up."""

import base64
import json
from dataclasses import replace

import numpy as np
import pytest

from builders.front import Server, post
from builders.text import write_tokenizer
from ge_openai.api_error import ApiError
from ge_openai.embedding_tokens import ModelTokens, TokenizerOptions
from ge_openai.options import as_written
from ge_openai.rank_body import Cut, Pairs
from ge_openai.tokenizer import TextTokenizer
from ge_openai.vector_endpoints import MAX_BATCHES, embedding_answer, fitted, read_embedding

VECTORS = np.array([[0.5, -1.0], [0.25, 2.0]], np.float32)
PAIRS = Pairs(
    model="m",
    queries=("the cat",) * 2,
    documents=("a mat", "the cat sat on a mat"),
    names=("query", "documents"),
    raw=False,
    cut=Cut(),
)


def test_a_size_that_the_model_has_not_is_refused_before_a_text_runs():
    """Thousands of texts may run for nothing else."""
    server = Server()
    status, body = post(server, {"input": ["1", "2", "3"], "dimensions": 5})
    assert (status, server.begun) == (400, 0)
    assert "dimensions is 5; this model's embeddings have 1" in body["error"]["message"]


def test_a_few_batches_of_embeddings_are_under_way_at_once():
    """However many texts there are, so that they do not fill a queue; they come in their order."""
    server = Server()
    status, answer = post(server, {"input": [str(number) for number in range(101)]})
    assert status == 200
    assert [each["embedding"] for each in answer["data"]] == [[n] for n in range(101)]
    assert (server.begun, server.most) == (51, MAX_BATCHES)


def test_a_batch_that_is_refused_ends_the_others():
    """Those that are under way are cancelled, and those that wait are not sent."""
    server = Server(refuses="3")
    status, answer = post(server, {"input": [str(number) for number in range(101)]})
    assert (status, answer["error"]["message"]) == (503, "the queue is full")
    assert server.begun == server.ended == MAX_BATCHES


def test_documents_are_ranked_in_batches_and_told_by_their_score():
    """The best first, those that are equal in their order; what is told is the sigmoid."""
    server = Server()
    documents = ["0", {"text": "90", "id": 7}, "-1", "0", "99", "nan"]
    status, answer = post(server, {"query": "q", "documents": documents[:5]}, "rerank")
    assert (status, server.begun) == (200, 3)
    assert answer["id"].startswith("rerank-")
    assert [each["index"] for each in answer["results"]] == [4, 1, 0, 3, 2]
    scores = [each["relevance_score"] for each in answer["results"]]
    assert scores == pytest.approx([1, 1, 0.5, 0.5, 1 / (1 + np.e)])
    assert answer["results"][1]["document"] == documents[1]
    status, answer = post(Server(), {"query": "q", "documents": documents}, "rerank")
    assert (status, answer["error"]["message"].count("documents[5]")) == (500, 1)


def test_pairs_are_scored_in_their_order():
    """As the model gives them where no sigmoid is wanted."""
    body = {"text_1": "q", "text_2": ["3", "-400", "0"]}
    status, answer = post(Server(), {**body, "use_activation": False}, "score")
    assert (status, [each["score"] for each in answer["data"]]) == (200, [3, -400, 0])
    assert (answer["object"], answer["model"], answer["usage"]["total_tokens"]) == ("list", "m", 0)
    _, answer = post(Server(), body, "score")
    assert [each["score"] for each in answer["data"]] == pytest.approx([0.952574, 0, 0.5], abs=1e-5)


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


@pytest.fixture
def tokens(tmp_path):
    """Of pairs of at most 9 tokens; three of them are special."""
    write_tokenizer(tmp_path / "tokenizer.json")
    tokenizer = TextTokenizer(as_written(tmp_path / "tokenizer.json"))
    return ModelTokens(tokenizer=tokenizer, options=TokenizerOptions(), most=9)


def test_tokens_are_those_that_the_model_reads(tokens):
    """Special ones included; what its tokenizer cuts off is not counted."""
    assert fitted(tokens, PAIRS) == (PAIRS.documents, 7 + 9)
    assert fitted(replace(tokens, most=0), PAIRS) == (PAIRS.documents, 7 + 11)
    bare = TokenizerOptions(add_special_tokens=False)
    assert fitted(replace(tokens, options=bare), PAIRS)[1] == 4 + 8


@pytest.mark.parametrize(
    ("cut", "cut_to", "count"),
    [
        (Cut(document=3), "the cat sat", 7 + 8),
        (Cut(pair=8), "the cat sat", 7 + 8),
        (Cut(pair=8, document=1), "the", 6 + 6),
        (Cut(pair=99, never=False), "the cat sat on a mat", 7 + 9),
    ],
)
def test_documents_are_cut_where_it_is_asked_for(tokens, cut, cut_to, count):
    """Their beginning stays, in whole tokens; the query is never cut."""
    documents, found = fitted(tokens, replace(PAIRS, cut=cut))
    assert (documents[1], found) == (cut_to, count)


def test_a_query_that_leaves_no_room_is_refused(tokens):
    """Cut to nothing it would be another question; a document may be."""
    documents, found = fitted(tokens, replace(PAIRS, cut=Cut(pair=5)))
    assert (documents, found) == (("", ""), 10)
    with pytest.raises(ApiError, match="query has 5 tokens") as caught:
        fitted(tokens, replace(PAIRS, cut=Cut(pair=4)))
    assert caught.value.param == "truncate_prompt_tokens"


def test_a_pair_that_must_not_be_cut_is_refused(tokens):
    """By the request, or by the model's own configuration."""
    strict = replace(tokens, options=TokenizerOptions(overflow="error"))
    for known, cut in ((tokens, Cut(never=True)), (strict, Cut())):
        with pytest.raises(ApiError, match=r"length is 9 tokens.*documents\[1\] have 11") as caught:
            fitted(known, replace(PAIRS, cut=cut))
        assert caught.value.code == "context_length_exceeded"
    assert fitted(strict, replace(PAIRS, cut=Cut(document=4)))[1] == 7 + 9


def test_without_the_tokenizer_nothing_is_counted_or_cut():
    """What needs it is refused by name."""
    assert fitted(None, PAIRS) == (PAIRS.documents, 0)
    for field, cut in (
        ("max_tokens_per_doc", Cut(document=3)),
        ("truncate_prompt_tokens", Cut(pair=3)),
        ("truncation", Cut(never=True)),
    ):
        with pytest.raises(ApiError, match="does not say") as caught:
            fitted(None, replace(PAIRS, cut=cut))
        assert caught.value.param == field
