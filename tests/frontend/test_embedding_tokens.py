"""Tokens of an embedding model's texts."""

import asyncio
import json

import pytest

from builders.text import VOCABULARY, build_tokenizer
from ge_openai import embedding_tokens
from ge_openai.api_error import ApiError
from ge_openai.embedding_tokens import EmbeddingTokens, as_texts, model_tokens
from ge_openai.models import Ability, Describer, ServedModel

SPLIT = Describer(name="split", texts=("text",), batched=True)
MODEL = ServedModel(name="text", ability=Ability.EMBEDDING, input="words", tokenized=SPLIT)
CAT = tuple(VOCABULARY[word] for word in ("the", "cat", "##s"))


def tokens_of(options=(), **made):
    """Return the tokens of a model that says this of itself."""
    return model_tokens(build_tokenizer(**made).to_str(), dict(options))


class Server:
    """A model that says how it tokenizes to who does not know it."""

    def __init__(self):
        self.asked = []
        self.load("1")

    def load(self, name, **made):
        self.said = {"id": name, "tokenizer": build_tokenizer(**made).to_str(), "options": {}}

    async def tokenizer(self, model, asked, known):
        self.asked.append((model.name, asked.name, known))
        return "" if known == self.said["id"] else json.dumps(self.said)


def asked(work):
    """Run what asks a server for the tokens of its models; return what it returns."""
    server = Server()
    return asyncio.run(work(server, EmbeddingTokens(lambda: server)))


def test_tokens_are_counted_as_the_model_does():
    """Special ones included, as the model computes them, too."""
    texts = ("the cat", "a mat sat on the cats")
    assert as_texts(tokens_of(), texts[:1]) == (["the cat"], 4)
    with pytest.raises(ApiError, match=r"length is 8 tokens.*input\[1\] has 9") as caught:
        as_texts(tokens_of(), texts)
    assert (caught.value.status, caught.value.param) == (400, "input")
    assert caught.value.code == "context_length_exceeded"
    assert as_texts(tokens_of(max_length=0), ["the cat " * 9])[1] == 20


def test_the_models_options_count():
    """Its longest text, and whether special tokens are added."""
    with pytest.raises(ApiError, match=r"length is 2 tokens.*has 3"):
        as_texts(tokens_of({"max_length": "2"}), ["cat"])
    assert as_texts(tokens_of({"add_special_tokens": "false"}), ["cat"]) == (["cat"], 1)


def test_texts_are_prepared_as_the_model_does():
    """So are texts that tokens are of: what the model makes of them is what counts."""
    assert as_texts(tokens_of(exact=True), [" Cat "])[1] == 5
    options = {"strip": "true", "lower_case": "true"}
    assert as_texts(tokens_of(options, exact=True), [" Cat "]) == ([" Cat "], 3)


@pytest.mark.parametrize("ids", [CAT, (VOCABULARY["[CLS]"], *CAT, VOCABULARY["[SEP]"])])
def test_tokens_become_the_text_that_they_are_of(ids):
    """With special ones and without."""
    assert as_texts(tokens_of(), [ids]) == (["the cats"], 5)


@pytest.mark.parametrize("ids", [(VOCABULARY["##s"],), (VOCABULARY["[UNK]"],), (10_000,)])
def test_tokens_of_no_text_are_refused(ids):
    """The embedding would be another text's."""
    with pytest.raises(ApiError, match=r"input\[0\] holds tokens .* of no text"):
        as_texts(tokens_of(), [ids])


def test_without_a_tokenizer_texts_go_through_uncounted():
    """And tokens are refused: what they say is not known here."""
    assert as_texts(None, ["the cat"]) == (["the cat"], 0)
    with pytest.raises(ApiError, match="does not say what tokenizes") as caught:
        as_texts(None, ["the cat", CAT])
    assert (caught.value.status, caught.value.param) == (400, "input")


def test_a_model_is_asked_again_after_a_while(monkeypatch):
    """It says nothing new unless it was loaded anew."""

    async def work(server, tokens):
        first = await tokens.of(MODEL)
        assert await tokens.of(MODEL) is first
        monkeypatch.setattr(embedding_tokens, "FRESH_S", 0.0)
        assert (await tokens.of(MODEL)).tokenizer is first.tokenizer
        server.load("2", max_length=2)
        assert (first.most, (await tokens.of(MODEL)).most) == (8, 2)
        return server.asked

    known = ["", "1", "1"]
    assert asked(work) == [("text", "split", each) for each in known]


def test_a_model_that_says_nothing_is_not_asked():
    """Those of other backends, and those that name their tensors themselves."""

    async def work(server, tokens):
        found = await tokens.of(ServedModel(name="text", ability=Ability.EMBEDDING, input="words"))
        return found, server.asked

    assert asked(work) == (None, [])


@pytest.mark.parametrize("said", ["", "{", "[]", '{"id": 1}', '{"id": 1, "tokenizer": "{"}'])
def test_what_is_no_tokenizer_is_told(said):
    """Another release's may be."""

    async def work(server, tokens):
        async def tokenizer(*_):
            return said

        server.tokenizer = tokenizer
        with pytest.raises(ApiError, match=r"of itself|does not say how"):
            await tokens.of(MODEL)

    asked(work)


def test_what_comes_beside_a_tokenizer_has_to_be_options():
    """Else it is not known how it is used."""

    async def work(server, tokens):
        server.said["options"] = []
        with pytest.raises(ApiError, match="of itself"):
            await tokens.of(MODEL)

    asked(work)
