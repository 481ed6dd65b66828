"""Rankings: what is asked, and the answer."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from ge_openai.api_error import ApiError
from ge_openai.rank_body import (
    Cut,
    check_scores,
    read_rerank,
    read_score,
    rerank_answer,
    score_answer,
)

LOGITS = SimpleNamespace(logits=True)
SCORES = np.array([-1.0, 2.0, 0.0])


def asked(**given):
    body = {"model": "m", "query": "q", "documents": ["a", "b", "c"], **given}
    return read_rerank(json.dumps(body).encode())


def scored(**given):
    return read_score(json.dumps({"model": "m", "text_1": "q", "text_2": ["a"], **given}).encode())


def test_documents_are_texts_or_objects_with_one():
    """What an object has beside its text is told again, and not ranked."""
    found = asked(documents=["a", {"text": "", "id": 3}])
    assert found.pairs.documents == ("a", "")
    assert found.pairs.queries == ("q", "q")
    assert found.shown == ({"text": "a"}, {"text": "", "id": 3})


@pytest.mark.parametrize("given", [None, [], "a", [3], [None], [{}], [{"text": 3}], ["a"] * 10_001])
def test_other_documents_are_refused(given):
    """The field is named."""
    with pytest.raises(ApiError) as caught:
        asked(documents=given)
    assert caught.value.param == "documents"


@pytest.mark.parametrize(
    "field",
    [
        {"query": ""},
        {"query": ["q"]},
        {"top_n": -1},
        {"return_documents": 1},
        {"max_tokens_per_doc": 0},
        {"max_chunks_per_doc": 10},
        {"rank_fields": ["text", "title"]},
        {"truncate_prompt_tokens": 0},
        {"truncate_prompt_tokens": -2},
        {"truncation": "yes"},
        {"use_activation": 0},
        {"priority": 1},
        {"return_embeddings": True},
        {"model": ""},
    ],
)
def test_other_fields_are_refused(field):
    """By name: none is ignored."""
    with pytest.raises(ApiError) as caught:
        asked(**field)
    assert caught.value.param == next(iter(field))


def test_fields_at_their_defaults_change_nothing():
    """As clients of Cohere, Jina and vLLM spell them out, null ones among them."""
    spelt = {"top_n": 0, "return_documents": True, "max_chunks_per_doc": 1, "rank_fields": ["text"]}
    nulls = dict.fromkeys(("top_n", "max_tokens_per_doc", "return_documents", "user"))
    rest = {"truncate_prompt_tokens": -1, "truncation": True, "use_activation": True, "priority": 0}
    assert asked(**spelt, **rest) == asked(**nulls) == asked()


def test_what_is_cut_is_read():
    """By Cohere's name, by vLLM's, and by what says that nothing may be."""
    found = asked(max_tokens_per_doc=7, truncate_prompt_tokens=9, truncation=False)
    assert found.pairs.cut == Cut(document=7, pair=9, never=True)


def test_the_best_are_told():
    """In the order of their scores, with their documents unless the client has them."""
    answer = rerank_answer(asked(top_n=2), LOGITS, SCORES, 9, "x")
    assert [each["index"] for each in answer["results"]] == [1, 2]
    assert answer["results"][0]["document"] == {"text": "b"}
    assert answer["results"][1]["relevance_score"] == 0.5
    assert (answer["id"], answer["model"]) == ("x", "m")
    assert answer["usage"] == {"prompt_tokens": 9, "total_tokens": 9}
    answer = rerank_answer(asked(top_n=99, return_documents=False), LOGITS, SCORES, 9, "x")
    assert [set(each) for each in answer["results"]] == [{"index", "relevance_score"}] * 3


@pytest.mark.parametrize("switch", ["use_activation", "activation", "softmax"])
def test_scores_can_be_had_as_the_model_gives_them(switch):
    """Where the client asks for it, or where the model says that they are scores already."""
    raw = rerank_answer(asked(**{switch: False}), LOGITS, SCORES, 0, "x")
    own = rerank_answer(asked(), SimpleNamespace(logits=False), SCORES, 0, "x")
    assert raw == own
    assert [each["relevance_score"] for each in raw["results"]] == [2, 0, -1]


def test_an_infinite_score_is_told_as_a_number():
    """JSON has no word for it; the order stays."""
    scores = np.array([-np.inf, np.inf])
    answer = score_answer(scored(text_2=["a", "b"], use_activation=False), LOGITS, scores, 0, {})
    json.dumps(answer, allow_nan=False)
    told = [each["score"] for each in answer["data"]]
    assert told == [-told[1], np.finfo(np.float32).max]


def test_one_text_beside_several_or_two_lists_side_by_side():
    """Text 1 goes with each of text 2."""
    assert scored(text_2=["a", "b"]).queries == ("q", "q")
    assert scored(text_1=["p", "q"], text_2=["a", "b"]).queries == ("p", "q")


@pytest.mark.parametrize(
    "names", [("queries", "documents"), ("queries", "items"), ("data_1", "data_2")]
)
def test_sides_have_several_names(names):
    """Those of vLLM's releases."""
    found = scored(text_1=None, text_2=None, **dict(zip(names, "qa", strict=True)))
    assert (found.queries, found.documents, found.names) == (("q",), ("a",), names)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"text_1": None}, "text_1"),
        ({"text_2": []}, "text_2"),
        ({"text_2": ["a", 3]}, "text_2"),
        ({"text_1": ["p", "q"]}, "text_1"),
        ({"queries": "q"}, "queries"),
        ({"items": ["a"]}, "items"),
        ({"text_1": None, "queries": "q", "text_2": None}, "text_2"),
        ({"max_tokens_per_doc": 3}, "max_tokens_per_doc"),
    ],
)
def test_other_sides_are_refused(given, param):
    """The field is named."""
    with pytest.raises(ApiError) as caught:
        scored(**given)
    assert caught.value.param == param


def test_a_model_that_gives_several_numbers_ranks_nothing():
    """It is a classifier of pairs."""
    assert check_scores(scored(), np.zeros((2, 1), np.float32)).tolist() == [0, 0]
    with pytest.raises(ApiError, match="gives 3 numbers for a pair"):
        check_scores(scored(), np.zeros((2, 3), np.float32))
    with pytest.raises(ApiError, match=r"no number as the score of text_2\[1\]") as caught:
        check_scores(scored(), np.array([[0], [np.nan]], np.float32))
    assert caught.value.status == 500
