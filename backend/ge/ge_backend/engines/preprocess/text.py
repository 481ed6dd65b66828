"""A checkpoint's tokenizer for text generation: text to tokens, and tokens to text as they come.

The file is `tokenizer.json`. Templates of chats are the clients' affair.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from ge_backend.device.failures import reason
from ge_backend.engines.preprocess.load import load_tokenizer
from ge_backend.errors import InvalidRequest
from ge_backend.tensors import Array

__all__ = ["TextTokenizer", "open_tokenizer", "token_bytes"]

REPLACEMENT = "\ufffd"  # what decoders write for bytes that are no character
_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
# Bytes that are letters by themselves; the others follow from 256 on. Source: GPT-2's encoder.
_PLAIN = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = sorted(set(range(256)) - set(_PLAIN))
_BYTE_OF = {chr(byte): byte for byte in _PLAIN} | {
    chr(256 + place): byte for place, byte in enumerate(_OTHERS)
}


def open_tokenizer(path: Path) -> TextTokenizer:
    """Return the tokenizer of a file, which never cuts and never pads.

    Raises:
        ModelError: as `load_tokenizer`.
    """
    tokenizer = load_tokenizer(path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return TextTokenizer(tokenizer)


class TextTokenizer:
    """A `Tokenizer` of text generation; see there.

    Attributes:
        special: names of the tokens that are no text, by token.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self.special = {token: said.content for token, said in added.items() if said.special}

    def encode(self, text: str, *, special: bool = True) -> Array:
        """Return int64 [T], with the special tokens that the tokenizer adds by itself if wanted.

        As a batch of one, because other threads go on only while the library encodes batches; and
        the fast way, which leaves out where each token stands in the text.

        Raises:
            InvalidRequest: the text cannot be told in its tokens, or is no Unicode.
        """
        (encoding,) = _tried(self._tokenizer.encode_batch_fast, [text], special=special)
        return np.array(encoding.ids, np.int64)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text without special tokens."""
        return str(self._tokenizer.decode([int(token) for token in ids]))

    def token_bytes(self, token: int) -> bytes | None:
        """Return the bytes of a token that may be a part of a letter; None where not known."""
        return token_bytes(self._tokenizer, int(token))

    def stream(self, ids: Sequence[int] = (), *, special: bool = False) -> _Stream:
        """Return a stream whose text goes on behind these tokens; it may have special ones."""
        left_out = frozenset[int](() if special else self.special)
        return _Stream(self._tokenizer, left_out, [int(token) for token in ids])


def _tried(encode: Callable[..., list[Any]], texts: list[str], *, special: bool) -> list[Any]:
    try:
        return encode(texts, add_special_tokens=special)
    except Exception as error:
        raise InvalidRequest(f"the text cannot be tokenised: {reason(error)}") from error


class _Stream:
    """The library's stream; where its decoder rewrites what it gave, it begins anew behind that.

    It decodes all since the latest text with each token. So it never gets those that are no text,
    of which there are thousands where an end of text ends nothing and is drawn again and again.
    """

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, left_out: frozenset[int], ids: list[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._left_out = left_out
        self._skips = bool(left_out)
        self._stream = tokenizers.decoders.DecodeStream(ids=ids, skip_special_tokens=self._skips)
        self._decoded, self._pending = ids, list[int]()  # tokens: of the latest text, and behind it

    def step(self, token: int) -> str:
        """Return the text that is certain now; "" while a character is incomplete."""
        if token in self._left_out:
            return ""
        self._pending.append(int(token))
        try:
            text = self._stream.step(self._tokenizer, int(token))
        except Exception:  # noqa: BLE001 - as above; told apart only by their text
            self._stream = tokenizers.decoders.DecodeStream(skip_special_tokens=self._skips)
            self._decoded = []  # with what is pending: a word alone would be without its space
            text = [self._stream.step(self._tokenizer, one) for one in self._pending][-1]
        if text:
            self._decoded, self._pending = self._pending, []
        return text or ""

    def rest(self) -> str:
        """Return the whole characters of tokens that have half of one, which ends with them."""
        pending, decoded = self._pending, self._decode(self._decoded).rstrip(REPLACEMENT)
        text = self._decode(self._decoded + self._pending)
        rest = text[len(decoded) :] if text.startswith(decoded) else self._decode(self._pending)
        self._decoded, self._pending = self._decoded + self._pending, []
        whole = rest.rstrip(REPLACEMENT)
        return whole if whole == rest else whole + REPLACEMENT * self._real_ends(pending)

    def _real_ends(self, tokens: list[int]) -> int:
        """Return how many letters at the end of a text are U+FFFD, and not halves of others."""
        blocks = (token_bytes(self._tokenizer, one) for one in tokens)
        known = b"".join(block or b"" for block in blocks).decode(errors="ignore")
        return len(known) - len(known.rstrip(REPLACEMENT))

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=self._skips))


def token_bytes(tokenizer: tokenizers.Tokenizer, token: int) -> bytes | None:
    """Return a token's bytes; None where they are not those that its text is made of.

    Its text does not tell them where they are a part of a letter. Two kinds of tokenizers have such
    tokens: those that write each byte as a letter (GPT-2's and its successors') and those that have
    a token `<0x0A>` for each byte (SentencePiece's byte fallback).
    """
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
