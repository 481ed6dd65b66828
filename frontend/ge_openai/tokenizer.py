"""A tokenizer of Hugging Face that counts: it neither cuts texts nor fills them up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tokenizers

__all__ = ["TextTokenizer"]


class TextTokenizer:
    """The tokens of texts.

    Args:
        written: JSON, as in `tokenizer.json`.

    Attributes:
        most: tokens of a text, special ones included, that the file says; 0: any number.

    Raises:
        ValueError: the library reads no tokenizer in it.
    """

    def __init__(self, written: str) -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(written)
        except Exception as error:  # the library raises nothing more particular
            raise ValueError(f"not a tokenizer of Hugging Face: {error}") from error
        self.most: int = (self._tokenizer.truncation or {}).get("max_length", 0)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        """Return tokens, with the special ones that the tokenizer adds by itself if wanted.

        Raises:
            ValueError: the text cannot be told in its tokens, or is no Unicode.
        """
        (encoding,) = _tried(self._tokenizer.encode_batch_fast, [text], special=special)
        return tuple(encoding.ids)

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Return how many tokens each text has, without special ones.

        Raises:
            ValueError: as `encode`.
        """
        found = _tried(self._tokenizer.encode_batch_fast, list(texts), special=False)
        return [len(encoding.ids) for encoding in found]

    def around(self, *, pair: bool) -> int:
        """Return how many special tokens are put around a text, or around a pair of them."""
        return int(self._tokenizer.num_special_tokens_to_add(is_pair=pair))

    def beginning(self, text: str, most: int) -> str:
        """Return as much of a text as has at most that number of tokens; whole characters.

        Raises:
            ValueError: as `encode`.
        """
        (encoding,) = _tried(self._tokenizer.encode_batch, [text], special=False)
        for last in range(min(most, len(encoding.ids)), 0, -1):
            begun = text[: encoding.offsets[last - 1][1]]
            # A half of a word, or of a character, may have more tokens alone.
            if self.lengths([begun])[0] <= most:
                return begun
        return ""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text without special tokens."""
        return str(self._tokenizer.decode(list(ids)))


def _tried(encode: Callable[..., list[Any]], texts: list[str], *, special: bool) -> list[Any]:
    """Encode, as a batch, which lets other threads go on."""
    try:
        return encode(texts, add_special_tokens=special)
    except Exception as error:  # as above
        raise ValueError(f"the text cannot be tokenised: {error}") from error
