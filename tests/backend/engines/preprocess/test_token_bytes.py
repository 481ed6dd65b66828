"""The bytes of tokens that are parts of letters."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from ge_backend.engines.preprocess.token_bytes import token_bytes

LETTER = "\u05d0"


def byte_level():
    """Like GPT-2's: each byte is a letter of its own."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def byte_fallback():
    """Like Llama 2's: letters that it does not know are bytes."""
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "a", "ħ"]
    vocabulary = [(token, -float(number)) for number, token in enumerate(tokens)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
@pytest.mark.parametrize("text", [LETTER, "\n", "\ufffd", "😀"])
def test_all_tokens_of_a_letter_are_its_bytes(make, text):
    """Each by itself is no letter, unless the letter has one byte."""
    tokenizer = make()
    blocks = [token_bytes(tokenizer, token) for token in tokenizer.encode(text).ids]
    assert b"".join(blocks) == text.encode()


def test_a_token_whose_text_is_something_else_has_none():
    """A letter of a vocabulary that looks like a byte of another kind, and one that is not there."""
    tokenizer = byte_fallback()
    assert token_bytes(tokenizer, tokenizer.token_to_id("ħ")) is None
    assert token_bytes(tokenizer, tokenizer.token_to_id("a")) == b"a"
    assert token_bytes(tokenizer, 10**6) is None
