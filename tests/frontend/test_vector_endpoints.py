"""Embeddings and scores, in batches, before a server that is made up."""

import numpy as np
import pytest

from builders.front import Server, post
from ge_openai.vector_endpoints import MAX_BATCHES


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
