"""A language model's step in one bucket, captured as a device graph and replayed.

Everything that differs from step to step is on the device: token ids, positions, slots, tables,
which tokens are sampled. It goes there in one copy. The mask follows from the positions inside the
graph, so that nothing on the host has to know lengths.
"""

from __future__ import annotations

import numpy as np
import torch

from ge_backend.engines.torch.streams import WARM_UPS, Streams
from ge_text.models.batch import Batch
from ge_text.torch.attention import FEW_QUERIES, RowAttention
from ge_text.torch.base import Decoder
from ge_text.torch.cache import PagedCache
from ge_text.torch.step import StepTensors

__all__ = ["Bucket", "CapturedStep", "bucket_of", "parts_of"]

ITEM = 8

# Rows, new tokens of each, blocks of the longest row's table.
Bucket = tuple[int, int, int]


def bucket_of(batch: Batch) -> Bucket:
    """Return the shape of a batch of one group."""
    (group,) = batch.groups
    return group.rows, group.query, group.tables.shape[1]


def parts_of(batch: Batch) -> list[Batch]:
    """Return a batch for each group, in their order: what one computes no other one reads."""
    ends = np.cumsum([group.rows * group.query for group in batch.groups])
    draws = np.searchsorted(batch.sampled, ends)
    parts = []
    for group, start, stop, first, last in zip(
        batch.groups, [0, *ends], ends, [0, *draws], draws, strict=False
    ):
        parts.append(
            Batch(
                ids=batch.ids[start:stop],
                positions=batch.positions[start:stop],
                slots=batch.slots[start:stop],
                groups=(group,),
                sampled=batch.sampled[first:last] - start,
                rows=batch.rows[first:last],
            )
        )
    return parts


class CapturedStep:
    """One bucket; see the module. All it needs is allocated here, the scratch in the shared pool.

    The caller is the one who computes, here and in `logits`.

    Raises:
        RuntimeError: no memory, or the device cannot capture this.
    """

    def __init__(
        self, streams: Streams, decoder: Decoder, cache: PagedCache, vocabulary: int, bucket: Bucket
    ) -> None:
        rows, query, blocks = bucket
        self._streams = streams
        # A chunk of a prompt ends in one sampled token; a verified run in one behind each.
        self.most_sampled = rows * query if query <= FEW_QUERIES else rows
        sizes = (rows * query,) * 3 + (rows * blocks, self.most_sampled)
        vendor = streams.vendor
        given = vendor.empty(sum(sizes) * ITEM)
        pinned = vendor.pinned(sum(sizes) * ITEM)
        self._given, self._pinned = given, pinned
        self._arrays = np.split(pinned.view(torch.int64).numpy(), np.cumsum(sizes)[:-1])
        ids, positions, slots, tables, sampled = given.view(torch.int64).split(sizes)
        size = self.most_sampled * vocabulary * decoder.dtype.itemsize
        out = vendor.empty(size).view(decoder.dtype).view(self.most_sampled, vocabulary)
        self._logits = out

        def work() -> None:
            # Indexes and masks are made anew: they belong into the graph.
            part = RowAttention(
                tables=tables.view(rows, blocks),
                positions=positions.view(rows, query),
                length=blocks * cache.block_size,
                alone=False,
            )
            step = StepTensors(
                cache=cache,
                ids=ids,
                positions=positions,
                slots=slots,
                sampled=sampled,
                parts=lambda: (part,),
                padded=query > 1,
            )
            out.copy_(decoder.logits(step))

        pinned.zero_()  # padding: token 0 at position 0 of block 0
        self._uploaded()
        vendor.synchronize()
        for _ in range(WARM_UPS):
            work()
        vendor.synchronize()
        self._graph = streams.capture(work)
        self._done = vendor.new_event()

    def logits(self, batch: Batch) -> torch.Tensor:
        """Return the scores of the batch's sampled tokens FP [S, V], valid until the next call."""
        count = len(batch.sampled)
        (group,) = batch.groups
        ids, positions, slots, tables, sampled = self._arrays
        ids[:], positions[:], slots[:] = batch.ids, batch.positions, batch.slots
        tables[:] = group.tables.ravel()
        sampled[:count], sampled[count:] = batch.sampled, 0
        self._uploaded()
        self._graph.replay()
        self._done.record(self._streams.compute)
        self._done.synchronize()
        return self._logits[:count]

    def _uploaded(self) -> None:
        self._streams.vendor.copy(self._given, self._pinned)
