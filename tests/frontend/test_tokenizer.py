"""Tokens of texts are counted, and texts begin anew with some of them."""

import pytest

from builders.text import TEXT, VOCABULARY, byte_fallback, byte_level, write_tokenizer
from ge_openai.options import as_written
from ge_openai.tokenizer import TextTokenizer


@pytest.fixture(scope="module", params=[byte_level, byte_fallback])
def tokenizer(request):
    return TextTokenizer(request.param().to_str())


def test_a_text_is_told_in_the_tokens_of_its_file(tmp_path):
    """With special ones or without; it is never cut, though its file says how long it may be."""
    path = tmp_path / "tokenizer.json"
    write_tokenizer(path, max_length=3, pad={"length": 9})
    made = TextTokenizer(as_written(path))
    bare = tuple(VOCABULARY[word] for word in ("the", "cat", "sat", "on", "a", "mat"))
    assert made.most == 3
    assert made.encode("the cat sat on a mat", special=False) == bare
    whole = (VOCABULARY["[CLS]"], *bare, VOCABULARY["[SEP]"])
    assert made.encode("the cat sat on a mat", special=True) == whole
    assert made.lengths(["the cat", "a"]) == [2, 1]
    assert [made.around(pair=pair) for pair in (False, True)] == [2, 3]
    assert made.decode(whole) == "the cat sat on a mat"


def test_what_is_no_text_is_refused(tokenizer):
    """A half of a pair of surrogates has no tokens."""
    with pytest.raises(ValueError, match="cannot be tokenised"):
        tokenizer.encode("\ud800", special=True)


@pytest.mark.parametrize("content", ["", "{}", "\0"])
def test_a_file_that_is_no_tokenizer_is_refused(content):
    """With what the library says about it."""
    with pytest.raises(ValueError, match=r"not a tokenizer of Hugging Face: \w"):
        TextTokenizer(content)


def test_the_beginning_of_a_text_has_as_many_tokens_as_there_is_room_for(tokenizer):
    """Whole characters of it; all of a text that is short enough, and nothing for none."""
    (whole,) = tokenizer.lengths([TEXT])
    assert whole == len(tokenizer.encode(TEXT, special=False))
    assert tokenizer.beginning(TEXT, whole) == TEXT
    assert tokenizer.beginning(TEXT, 0) == ""
    begun = [tokenizer.beginning(TEXT, most) for most in range(1, whole)]
    for most, text in enumerate(begun, 1):
        assert TEXT.startswith(text)
        assert tokenizer.lengths([text])[0] <= most
    assert len(set(begun)) > whole // 4
    assert [len(text) for text in begun] == sorted(len(text) for text in begun)
