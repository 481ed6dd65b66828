"""A language model in torch: a decoder, its paged cache and the sampler behind one `step`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from ge_backend.device.base import MemoryInfo
from ge_backend.device.failures import reason
from ge_backend.engines.torch.device_errors import meaning
from ge_backend.engines.torch.scratch import peak_bytes
from ge_backend.engines.torch.streams import Streams
from ge_backend.errors import GraphFailed, OutOfMemory
from ge_backend.model.files.checkpoint import Checkpoint
from ge_text.models.adapter import StoredAdapter
from ge_text.models.base import SavedBlocks
from ge_text.models.batch import Batch, Drawn, full_batch, padding_batch
from ge_text.models.open import memory_for_cache
from ge_text.models.sampling import Sampling
from ge_text.torch.attention import FEW_QUERIES
from ge_text.torch.base import Decoder
from ge_text.torch.cache import CacheForm, PagedCache, SavedCache
from ge_text.torch.captured import Bucket, CapturedStep, bucket_of, parts_of
from ge_text.torch.loading import NAMES
from ge_text.torch.lora import AdapterBank
from ge_text.torch.sampler import draw
from ge_text.torch.step import stage

__all__ = ["TorchLanguageModel"]

log = logging.getLogger(__name__)

SORTING = Sampling(top_p=0.9)  # takes the most memory: it sorts the scores


class TorchLanguageModel:
    """A `LanguageModel`; see there for its methods.

    Args:
        checkpoint, decoder: what was loaded.
        form: of its cache.
        memory: the device's memory, now.
        threads: of one step on a CPU.
        streams: of an accelerator, where buckets are captured; None elsewhere.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        decoder: Decoder,
        *,
        form: CacheForm,
        memory: Callable[[], MemoryInfo],
        threads: int,
        streams: Streams | None = None,
    ) -> None:
        self.vocabulary = checkpoint.vocabulary
        self.max_positions = checkpoint.max_positions
        self.eos = checkpoint.eos
        self.dtype = NAMES[decoder.dtype]
        self.block_size = form.block_size
        self.products = decoder.products
        self._adapters = AdapterBank(decoder.products, dtype=decoder.dtype, device=decoder.device)
        self._folder: Path = checkpoint.folder
        self._decoder = decoder
        self._form = form
        self._memory = memory
        self._threads = threads
        self._streams = streams
        self._captured: dict[Bucket, CapturedStep] = {}
        self._uncapturable: set[bool] = set()  # by whether rows have many queries
        self._cache: PagedCache | None = None

    def cache_bytes_per_block(self) -> int:
        """See `LanguageModel`."""
        elements = sum(shape.elements for shape in self._decoder.shapes)
        return elements * self.block_size * int(self._form.dtype.itemsize)

    def memory_left(self, steps: Sequence[tuple[int, int, int]] = ()) -> int:
        """See `LanguageModel`. A host's share leaves room; a device's scratch is measured."""
        scratch = 0 if self._streams is None else self._measured_scratch(self._streams, steps)
        free_bytes = max(0, self._memory().free_bytes - scratch)
        return memory_for_cache(free_bytes, str(self._decoder.device))

    def _measured_scratch(self, streams: Streams, steps: Sequence[tuple[int, int, int]]) -> int:
        """Return the bytes that the largest of these steps takes for itself, run over padding."""
        with self._running():
            cache = self._new_cache(1)  # padding is all in block 0
            held = streams.vendor.allocated_bytes()
            streams.vendor.begin_peak()
            for step in steps:
                batch = padding_batch(step, SORTING)
                draw(self._decoder.logits(stage(batch, cache, self._decoder.device)), batch.rows)
            streams.vendor.synchronize()
            peak = streams.vendor.peak_bytes()
            del cache
            streams.vendor.give_back()
        return max(0, peak - held)

    def scratch_bytes(self, steps: Sequence[tuple[int, int, int]]) -> int:
        """See `LanguageModel`. On a CPU a context has as many blocks as the cache."""
        if self._streams is not None:
            return self._measured_scratch(self._streams, steps)
        cache = self._opened()
        held = [(rows, query, min(blocks, cache.num_blocks - 1)) for rows, query, blocks in steps]
        batch = full_batch(
            [(rows, min(query, blocks * self.block_size), blocks) for rows, query, blocks in held],
            block_size=self.block_size,
            num_blocks=cache.num_blocks,
            sampling=SORTING,
        )
        with self._running():
            return peak_bytes(lambda: self._drawn(batch))

    def open_cache(self, num_blocks: int) -> None:
        """See `LanguageModel`."""
        needed, free = num_blocks * self.cache_bytes_per_block(), self._memory().free_bytes
        if needed > free:
            raise OutOfMemory(
                f"{self._folder}: a cache of {num_blocks} blocks takes {needed} bytes, the device "
                f"has {free} free; make kv_cache_bytes smaller"
            )
        with self._running():
            self._cache = self._new_cache(num_blocks)

    def prepare(self, bucket: tuple[int, int, int]) -> None:
        """See `LanguageModel`; captured on an accelerator, else run once over padding.

        A bucket that cannot be captured runs operator by operator; the log says why. Unless memory
        was short, so do all later ones of chunks, or all of decoding: what they do is the same, and
        each capture that breaks costs memory for ever. Source: pytorch, CUDAGraph::reset.
        """
        if self._streams is None:
            self.step(padding_batch(bucket))
        elif bucket not in self._captured and _many(bucket) not in self._uncapturable:
            with self._running():
                self._capture(self._streams, bucket)

    def load_adapter(self, adapter: StoredAdapter) -> None:
        """See `LanguageModel`."""
        with self._running():
            self._adapters.load(adapter)

    def drop_adapter(self, key: str) -> None:
        """See `LanguageModel`."""
        with self._running():
            self._adapters.drop(key)

    def step(self, batch: Batch) -> Drawn:
        """See `LanguageModel`. One with adapters runs operator by operator, captured or not."""
        with self._running():
            replayed = self._replayed(batch)
            if replayed is not None:
                return draw(replayed, batch.rows)
            return self._drawn(batch)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """See `LanguageModel`."""
        if pairs:
            with self._running():
                self._opened().copy(pairs)

    def swap_out(self, blocks: Sequence[int]) -> SavedCache:
        """See `LanguageModel`."""
        with self._running():
            return self._opened().save(blocks)

    def swap_in(self, saved: SavedBlocks, blocks: Sequence[int]) -> None:
        """See `LanguageModel`."""
        if not isinstance(saved, SavedCache):
            raise GraphFailed(f"{self._folder}: swapped in what {type(saved).__name__} holds")
        with self._running():
            self._opened().restore(saved, blocks)

    def close(self) -> None:
        """See `LanguageModel`. What torch keeps for later tensors is given back to the device."""
        with self._running():
            if self._streams is not None:
                self._streams.vendor.synchronize()
            self._captured.clear()
            self._cache = None
            self._decoder.close()
            del self._decoder, self._adapters
            if self._streams is not None:
                self._streams.vendor.give_back()

    def _drawn(self, batch: Batch) -> Drawn:
        """Run a step operator by operator."""
        tensors = stage(batch, self._opened(), self._decoder.device)
        if batch.adapters:
            tensors.adapters = self._adapters.of_step(batch.adapters, len(batch.ids))
        return draw(self._decoder.logits(tensors), batch.rows)

    def _replayed(self, batch: Batch) -> torch.Tensor | None:
        """Return the scores of a step whose groups were all captured, else None: nothing has run.

        Groups are replayed one after the other: what one computes no other one reads.
        """
        parts = parts_of(batch) if self._captured and not batch.adapters else []
        steps = [(self._captured.get(bucket_of(part)), part) for part in parts]
        ready = [(c, part) for c, part in steps if c and len(part.sampled) <= c.most_sampled]
        if len(ready) < len(batch.groups):
            return None
        if len(ready) == 1:
            return ready[0][0].logits(batch)
        return torch.cat([captured.logits(part).clone() for captured, part in ready])

    def _capture(self, streams: Streams, bucket: Bucket) -> None:
        cache = self._opened()
        try:
            self._captured[bucket] = CapturedStep(
                streams, self._decoder, cache, self.vocabulary, bucket
            )
        except RuntimeError as error:
            if streams.vendor.is_fault(error):
                raise
            if not streams.vendor.is_out_of_memory(error):
                self._uncapturable.add(_many(bucket))
            streams.vendor.give_back()
            log.warning(
                "%s: bucket %s cannot be captured and runs operator by operator: %s",
                self._folder,
                bucket,
                reason(error),
            )

    def _new_cache(self, num_blocks: int) -> PagedCache:
        return PagedCache(
            self._decoder.shapes,
            block_size=self.block_size,
            num_blocks=num_blocks,
            dtype=self._form.dtype,
            device=self._decoder.device,
        )

    def _opened(self) -> PagedCache:
        if self._cache is None:
            raise GraphFailed(f"{self._folder}: a step before open_cache")
        return self._cache

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)  # of the calling thread
        try:
            with torch.inference_mode(), self._computing():
                yield
        except (RuntimeError, MemoryError, IndexError) as error:
            vendor = None if self._streams is None else self._streams.vendor
            raise meaning(error, str(self._folder), vendor) from error

    def _computing(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext() if self._streams is None else self._streams.computing()


def _many(bucket: Bucket) -> bool:
    """Return whether its rows go through the fused attention, as chunks of prompts do."""
    _, query, _ = bucket
    return query > FEW_QUERIES
