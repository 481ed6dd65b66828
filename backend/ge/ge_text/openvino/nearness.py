"""How near a decoder's scores are to those of another one, on one text that is always the same."""

from __future__ import annotations

import numpy as np
import torch

from ge_backend.engines.preprocess.text import open_tokenizer
from ge_backend.model.files.checkpoint import Checkpoint
from ge_backend.tensors import Array
from ge_text.models.batch import Batch, Group
from ge_text.openvino.decoder import OpenVinoDecoder
from ge_text.openvino.graph import BLOCK_SIZE
from ge_text.torch.cache import PagedCache
from ge_text.torch.step import stage

__all__ = ["divergence", "fixed_ids", "log_probabilities"]

# Prose, numbers, a program and another language: what is hard to guess and what is not.
TEXT = """\
The river rises in the hills north of the town, where rain falls on two days out of three. \
In 1874 a mill was built beside it; by 1901 it employed 212 people, most of whom had come from the \
villages around. When the railway arrived, grain was brought from further away, and the price of \
a sack fell from 14.50 to 9.75. Question: by how much did it fall? Answer: by 4.75, about a third.

def mean(values):
    if not values:
        raise ValueError("no values")
    return sum(values) / len(values)

{"name": "mill", "built": 1874, "open": true, "people": [212, 180, 95]}
Le moulin est fermé depuis longtemps, mais la maison du meunier est encore habitée.
"""
MAX_IDS = 256
# One id in this many, where there is no tokenizer.
STRIDE = 7919


def fixed_ids(checkpoint: Checkpoint) -> Array:
    """Return int64 [T], at least two: the text in the checkpoint's tokens, as far as it sees.

    Without a tokenizer they are ids from all over the vocabulary.
    """
    if checkpoint.tokenizer is None:
        ids = np.arange(MAX_IDS, dtype=np.int64) * STRIDE % checkpoint.vocabulary
    else:
        ids = np.asarray(open_tokenizer(checkpoint.tokenizer).encode(TEXT), np.int64)
    return ids[: min(MAX_IDS, checkpoint.max_positions)]


def log_probabilities(decoder: OpenVinoDecoder, ids: Array, singles: int = 0) -> torch.Tensor:
    """Return FP32 [T, vocabulary], of what follows each token; the decoder has a cache for it.

    All are read in one step but the last `singles`, which have a step each.
    """
    count, blocks = len(ids), -(-len(ids) // BLOCK_SIZE)
    cache = PagedCache(
        decoder.shapes,
        block_size=BLOCK_SIZE,
        num_blocks=blocks + 1,
        dtype=decoder.cache_dtype,
        device=decoder.device,
    )
    tables, begin, found = np.arange(1, blocks + 1)[None], 0, []
    for end in range(count - singles, count + 1):
        places, query = np.arange(begin, end), end - begin
        batch = Batch(
            ids=ids[begin:end],
            positions=places,
            slots=BLOCK_SIZE + places,
            groups=(Group(rows=1, query=query, tables=tables, lengths=np.array([end])),),
            sampled=np.arange(query),
            rows=(),
        )
        with torch.inference_mode():
            found.append(decoder.logits(stage(batch, cache, decoder.device)).log_softmax(-1))
        begin = end
    return torch.cat(found)


def divergence(expected: torch.Tensor, found: torch.Tensor) -> float:
    """Return the mean Kullback-Leibler divergence of rows found from those expected, in nats.

    What is no number is infinitely far.
    """
    rows = (expected.exp() * (expected - found)).sum(-1)
    mean = float(rows.mean())
    return mean if np.isfinite(mean) else float("inf")
