"""The endpoints of models that take texts in batches: embeddings, and scores of pairs."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ge_openai.connected import in_turns, while_connected
from ge_openai.embedding_body import check_dimensions, embedding_answer, read_embedding
from ge_openai.embedding_tokens import EmbeddingTokens, as_texts
from ge_openai.incoming import Incoming
from ge_openai.models import Ability, Array, ServedModel
from ge_openai.pair_tokens import fitted
from ge_openai.rank_body import (
    Pairs,
    check_scores,
    read_rerank,
    read_score,
    rerank_answer,
    score_answer,
)
from ge_openai.triton import TritonConnection

__all__ = ["VectorEndpoints"]

# Of one request, under way at once: all of them could fill a model's queue.
MAX_BATCHES = 8


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
