"""The tokens of pairs of texts: how many there are, and documents that are cut to fit."""

from __future__ import annotations

from ge_openai.api_error import CONTEXT_LENGTH_EXCEEDED, TOO_LONG, ApiError
from ge_openai.embedding_tokens import ModelTokens
from ge_openai.rank_body import Pairs

__all__ = ["fitted"]


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
