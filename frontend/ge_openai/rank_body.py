"""What a client asks of a model that ranks pairs of texts, and the answers it gets.

The bodies are those that Jina, Cohere and vLLM share. Sources: Cohere's API reference, `rerank` of
versions 1 and 2; vLLM's `entrypoints/pooling` from 0.12 on; the clients cohere 7.3.1
and langchain-community 0.4.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ge_openai.api_error import ApiError
from ge_openai.fields import Fields
from ge_openai.models import Array, ServedModel

__all__ = [
    "Cut",
    "Pairs",
    "RerankBody",
    "check_scores",
    "read_rerank",
    "read_score",
    "rerank_answer",
    "score_answer",
]

# As many as Cohere takes.
MAX_PAIRS = 10_000
_MOST = 2**31 - 1
# What vLLM's releases call the two sides of pairs.
_FIRST = ("text_1", "queries", "data_1")
_SECOND = ("text_2", "documents", "items", "data_2")
# vLLM's switch, and what it was called before.
_ACTIVATION = ("use_activation", "activation", "softmax")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What is left out of texts that are long; without any of it the model's tokenizer decides.

    Attributes:
        document: the most tokens of a document, without special ones; 0: any number.
        pair: the most tokens of a pair, special ones included; 0: any number.
        never: a pair that the model would cut is refused instead.
    """

    document: int = 0
    pair: int = 0
    never: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Pairs of texts to be scored.

    Attributes:
        queries: as many as there are documents.
        names: what the fields of both are called.
        raw: scores are wanted as the model gives them.
    """

    model: str
    queries: tuple[str, ...]
    documents: tuple[str, ...]
    names: tuple[str, str]
    raw: bool
    cut: Cut


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankBody:
    """A request for `/v1/rerank`.

    Attributes:
        top: how many of the best are reported.
        shown: the documents, to be reported with their scores; none: they are not.
    """

    pairs: Pairs
    top: int
    shown: tuple[Mapping[str, Any], ...]


def read_rerank(block: bytes) -> RerankBody:
    """Return what a body asks for.

    Raises:
        ApiError: a field is unknown, not supported, or impossible.
    """
    fields = Fields(block)
    query = fields.text("query")
    given = _several("documents", fields.take("documents"))
    documents = tuple(_document(place, one) for place, one in enumerate(given))
    texts = tuple(document["text"] for document in documents)
    fields.only("rank_fields", ["text"], why="documents are ranked by their text alone")
    top = fields.whole("top_n", 0, _MOST) or len(texts)  # 0 is vLLM's word for all
    shown = fields.flag("return_documents", absent=True)
    fields.only("max_chunks_per_doc", 1, why="a document is not ranked in pieces; split it before")
    most = fields.whole("max_tokens_per_doc", 1, _MOST) or 0
    pairs = _pairs(fields, ("query", "documents"), (query,) * len(texts), texts, most)
    return RerankBody(pairs=pairs, top=top, shown=documents if shown else ())


def read_score(block: bytes) -> Pairs:
    """Return what a body asks for: one text beside each of several, or two lists side by side.

    Raises:
        ApiError: a field is unknown, not supported, or impossible.
    """
    fields = Fields(block)
    (first, queries), (second, documents) = (_side(fields, _FIRST), _side(fields, _SECOND))
    if len(queries) == 1:
        queries *= len(documents)
    if len(queries) != len(documents):
        raise ApiError(
            f"{first} has {len(queries)} texts and {second} {len(documents)}; expected one of the "
            "former, or as many of both",
            param=first,
        )
    return _pairs(fields, (first, second), queries, documents, 0)


def check_scores(pairs: Pairs, scores: Array) -> Array:
    """Return float64 [pairs] of what a model gives, [pairs, size].

    Raises:
        ApiError: it is not one number for each pair.
    """
    if scores.shape[1] != 1:
        raise ApiError(
            f"the model {pairs.model!r} gives {scores.shape[1]} numbers for a pair; a ranker gives "
            "one",
            param="model",
        )
    column: Array = scores[:, 0].astype(np.float64)
    if wrong := np.flatnonzero(np.isnan(column)).tolist():
        raise ApiError(
            f"the model {pairs.model!r} gives no number as the score of "
            f"{pairs.names[1]}[{wrong[0]}]",
            status=500,
        )
    return column


def rerank_answer(
    asked: RerankBody, model: ServedModel, scores: Array, tokens: int, name: str
) -> dict[str, Any]:
    """Return the answer: `scores` are [pairs], `tokens` are of all pairs, `name` is its own."""
    best = np.argsort(-scores, kind="stable")[: asked.top].tolist()
    reported = _reported(asked.pairs, model, scores)
    results = [
        {
            "index": place,
            "relevance_score": reported[place],
            **({"document": asked.shown[place]} if asked.shown else {}),
        }
        for place in best
    ]
    head = {"id": name, "model": asked.pairs.model}
    return {**head, "results": results, "usage": _usage(tokens)}


def score_answer(
    asked: Pairs, model: ServedModel, scores: Array, tokens: int, head: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the answer: `scores` are [pairs], `tokens` are of all, `head` has id and time."""
    data = [
        {"index": place, "object": "score", "score": score}
        for place, score in enumerate(_reported(asked, model, scores))
    ]
    return {**head, "object": "list", "model": asked.model, "data": data, "usage": _usage(tokens)}


