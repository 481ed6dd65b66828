"""Drawing the next token of every row of a step, all rows at once.

Each kind of wish is work for the rows that have it and for no others. What a row gets depends on
its own scores, its own wishes and (seed, position) alone. Letters: S rows, V tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from ge_backend.errors import GeError, GraphFailed, InvalidRequest
from ge_backend.tensors import Array
from ge_text.models.batch import Drawn, SampleRow
from ge_text.models.sampling import uniform
from ge_text.torch.penalties import adjusted

__all__ = ["distribution", "draw"]

# Candidates among which the end of `top_p` is looked for, first few, before everything is sorted.
CANDIDATES = (128, 1024, 8192)


def draw(logits: torch.Tensor, rows: Sequence[SampleRow]) -> Drawn:
    """Return one token for each row of scores FP [S, V], which are not changed.

    A row fails alone where its scores are not numbers, or where it forbids every token itself.
    """
    scores = adjusted(logits, rows)
    tokens, highest = _best(scores)
    sampled = [index for index, row in enumerate(rows) if not row.sampling.greedy]
    if sampled:
        tokens[sampled] = _sampled(scores, [rows[index] for index in sampled], sampled)
    failed: dict[int, GeError] = {}
    for index in np.flatnonzero(~np.isfinite(highest)).tolist():
        tokens[index] = 0
        failed[index] = _failure(float(highest[index]), logits[index], rows[index].position)
    logprobs = np.full(len(rows), np.nan, np.float32)
    ranks = np.zeros(len(rows), np.int64)
    top: list[tuple[Array, Array] | None] = [None] * len(rows)
    for index, row in enumerate(rows):
        if row.sampling.logprobs is not None and index not in failed:
            logprobs[index], ranks[index], top[index] = _logprobs(
                logits[index], int(tokens[index]), row.sampling.logprobs
            )
    return Drawn(tokens=tokens, logprobs=logprobs, ranks=ranks, top=tuple(top), failed=failed)


def distribution(scores: torch.Tensor, rows: Sequence[SampleRow]) -> torch.Tensor:
    """Return the probabilities that tokens are drawn with, float32 [S, V]: zero what is cut off.

    Tokens whose scores are equal are kept or cut off together.

    Args:
        scores: float32 [S, V], as `adjusted` returns them.
        rows: S of them, none greedy.
    """
    wishes = [row.sampling for row in rows]

    def column(values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=scores.dtype, device=scores.device).unsqueeze(1)

    heat = column([wish.temperature for wish in wishes])
    scaled = scores / heat
    lowest = torch.full_like(heat, -torch.inf)
    if any(wish.min_p for wish in wishes):
        least = column([wish.min_p for wish in wishes]).log()
        lowest = torch.maximum(lowest, scaled.amax(-1, keepdim=True) + least)
    limited = [index for index, wish in enumerate(wishes) if 0 < wish.top_k < scaled.shape[1]]
    if limited:
        counts = torch.tensor([wishes[index].top_k for index in limited], device=scores.device)
        values = scaled[limited].topk(int(counts.max())).values
        kth = values.gather(1, counts.unsqueeze(1) - 1)
        lowest[limited] = torch.maximum(lowest[limited], kth)
    nuclear = [index for index, wish in enumerate(wishes) if wish.top_p < 1]
    if nuclear:
        kept = scaled if len(nuclear) == len(scaled) else scaled[nuclear]
        if limited or any(wish.min_p for wish in wishes):
            kept = torch.where(kept < lowest[nuclear], -torch.inf, kept)
        mass = column([wishes[index].top_p for index in nuclear])
        lowest[nuclear] = torch.maximum(lowest[nuclear], _nucleus(kept, mass))
    return torch.softmax(torch.where(scaled < lowest, -torch.inf, scaled), -1)


def _failure(highest: float, logits: torch.Tensor, position: int) -> GeError:
    """Return what is wrong with scores of which none is finite, made from the model's own [V]."""
    if highest == -math.inf and bool(logits.max().isfinite()):
        return InvalidRequest(
            f"the request forbids every token at position {position}; what it forbids (bad_words, "
            "stop tokens below min_tokens) leaves nothing of the form that it asks for"
        )
    return GraphFailed(
        f"the highest score of the token at position {position} is {highest}; the model's numbers "
        "overflowed"
    )


