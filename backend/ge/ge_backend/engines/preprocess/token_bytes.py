"""The bytes of single tokens, which their text does not tell where they are a part of a letter.

Two kinds of tokenizers have such tokens: those that write each byte as a letter (GPT-2's and its
successors') and those that have a token `<0x0A>` for each byte (SentencePiece's byte fallback).
"""

from __future__ import annotations

import re

import tokenizers

__all__ = ["token_bytes"]

_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
# Bytes that are letters by themselves; the others follow from 256 on. Source: GPT-2's encoder.
_PLAIN = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = sorted(set(range(256)) - set(_PLAIN))
_BYTE_OF = {chr(byte): byte for byte in _PLAIN} | {
    chr(256 + place): byte for place, byte in enumerate(_OTHERS)
}


def token_bytes(tokenizer: tokenizers.Tokenizer, token: int) -> bytes | None:
    """Return a token's bytes; None where they are not those that its text is made of."""
    name, text = tokenizer.id_to_token(token), tokenizer.decode([token], skip_special_tokens=False)
    if name is None:
        return None
    fallback = _FALLBACK.fullmatch(name)
    if fallback:
        block = bytes([int(fallback.group(1), 16)])
    elif set(name) <= _BYTE_OF.keys():
        block = bytes(_BYTE_OF[letter] for letter in name)
    else:
        return None
    return block if block.decode(errors="replace") == text else None
