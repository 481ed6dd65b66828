"""Tokens of an embedding model's texts."""

import pytest

from builders.closed import closed
from builders.text import VOCABULARY, write_tokenizer
from ge_openai.api_error import ApiError
from ge_openai.embedding_tokens import EmbeddingTokens
from ge_openai.models import Ability, ServedModel

MODEL = ServedModel(name="text", ability=Ability.EMBEDDING, input="words", output="e", size=2)
ENSEMBLE = """platform: "ensemble"
input [ { name: "words" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "e" data_type: TYPE_FP32 dims: [ 2 ] } ]
ensemble_scheduling { step [
  { model_name: "encoder" input_map { key: "i" value: "ids" } output_map { key: "e" value: "e" } },
  { model_name: "split" input_map { key: "text" value: "words" }
    output_map { key: "input_ids" value: "ids" } }
] }
"""
CAT = tuple(VOCABULARY[word] for word in ("the", "cat", "##s"))


@pytest.fixture
def repository(tmp_path):
    """An ensemble behind a tokenizer of at most 8 tokens, and both fused into one model."""
    write(tmp_path, "text", ENSEMBLE)
    write(tmp_path, "fused", 'backend: "ge" ' + parameter("fuse", "text"))
    write(tmp_path, "split", 'backend: "ge"')
    write_tokenizer(tmp_path / "split" / "1" / "tokenizer.json")
    return tmp_path


def write(repository, name, config):
    (repository / name / "1").mkdir(parents=True, exist_ok=True)
    (repository / name / "config.pbtxt").write_text(config)


def parameter(key, value):
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }} '


def named(name):
    return ServedModel(name=name, ability=Ability.EMBEDDING, input="words", output="e", size=2)


@pytest.mark.parametrize("name", ["text", "fused"])
def test_tokens_are_counted_by_the_ensembles_own_tokenizer(repository, name):
    """Special ones included, as the model computes them, too."""
    texts = ("the cat", "a mat sat on the cats")
    assert EmbeddingTokens((repository,)).texts(named(name), texts[:1]) == (["the cat"], 4)
    with pytest.raises(ApiError, match=r"length is 8 tokens.*input\[1\] has 9") as caught:
        EmbeddingTokens((repository,)).texts(named(name), texts)
    assert (caught.value.status, caught.value.param) == (400, "input")


def test_the_models_options_count(repository):
    """Its longest text, and whether special tokens are added."""
    options = parameter("tokenizer.max_length", "2")
    write(repository, "split", 'backend: "ge" ' + options)
    with pytest.raises(ApiError, match=r"length is 2 tokens.*has 3"):
        EmbeddingTokens((repository,)).texts(MODEL, ["cat"])
    write(
        repository, "split", 'backend: "ge" ' + parameter("tokenizer.add_special_tokens", "false")
    )
    assert EmbeddingTokens((repository,)).texts(MODEL, ["cat"]) == (["cat"], 1)


def test_texts_are_prepared_as_the_model_does(repository):
    """So are texts that tokens are of: what the model makes of them is what counts."""
    write_tokenizer(repository / "split" / "1" / "tokenizer.json", exact=True)
    assert EmbeddingTokens((repository,)).texts(MODEL, [" Cat "])[1] == 5
    options = parameter("tokenizer.strip", "true") + parameter("tokenizer.lower_case", "true")
    write(repository, "split", 'backend: "ge" ' + options)
    assert EmbeddingTokens((repository,)).texts(MODEL, [" Cat "]) == ([" Cat "], 3)


def test_a_model_may_be_its_own_tokenizer(tmp_path):
    """The file lies beside it, and has no limit there."""
    write(tmp_path, "text", 'backend: "ge"')
    write_tokenizer(tmp_path / "text" / "1" / "tokenizer.json", max_length=0)
    assert EmbeddingTokens((tmp_path,)).texts(MODEL, ["the cat " * 9])[1] == 20


@pytest.mark.parametrize("ids", [CAT, (VOCABULARY["[CLS]"], *CAT, VOCABULARY["[SEP]"])])
def test_tokens_become_the_text_that_they_are_of(repository, ids):
    """With special ones and without."""
    assert EmbeddingTokens((repository,)).texts(MODEL, [ids]) == (["the cats"], 5)


@pytest.mark.parametrize("ids", [(VOCABULARY["##s"],), (VOCABULARY["[UNK]"],), (10_000,)])
def test_tokens_of_no_text_are_refused(repository, ids):
    """The embedding would be another text's."""
    with pytest.raises(ApiError, match=r"input\[0\] holds tokens .* of no text"):
        EmbeddingTokens((repository,)).texts(MODEL, [ids])


def test_without_the_tokenizer_texts_go_through_uncounted(repository):
    """And tokens are refused: nobody here knows what they say."""
    for given in (EmbeddingTokens(()), EmbeddingTokens((repository / "split",))):
        assert given.texts(MODEL, ["the cat"]) == (["the cat"], 0)
        with pytest.raises(ApiError, match="--model-repository"):
            given.texts(MODEL, [CAT])


def test_another_tokenizer_is_read(repository):
    """A replaced file, other options, and a new version of the model."""
    tokens = EmbeddingTokens((repository,))
    assert tokens.texts(MODEL, ["cat"])[1] == 3
    file = repository / "split" / "1" / "tokenizer.json"
    write_tokenizer(file, max_length=2)
    with pytest.raises(ApiError, match="length is 2 tokens"):
        tokens.texts(MODEL, ["cat"])
    options = parameter("tokenizer.max_length", "16")
    write(repository, "split", 'backend: "ge" ' + options)
    assert tokens.texts(MODEL, ["cat"])[1] == 3
    (repository / "split" / "2").mkdir()
    assert tokens.texts(MODEL, ["cat"])[1] == 0
    (repository / "split" / "2" / "tokenizer.json").write_text("{")
    assert tokens.texts(MODEL, ["cat"])[1] == 0
    write_tokenizer(repository / "split" / "2" / "tokenizer.json")
    assert tokens.texts(MODEL, ["cat"])[1] == 3


def test_a_folder_that_we_may_not_look_into_is_as_one_that_is_not_here(repository):
    """Texts are not counted."""
    with closed(repository / "text"):
        assert EmbeddingTokens((repository,)).texts(MODEL, ["the cat"]) == (["the cat"], 0)
