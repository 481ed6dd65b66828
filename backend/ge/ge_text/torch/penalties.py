"""What changes single scores before a token is drawn: structures, bans, biases, penalties.

In vLLM's order. Source: vllm-project/vllm, vllm/v1/sample/sampler.py, `apply_logits_processors`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ge_backend.tensors import Array
from ge_text.models.batch import SampleRow

__all__ = ["adjusted"]


def adjusted(logits: torch.Tensor, rows: Sequence[SampleRow]) -> torch.Tensor:
    """Return float32 [S, V], the scores with all that is forbidden, biased or penalised.

    A new tensor where something changes; `logits` [S, V] are never written.
    """
    scores = logits.float()
    if not any(_changes(row) for row in rows):
        return scores
    scores = scores.clone() if scores is logits else scores
    for change in (_keep_to_structure, _forbid, _bias, _repetition, _presence_and_frequency):
        change(scores, rows)
    return scores


def _changes(row: SampleRow) -> bool:
    wish = row.sampling
    return bool(
        row.allowed
        or row.forbidden
        or wish.bad_words_ids
        or wish.logit_bias
        or wish.repetition_penalty != 1
        or wish.presence_penalty
        or wish.frequency_penalty
    )


def _keep_to_structure(scores: torch.Tensor, rows: Sequence[SampleRow]) -> None:
    packed = {index: row.allowed() for index, row in enumerate(rows) if row.allowed is not None}
    for index, bits in packed.items():
        wrong = np.unpackbits(bits, count=scores.shape[1], bitorder="little") == 0
        scores[index].masked_fill_(torch.from_numpy(wrong).to(scores.device), -torch.inf)


def _forbid(scores: torch.Tensor, rows: Sequence[SampleRow]) -> None:
    said = (row.sampling.bad_words_ids.last_tokens(row.prompt, row.output) for row in rows)
    chosen = [
        np.array([*row.forbidden, *bad], np.int64) for row, bad in zip(rows, said, strict=True)
    ]
    where = _places(scores, chosen)
    if where is not None:
        scores.view(-1).index_fill_(0, where, -torch.inf)


def _bias(scores: torch.Tensor, rows: Sequence[SampleRow]) -> None:
    tokens, biases = zip(*(row.sampling.logit_bias.arrays for row in rows), strict=True)
    where = _places(scores, tokens)
    if where is not None:
        values = torch.from_numpy(np.concatenate(biases))
        scores.view(-1).index_add_(0, where, values.to(scores.device))


def _repetition(scores: torch.Tensor, rows: Sequence[SampleRow]) -> None:
    """Divide the scores of known tokens, of prompt and output; negative ones are multiplied."""
    known, penalties = [], []
    for row in rows:
        penalty = row.sampling.repetition_penalty
        ids = np.concatenate((row.prompt, row.output)) if penalty != 1 else row.output[:0]
        known.append(np.unique(ids))
        penalties.append(np.full(len(known[-1]), penalty, np.float32))
    where = _places(scores, known)
    if where is not None:
        factors = torch.from_numpy(np.concatenate(penalties)).to(scores.device)
        found = scores.view(-1)[where]
        scores.view(-1)[where] = torch.where(found > 0, found / factors, found * factors)


def _presence_and_frequency(scores: torch.Tensor, rows: Sequence[SampleRow]) -> None:
    """Take from the scores of drawn tokens: once for each, and for each time it was drawn."""
    drawn, amounts = [], []
    for row in rows:
        wish = row.sampling
        wished = wish.presence_penalty or wish.frequency_penalty
        ids, counts = np.unique(row.output if wished else row.output[:0], return_counts=True)
        drawn.append(ids)
        amounts.append(wish.presence_penalty + wish.frequency_penalty * counts)
    where = _places(scores, drawn)
    if where is not None:
        amount = torch.from_numpy(np.concatenate(amounts).astype(np.float32))
        scores.view(-1).index_add_(0, where, -amount.to(scores.device))


def _places(scores: torch.Tensor, ids: Sequence[Array]) -> torch.Tensor | None:
    """Return where each row's ids are in the scores as one line; None where there are none."""
    width = scores.shape[1]
    places = np.concatenate([index * width + of_row for index, of_row in enumerate(ids)])
    return torch.from_numpy(places).to(scores.device) if places.size else None
