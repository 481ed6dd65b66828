"""The seam between an engine of text generation and the models and tokenizers it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ge_backend.tensors import Array
from ge_text.models.adapter import Product, StoredAdapter
from ge_text.models.batch import Batch, Drawn

__all__ = ["LanguageModel", "SavedBlocks", "TextStream", "Tokenizer"]


class SavedBlocks(Protocol):
    """Blocks of a cache in host memory, until they are dropped or swapped in."""

    @property
    def nbytes(self) -> int:
        """Host memory that they take."""


class LanguageModel(Protocol):
    """A causal decoder on one device, with its paged cache. One step at a time, from any thread.

    Attributes:
        vocabulary: tokens are 0 to this, without it.
        max_positions: the longest sequence, prompt and output together.
        eos: tokens that end a text; may be empty.
        dtype: what weights are held in: FP32, BF16 or FP16.
        block_size: tokens of one block of the cache.
        products: what an adapter can change.
    """

    vocabulary: int
    max_positions: int
    eos: tuple[int, ...]
    dtype: str
    block_size: int
    products: tuple[Product, ...]

    def cache_bytes_per_block(self) -> int:
        """Return the bytes that one block takes over all layers, keys and values."""

    def memory_left(self, steps: Sequence[tuple[int, int, int]] = ()) -> int:
        """Return the bytes that the device has for a cache, now that the weights are there.

        Args:
            steps: shapes (batch, query, context blocks) whose scratch it has to leave room for.

        Raises:
            OutOfMemory: there is no memory for one of these steps.
        """

    def scratch_bytes(self, steps: Sequence[tuple[int, int, int]]) -> int:
        """Return the bytes that a step with these groups takes for itself; it is run once.

        Args:
            steps: shapes (batch, query, context blocks). An accelerator runs one at a time.

        Raises:
            OutOfMemory: there is no memory for it.
        """

    def open_cache(self, num_blocks: int) -> None:
        """Allocate the cache, once. Block 0 is for padding: it has no text's keys, but numbers.

        Raises:
            OutOfMemory: the device has less; names both numbers.
        """

    def prepare(self, bucket: tuple[int, int, int]) -> None:
        """Make a bucket (batch, query, context blocks) ready: compile, capture or warm it up.

        Raises:
            GraphFailed: it cannot be made ready; the message has the reason.
        """

    def load_adapter(self, adapter: StoredAdapter) -> None:
        """Bring an adapter to the device; steps may then name its key.

        Raises:
            ModelError: its files cannot be read, or have changed.
            OutOfMemory: the device has no room for it.
        """

    def drop_adapter(self, key: str) -> None:
        """Free an adapter that was loaded."""

    def step(self, batch: Batch) -> Drawn:
        """Write the new tokens' keys and values into their slots and draw the next tokens.

        Raises:
            GraphFailed: nothing was drawn; blocks that the batch wrote to hold anything.
            DeviceFault: the device broke.
        """

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks on the device: (source, destination). All are read before any is written."""

    def swap_out(self, blocks: Sequence[int]) -> SavedBlocks:
        """Return a copy in host memory; the blocks may then be given to others."""

    def swap_in(self, saved: SavedBlocks, blocks: Sequence[int]) -> None:
        """Put back what `swap_out` returned, in its order, into as many blocks."""

    def close(self) -> None:
        """Free weights and cache."""


class TextStream(Protocol):
    """The text of one sequence, token by token."""

    def step(self, token: int) -> str:
        """Return the text that is certain now; "" while a character is incomplete."""

    def rest(self) -> str:
        """Return the whole characters that were held back, once no token follows."""


class Tokenizer(Protocol):
    """Text to tokens and back, as the checkpoint's `tokenizer.json` says. Any thread."""

    @property
    def special(self) -> Mapping[int, str]:
        """The names of the tokens that are no text, by token."""

    def encode(self, text: str, *, special: bool = True) -> Array:
        """Return int64 [T], with the special tokens that the tokenizer adds by itself if wanted."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text without special tokens."""

    def token_bytes(self, token: int) -> bytes | None:
        """Return the bytes of a token that may be a part of a letter; None where not known."""

    def stream(self, ids: Sequence[int] = (), *, special: bool = False) -> TextStream:
        """Return a stream whose text goes on behind these tokens; it may have special ones."""