def _best(scores: torch.Tensor) -> tuple[Array, Array]:
    """Return the token with the highest score, the lowest id of several, and the score: [S] each.

    NaN counts as highest. numpy's search is vectorised and takes the first; torch's on a CPU takes
    10 times as long in float32 and 20 times in bfloat16.
    """
    if scores.device.type == "cpu":
        array = scores.numpy()
        tokens = array.argmax(-1)
        return tokens, array[np.arange(len(array)), tokens]
    highest = scores.amax(-1, keepdim=True)
    ids = torch.arange(scores.shape[1], device=scores.device)
    first = torch.where(scores == highest, ids, scores.shape[1]).amin(-1)
    return first.cpu().numpy(), highest.squeeze(1).cpu().numpy()


def _sampled(scores: torch.Tensor, rows: Sequence[SampleRow], where: Sequence[int]) -> Array:
    """Return the token of each row at which the sum of probabilities passes its random number."""
    chosen = scores if len(where) == len(scores) else scores[list(where)]
    sums = distribution(chosen, rows).cumsum(-1, dtype=torch.float64)
    numbers = uniform(
        np.array([row.sampling.seed for row in rows], np.int64),
        np.array([row.position for row in rows], np.int64),
    )
    reached = torch.from_numpy(numbers).to(scores.device).unsqueeze(1) * sums[:, -1:]
    found = torch.searchsorted(sums, reached, right=True).squeeze(1)
    tokens: Array = found.clamp_(max=scores.shape[1] - 1).cpu().numpy()
    return tokens


def _nucleus(scaled: torch.Tensor, mass: torch.Tensor) -> torch.Tensor:
    """Return the lowest score [S, 1] of the fewest tokens that have this mass [S, 1] together."""
    total = scaled.logsumexp(-1, keepdim=True)
    lowest, reached = _reached(_highest(scaled, CANDIDATES[0]), total, mass)
    for count in (*CANDIDATES[1:], scaled.shape[1]):
        far = torch.nonzero(~reached.squeeze(1)).squeeze(1)
        if not len(far):
            break
        ordered = _highest(scaled[far], count)
        lowest[far], reached[far] = _reached(ordered, total[far], mass[far])
    return lowest


def _highest(scaled: torch.Tensor, count: int) -> torch.Tensor:
    """Return the `count` highest scores of each row, descending; all, where it has no more."""
    if count < scaled.shape[1]:
        return scaled.topk(count).values
    return scaled.sort(-1, descending=True).values


def _reached(
    ordered: torch.Tensor, total: torch.Tensor, mass: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the score at which descending ones reach the mass, and whether they do: [S, 1]."""
    sums = (ordered - total).exp().cumsum(-1)
    index = (sums < mass).sum(-1, keepdim=True)
    last = ordered.shape[1] - 1
    return ordered.gather(1, index.clamp(max=last)), index <= last


def _logprobs(
    logits: torch.Tensor, token: int, count: int
) -> tuple[float, int, tuple[Array, Array] | None]:
    """Return the log-probability of a token of raw scores [V], its rank, and the best if any."""
    logprobs = torch.log_softmax(logits.float(), -1)
    own = logprobs[token]
    rank = 1 + int((logprobs > own).sum() + (logprobs[:token] == own).sum())
    if not count:
        return float(own), rank, None
    values, ids = (found.cpu().numpy() for found in logprobs.topk(min(count, len(logprobs))))
    order = np.lexsort((ids, -values))
    return float(own), rank, (ids[order], values[order])
