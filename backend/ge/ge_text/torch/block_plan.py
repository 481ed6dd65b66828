"""Which rows look into which blocks of a cache, as runs of neighbouring blocks: pure planning.

A row's blocks may be gathered for its queries, which copies every key; or its queries may be
brought to each block, which copies little and needs no padding. For that the blocks of a step are
cut into runs of neighbours with equally many readers. Each reading of a block is an *entry*:

    run 0: blocks 4..6, one reader each       entries 0..2
    run 1: blocks 9..10, three readers each   entries 3..8: block 9's readers, then block 10's
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ge_backend.tensors import Array
from ge_text.models.batch import Group

__all__ = ["BlockPlan", "BlockRun", "plan_blocks"]

# What starting one more pair of products takes, as bytes that are read meanwhile; what all the
# small operators around them take; and how often gathered keys are read or written.
# Measured with two threads on a CPU: 30 layers of 3 heads of 64, 1 to 32 rows of 32 to 700 keys.
RUN_BYTES, FIXED_BYTES, GATHER_PASSES = 640 * 2**10, 4 * 2**20, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRun:
    """Neighbouring blocks `first` to `end` with `readers` each; its entries begin at `entry`."""

    first: int
    end: int
    readers: int
    entry: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlan:
    """See the module. E entries, some of which no row needs: gaps that a run bridges.

    Attributes:
        owner: int64 [E], the row that reads; 0 where none does.
        first: int64 [E], position of the block's first key in that row's text; very large where
            no row reads, so that no query sees it.
        entries: int64 [B, N], each row's entries in order; E behind its last one.
    """

    runs: tuple[BlockRun, ...]
    owner: Array
    first: Array
    entries: Array


def plan_blocks(group: Group, block_size: int, block_bytes: int) -> BlockPlan | None:
    """Return how a group's blocks are read in place; None where gathering is estimated cheaper.

    `block_bytes` have the keys and values of one block in one layer.
    """
    used = np.maximum(1, -(-group.lengths // block_size))
    gathered = group.tables.size * block_bytes * GATHER_PASSES
    if FIXED_BYTES + int(used.max()) * block_bytes > gathered:
        return None  # as most single rows: not worth a closer look
    columns = np.arange(group.tables.shape[1])
    rows, places = np.nonzero(columns < used[:, None])
    blocks, which, readers = np.unique(
        group.tables[rows, places], return_inverse=True, return_counts=True
    )
    runs = _runs(blocks, readers, RUN_BYTES // block_bytes)
    read = sum((run.end - run.first) * block_bytes + RUN_BYTES for run in runs)
    if FIXED_BYTES + read > gathered:
        return None
    order = np.argsort(which, kind="stable")
    rank = np.empty_like(order)  # among the readers of its block
    rank[order] = np.arange(len(order)) - np.repeat(np.cumsum(readers) - readers, readers)
    begins = np.array([run.first for run in runs])
    run_of = np.searchsorted(begins, blocks, side="right") - 1
    bases = np.array([run.entry for run in runs])[run_of]
    entry = (bases + (blocks - begins[run_of]) * readers)[which] + rank
    total = runs[-1].entry + (runs[-1].end - runs[-1].first) * runs[-1].readers
    owner, first = np.zeros(total, np.int64), np.full(total, np.iinfo(np.int64).max // 2)
    owner[entry], first[entry] = rows, places * block_size
    entries = np.full(group.tables.shape, total)
    entries[rows, places] = entry
    return BlockPlan(runs=runs, owner=owner, first=first, entries=entries)


def _runs(blocks: Array, readers: Array, bridge: int) -> tuple[BlockRun, ...]:
    """Cut sorted blocks where the number of readers changes or more than `bridge` are missing."""
    cuts = (np.diff(blocks) > bridge + 1) | (np.diff(readers) != 0)
    starts = np.concatenate(([0], np.flatnonzero(cuts) + 1))
    ends = np.concatenate((starts[1:], [len(blocks)]))
    runs, entry = [], 0
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        first, last, count = int(blocks[start]), int(blocks[end - 1]), int(readers[start])
        runs.append(BlockRun(first=first, end=last + 1, readers=count, entry=entry))
        entry += (last + 1 - first) * count
    return tuple(runs)