def _pairs(
    fields: Fields,
    names: tuple[str, str],
    queries: tuple[str, ...],
    documents: tuple[str, ...],
    most: int,
) -> Pairs:
    """Return pairs, with the fields that both requests have; no others may be left."""
    length = fields.whole("truncate_prompt_tokens", -1, _MOST)
    if length == 0:
        raise ApiError(
            "truncate_prompt_tokens is 0; expected a number of tokens, or -1 for as many as the "
            "model takes",
            param="truncate_prompt_tokens",
        )
    never = not fields.flag("truncation", absent=True)
    switches = [fields.flag(name, absent=True) for name in _ACTIVATION]
    fields.only("priority", 0, why="pairs are scored in the order in which they come")
    fields.take("user")
    model = fields.text("model")
    fields.end()
    cut = Cut(document=most, pair=max(length or 0, 0), never=never)
    return Pairs(
        model=model,
        queries=queries,
        documents=documents,
        names=names,
        raw=not all(switches),
        cut=cut,
    )


def _side(fields: Fields, names: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return what one side of the pairs is called, and its texts."""
    given = {name: texts for name in names if (texts := fields.take(name)) is not None}
    if len(given) > 1:
        one, other = list(given)[:2]
        raise ApiError(f"{one} and {other} are the same; leave one out", param=other)
    if not given:
        raise ApiError(f"expected one of {', '.join(names)}, got none", param=names[0])
    ((name, texts),) = given.items()
    return name, _texts(name, texts)


def _several(name: str, given: Any) -> Sequence[Any]:
    if not isinstance(given, list) or not given:
        raise ApiError(
            f"{name} has to be a list of one text at least, got {given!r:.80}", param=name
        )
    if len(given) > MAX_PAIRS:
        raise ApiError(f"{name} has {len(given)} texts; at most {MAX_PAIRS}", param=name)
    return given


def _document(place: int, given: Any) -> Mapping[str, Any]:
    """Return a document as it is repeated; what an object has beside its text is not ranked."""
    document = {"text": given} if isinstance(given, str) else given
    if isinstance(document, dict) and isinstance(document.get("text"), str):
        return document
    raise ApiError(
        f"documents[{place}] has to be a text, or an object with a text as 'text', got "
        f"{given!r:.80}",
        param="documents",
    )


def _texts(name: str, given: Any) -> tuple[str, ...]:
    texts = _several(name, [given] if isinstance(given, str) else given)
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise ApiError(f"{name}[{place}] has to be a text, got {text!r:.80}", param=name)
    return tuple(texts)


def _reported(pairs: Pairs, model: ServedModel, scores: Array) -> list[float]:
    if model.logits and not pairs.raw:
        scores = np.exp(-np.logaddexp(0.0, -scores))  # a sigmoid that never overflows
    # JSON has no infinity.
    limits = np.finfo(np.float32)
    reported: list[float] = np.clip(scores, limits.min, limits.max).tolist()
    return reported


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": tokens, "total_tokens": tokens}
