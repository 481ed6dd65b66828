"""A thread that does all that language models compute on a CPU, whoever asks for it.

OpenMP keeps helpers for each thread that begins parallel work, and they spin for a moment between
two pieces of it: they are ready at once then. Where one thread has loaded a model and two take
turns at its steps, there are more helpers than cores; libgomp then lets all of them sleep after
next to nothing (`GOMP_SPINCOUNT` in GCC's manual of libgomp), and a step takes twice as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import ParamSpec, TypeVar

from ge_backend.device.language.adapter import StoredAdapter
from ge_backend.device.language.base import LanguageModel, SavedBlocks
from ge_backend.device.language.batch import Batch, Drawn
from ge_backend.device.language.open import OpenedLanguage, OpenLanguage, open_language

__all__ = ["OwnThread"]

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_Shape = tuple[int, int, int]


class OwnThread:
    """Opens models that share one thread; their work is done in the order in which it is asked for.

    The thread ends with the last of them.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="language")

    def open(self, asked: OpenLanguage) -> OpenedLanguage:
        """See `open_language`."""
        opened = self.run(open_language, asked)
        return replace(opened, model=_Threaded(opened.model, self))

    def run(
        self, work: Callable[_Given, _Result], *given: _Given.args, **named: _Given.kwargs
    ) -> _Result:
        """Return what this returns in the thread; raise what it raises."""
        return self._thread.submit(work, *given, **named).result()


class _Threaded:
    """A `LanguageModel` that another one is, in a thread; see there for its methods."""

    def __init__(self, model: LanguageModel, thread: OwnThread) -> None:
        self.vocabulary, self.max_positions = model.vocabulary, model.max_positions
        self.eos, self.dtype, self.block_size = model.eos, model.dtype, model.block_size
        self.products = model.products
        self._model, self._run = model, thread.run  # which keeps the thread

    def cache_bytes_per_block(self) -> int:
        return self._model.cache_bytes_per_block()

    def memory_left(self, steps: Sequence[_Shape] = ()) -> int:
        return self._run(self._model.memory_left, steps)

    def scratch_bytes(self, steps: Sequence[_Shape]) -> int:
        return self._run(self._model.scratch_bytes, steps)

    def open_cache(self, num_blocks: int) -> None:
        self._run(self._model.open_cache, num_blocks)

    def prepare(self, bucket: _Shape) -> None:
        self._run(self._model.prepare, bucket)

    def load_adapter(self, adapter: StoredAdapter) -> None:
        self._run(self._model.load_adapter, adapter)

    def drop_adapter(self, key: str) -> None:
        self._run(self._model.drop_adapter, key)

    def step(self, batch: Batch) -> Drawn:
        return self._run(self._model.step, batch)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._run(self._model.copy_blocks, pairs)

    def swap_out(self, blocks: Sequence[int]) -> SavedBlocks:
        return self._run(self._model.swap_out, blocks)

    def swap_in(self, saved: SavedBlocks, blocks: Sequence[int]) -> None:
        self._run(self._model.swap_in, saved, blocks)

    def close(self) -> None:
        self._run(self._model.close)
