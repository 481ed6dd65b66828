"""The tokens of texts, by what the model that takes them says of its tokenizer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ge_openai.api_error import CONTEXT_LENGTH_EXCEEDED, TOO_LONG, ApiError
from ge_openai.described import reading
from ge_openai.models import ServedModel
from ge_openai.tokenizer import TextTokenizer
from ge_openai.triton import TritonConnection

__all__ = ["EmbeddingTokens", "ModelTokens", "TokenizerOptions", "as_texts", "model_tokens"]

Input = str | tuple[int, ...]
# Seconds until a model is asked again whether it was loaded anew.
FRESH_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerOptions:
    """What a model's options say beside its tokenizer's file.

    Attributes:
        max_length: tokens that a text may have, special ones included; 0 is what the file says.
        overflow: `truncate`, or `error` for a text that is longer.
        add_special_tokens: whether special tokens are put around a text.
        strip: whether white space around a text is left out.
        lower_case: whether a text is put in lower case first.
    """

    max_length: int = 0
    overflow: str = "truncate"
    add_special_tokens: bool = True
    strip: bool = False
    lower_case: bool = False

    def prepared(self, text: str) -> str:
        """Return what the tokenizer is given of a text."""
        text = text.strip() if self.strip else text
        return text.lower() if self.lower_case else text


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTokens:
    """Those of one model.

    Attributes:
        most: of a text, special ones included; 0 where the tokenizer has no limit.
    """

    tokenizer: TextTokenizer
    options: TokenizerOptions
    most: int

    def count(self, text: str, where: str) -> int:
        """Return how many tokens a text has.

        Raises:
            ApiError: more than the model takes, or the text cannot be told in tokens.
        """
        try:
            count = len(self._encode(text, special=self.options.add_special_tokens))
        except ValueError as error:
            raise ApiError(f"{where}: {error}", param="input") from error
        if self.most and count > self.most:
            raise ApiError(
                f"this model's {TOO_LONG} {self.most} tokens, special ones included, and {where} "
                f"has {count}: send a shorter text",
                param="input",
                code=CONTEXT_LENGTH_EXCEEDED,
            )
        return count

    def text(self, ids: tuple[int, ...], where: str) -> str:
        """Return the text that the tokenizer makes these very tokens of.

        Raises:
            ApiError: there is none.
        """
        text = self.tokenizer.decode(ids)
        made = [self._encode(text, special=special) for special in (False, True)]
        if ids not in made:
            raise ApiError(
                f"{where} holds tokens that this model's tokenizer makes of no text; send the "
                "text itself, or tokens of this model",
                param="input",
            )
        return text

    def _encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        return self.tokenizer.encode(self.options.prepared(text), special=special)


class EmbeddingTokens:
    """Tokens by model, as each says how it tokenizes its texts.

    A model is asked when its tokens are wanted, and asked again whether it is another by now where
    that is a second ago.

    Args:
        connection: returns the connection to the server, which begins with the first request.
    """

    def __init__(self, connection: Callable[[], TritonConnection]) -> None:
        self._triton = connection
        self._known: dict[str, _Said] = {}

    async def of(self, model: ServedModel) -> ModelTokens | None:
        """Return what tokenizes a model's texts; None where no model says that.

        Raises:
            ApiError: it cannot be asked, or says what is not known here.
        """
        asked = model.tokenized
        if asked is None:
            return None
        known = self._known.get(asked.name)
        now = time.monotonic()
        if known is None or now - known.asked >= FRESH_S:
            text = await self._triton().tokenizer(model, asked, known.id if known else "")
            if text:
                known = await asyncio.to_thread(_read, text)
            if known is None:
                raise ApiError(
                    f"the model {asked.name!r} does not say how it tokenizes", status=500
                )
            known = self._known[asked.name] = replace(known, asked=now)
        return known.tokens


def as_texts(tokens: ModelTokens | None, inputs: Sequence[Input]) -> tuple[list[str], int]:
    """Return inputs as texts, and how many tokens they have; 0 where the tokenizer is unknown.

    Raises:
        ApiError: an input is too long, or tokens that are no text.
    """
    texts = [
        given if isinstance(given, str) else _decoded(tokens, given, f"input[{place}]")
        for place, given in enumerate(inputs)
    ]
    if tokens is None:
        return texts, 0
    return texts, sum(tokens.count(text, f"input[{n}]") for n, text in enumerate(texts))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """What a model has said, and when it was asked last: seconds of `time.monotonic`."""

    id: str
    tokens: ModelTokens
    asked: float = 0.0


def _read(text: str) -> _Said:
    with reading(text) as said:
        return _Said(id=str(said["id"]), tokens=model_tokens(said["tokenizer"], said["options"]))


def model_tokens(written: str, given: Mapping[str, str]) -> ModelTokens:
    """Return the tokens of a model by a `tokenizer.json` and its options, as it says them.

    Raises:
        ValueError: either is none.
    """
    tokenizer = TextTokenizer(written)
    options = TokenizerOptions(
        max_length=int(given.get("max_length", "0")),
        overflow=given.get("overflow", "truncate"),
        add_special_tokens=given.get("add_special_tokens") != "false",
        strip=given.get("strip") == "true",
        lower_case=given.get("lower_case") == "true",
    )
    most = options.max_length or tokenizer.most
    return ModelTokens(tokenizer=tokenizer, options=options, most=most)


def _decoded(tokens: ModelTokens | None, ids: tuple[int, ...], where: str) -> str:
    if tokens is None:
        raise ApiError(
            f"{where} is tokens, and the model does not say what tokenizes its texts; send texts",
            param="input",
        )
    return tokens.text(ids, where)
