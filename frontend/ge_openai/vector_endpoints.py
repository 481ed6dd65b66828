"""The endpoints of models that take texts in batches: embeddings, and scores of pairs."""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ge_openai.api_error import CONTEXT_LENGTH_EXCEEDED, TOO_LONG, ApiError
from ge_openai.connected import in_turns, while_connected
from ge_openai.embedding_tokens import EmbeddingTokens, ModelTokens, as_texts
from ge_openai.fields import Fields, texts_or_tokens
from ge_openai.incoming import Incoming
from ge_openai.models import Ability, Array, ServedModel
from ge_openai.rank_body import (
    Pairs,
    check_scores,
    read_rerank,
    read_score,
    rerank_answer,
    score_answer,
)
from ge_openai.triton import TritonConnection

__all__ = [
    "EmbeddingBody",
    "VectorEndpoints",
    "check_dimensions",
    "embedding_answer",
    "fitted",
    "read_embedding",
]

# Of one request, under way at once: all of them could fill a model's queue.
MAX_BATCHES = 8
# As many as OpenAI takes.
MAX_INPUTS = 2048


class VectorEndpoints:
    """What answers requests for embeddings, rankings and scores.

    Args:
        connection: returns the connection to the server, which begins with the first request.
    """

    def __init__(self, incoming: Incoming, connection: Callable[[], TritonConnection]) -> None:
        self._incoming = incoming
        self._tokens = EmbeddingTokens(connection)
        self._triton = connection

    async def embeddings(self, request: Request) -> Response:
        """Give a vector per text."""
        asked = read_embedding(await self._incoming.body(request))
        model = await self._triton().model(asked.model, Ability.EMBEDDING)
        if model.size > 0:  # else only the vectors tell
            check_dimensions(asked, model.size)
        self._incoming.check_texts(asked.inputs, "input")
        known = await self._tokens.of(model)
        texts, tokens = await asyncio.to_thread(as_texts, known, asked.inputs)
        vectors = await self._vectors(request, model, (texts,))
        return JSONResponse(embedding_answer(asked, vectors, tokens))

    async def rerank(self, request: Request) -> Response:
        """Put documents in the order of their relevance to a query."""
        asked = read_rerank(await self._incoming.body(request))
        model, scores, tokens = await self._scored(request, asked.pairs)
        return JSONResponse(rerank_answer(asked, model, scores, tokens, _name("rerank")))

    async def score(self, request: Request) -> Response:
        """Give a score per pair of texts."""
        asked = read_score(await self._incoming.body(request))
        model, scores, tokens = await self._scored(request, asked)
        head = {"id": _name("score"), "created": int(time.time())}
        return JSONResponse(score_answer(asked, model, scores, tokens, head))

    async def _scored(self, request: Request, pairs: Pairs) -> tuple[ServedModel, Array, int]:
        """Return the model of pairs, what it gives for each, and how many tokens they have."""
        model = await self._triton().model(pairs.model, Ability.RANKING)
        self._incoming.check_texts(tuple(dict.fromkeys(pairs.queries)), pairs.names[0])
        self._incoming.check_texts(pairs.documents, pairs.names[1])
        known = await self._tokens.of(model)
        documents, tokens = await asyncio.to_thread(fitted, known, pairs)
        scores = await self._vectors(request, model, (pairs.queries, documents))
        return model, check_scores(pairs, scores), tokens

    async def _vectors(
        self, request: Request, model: ServedModel, columns: Sequence[Sequence[str]]
    ) -> Array:
        """Return [rows, size]: what a model gives for rows of texts, however many there are."""
        count = len(columns[0])
        rows = model.rows or count
        parts = [
            [[text.encode() for text in column[start : start + rows]] for column in columns]
            for start in range(0, count, rows)
        ]
        work = in_turns(partial(self._triton().vectors, model), parts, MAX_BATCHES)
        return np.concatenate(await while_connected(request, work))


def _name(kind: str) -> str:
    """Return a name for an answer of a kind."""
    return f"{kind}-{secrets.token_hex(12)}"


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


def fitted(tokens: ModelTokens | None, pairs: Pairs) -> tuple[tuple[str, ...], int]:
    """Return the documents, cut as is asked for, and how many tokens all pairs have for the model.

    `tokens` are the model's, None where it does not say how it tokenizes: nothing is counted then.

    Raises:
        ApiError: a pair is too long and must not be cut, or cannot be; or it takes the tokenizer
            to know, which is unknown.
    """
    if tokens is None:
        _check_nothing_is_asked(pairs)
        return pairs.documents, 0
    try:
        return _fitted(tokens, pairs)
    except ValueError as error:
        raise ApiError(str(error), param=pairs.names[1]) from error


def _fitted(tokens: ModelTokens, pairs: Pairs) -> tuple[tuple[str, ...], int]:
    cut, options = pairs.cut, tokens.options
    prepared = list(map(options.prepared, pairs.documents))
    queries = dict.fromkeys(pairs.queries)
    counts = tokens.tokenizer.lengths([options.prepared(query) for query in queries])
    of_query = dict(zip(queries, counts, strict=True))
    special = tokens.tokenizer.around(pair=True) if options.add_special_tokens else 0
    refused = cut.never or options.overflow == "error"
    documents, total = list(pairs.documents), 0
    for place, length in enumerate(tokens.tokenizer.lengths(prepared)):
        around = of_query[pairs.queries[place]] + special
        room = min(cut.document or length, length)
        if cut.pair:
            room = min(room, cut.pair - around)
        if room < 0:
            raise ApiError(
                f"truncate_prompt_tokens is {cut.pair}, and {pairs.names[0]} has {around} tokens, "
                "special ones of the pair included; only documents are cut",
                param="truncate_prompt_tokens",
            )
        if room < length:
            documents[place] = tokens.tokenizer.beginning(prepared[place], room)
        count = around + room
        if tokens.most and count > tokens.most and refused:
            raise ApiError(
                f"this model's {TOO_LONG} {tokens.most} tokens, special ones included, and "
                f"{pairs.names[0]} and {pairs.names[1]}[{place}] have {count}: send a shorter text",
                param=pairs.names[1],
                code=CONTEXT_LENGTH_EXCEEDED,
            )
        total += min(count, tokens.most or count)
    return tuple(documents), total


def _check_nothing_is_asked(pairs: Pairs) -> None:
    cut = pairs.cut
    asked = {
        "max_tokens_per_doc": cut.document,
        "truncate_prompt_tokens": cut.pair,
        "truncation": cut.never,
    }
    for field in (name for name, given in asked.items() if given):
        raise ApiError(
            f"{field} needs the model's tokenizer, and the model does not say what tokenizes its "
            "texts; leave it out",
            param=field,
        )
