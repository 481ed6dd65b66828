"""How many blocks an engine's cache has."""

from __future__ import annotations

from ge_backend.errors import OutOfMemory
from ge_text.engine.settings import EngineSettings
from ge_text.models.base import LanguageModel

__all__ = ["cache_blocks", "fitting_blocks", "largest_step"]


def cache_blocks(
    model: LanguageModel,
    settings: EngineSettings,
    draft: LanguageModel | None = None,
    reserved: int = 0,
) -> int:
    """Return the number of blocks of a model that has none yet; see `fitting_blocks`.

    A model that guesses has as many blocks of its own, out of the same memory; `reserved` bytes of
    what the device has left are for others.
    """
    longest = -(-model.max_positions // model.block_size)
    left = model.memory_left(largest_step(model, settings)) - reserved
    memory = settings.kv_cache_bytes or max(0, left)
    each = model.cache_bytes_per_block() + (draft.cache_bytes_per_block() if draft else 0)
    return fitting_blocks(settings, memory, each, longest)


def largest_step(
    model: LanguageModel, settings: EngineSettings
) -> tuple[tuple[int, int, int], ...]:
    """Return shapes (batch, query, context blocks) that one step may have at most: text and prompt.

    Both have all positions before them.
    """
    longest = -(-model.max_positions // model.block_size)
    chunk = min(settings.max_num_batched_tokens, longest * model.block_size)
    return (1, chunk, longest), (settings.max_num_seqs, 1, longest)


def fitting_blocks(settings: EngineSettings, memory: int, each: int, longest: int) -> int:
    """Return the number of blocks, that for padding included: never more than could be used.

    Args:
        settings: how many sequences there may be.
        memory: bytes that there are.
        each: bytes of a block, in all models.
        longest: blocks of the model's longest sequence.

    Raises:
        OutOfMemory: the memory is too little for a single sequence's first block.
    """
    blocks = min(memory // each, settings.max_num_seqs * longest + 1)
    if blocks < 2:  # noqa: PLR2004 - one for padding, one to use
        where = "kv_cache_bytes" if settings.kv_cache_bytes else "the device has left"
        raise OutOfMemory(
            f"the cache needs at least 2 blocks of {each} bytes, and {memory} bytes are what "
            f"{where} {'is' if settings.kv_cache_bytes else 'for it'}; give it more, or take "
            "smaller blocks (block_size)"
        )
    return blocks
