"""What a client asks of an embedding model, and the answer it gets."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np

from ge_openai.api_error import ApiError
from ge_openai.fields import Fields, texts_or_tokens
from ge_openai.models import Array

__all__ = ["EmbeddingBody", "check_dimensions", "embedding_answer", "read_embedding"]

# As many as OpenAI takes.
MAX_INPUTS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingBody:
    """A request for `/v1/embeddings`.

    Attributes:
        inputs: texts, or tokens of one.
        base64: vectors are float32, little endian, as base64; else lists of numbers.
        dimensions: the size that is expected, None if any.
    """

    model: str
    inputs: tuple[str | tuple[int, ...], ...]
    base64: bool
    dimensions: int | None


def read_embedding(block: bytes) -> EmbeddingBody:
    """Return what a body asks for.

    Raises:
        ApiError: a field is unknown, not supported, or impossible.
    """
    fields = Fields(block)
    model = fields.text("model")
    inputs = texts_or_tokens("input", fields.take("input"), MAX_INPUTS, empty=True)
    form = fields.take("encoding_format")
    if form not in (None, "float", "base64"):
        raise ApiError("encoding_format is 'float' or 'base64'", param="encoding_format")
    dimensions = fields.whole("dimensions", 1, 2**31 - 1)
    fields.take("user")
    fields.end()
    return EmbeddingBody(model=model, inputs=inputs, base64=form == "base64", dimensions=dimensions)


def check_dimensions(asked: EmbeddingBody, size: int) -> None:
    """See that vectors of a size are what is asked for.

    Raises:
        ApiError: another size is.
    """
    if asked.dimensions not in {None, size}:
        raise ApiError(
            f"dimensions is {asked.dimensions}; this model's embeddings have {size}",
            param="dimensions",
        )


def embedding_answer(asked: EmbeddingBody, vectors: Array, tokens: int) -> dict[str, Any]:
    """Return the answer: `vectors` are float32 [inputs, size], `tokens` are of all inputs together.

    Raises:
        ApiError: another size was asked for.
    """
    check_dimensions(asked, vectors.shape[1])
    data = [
        {"object": "embedding", "index": index, "embedding": _vector(row, as_text=asked.base64)}
        for index, row in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": asked.model, "usage": usage}


def _vector(row: Array, *, as_text: bool) -> Any:
    if not as_text:
        return row.tolist()
    return base64.b64encode(row.astype(np.dtype("<f4")).tobytes()).decode()
