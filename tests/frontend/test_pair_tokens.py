"""Tokens of pairs of texts, and documents that are cut to fit."""

from dataclasses import replace

import pytest

from builders.text import write_tokenizer
from ge_openai.api_error import ApiError
from ge_openai.embedding_tokens import ModelTokens, TokenizerOptions
from ge_openai.options import as_written
from ge_openai.pair_tokens import fitted
from ge_openai.rank_body import Cut, Pairs
from ge_openai.tokenizer import TextTokenizer

PAIRS = Pairs(
    model="m",
    queries=("the cat",) * 2,
    documents=("a mat", "the cat sat on a mat"),
    names=("query", "documents"),
    raw=False,
    cut=Cut(),
)


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
