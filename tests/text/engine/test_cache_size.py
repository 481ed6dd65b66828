"""How many blocks there are."""

import pytest

from fakes.language_model import FakeLanguageModel
from ge_backend.errors import OutOfMemory
from ge_text.engine.cache_size import cache_blocks, largest_step
from ge_text.engine.settings import EngineSettings


def test_the_cache_takes_what_is_left_or_what_is_configured():
    """Bytes are counted in whole blocks."""
    model = FakeLanguageModel(block_size=4, blocks=50)
    assert cache_blocks(model, EngineSettings()) == 50
    configured = EngineSettings(kv_cache_bytes=9 * model.cache_bytes_per_block() + 1)
    assert cache_blocks(model, configured) == cache_blocks(model, configured, reserved=64) == 9
    assert cache_blocks(model, EngineSettings(), reserved=3 * 64) == 47


def test_a_second_model_has_as_many_blocks_of_its_own():
    """Both take them out of the same memory."""
    model, draft = (FakeLanguageModel(block_size=4, blocks=50) for _ in range(2))
    draft.cache_bytes_per_block = lambda: model.cache_bytes_per_block() // 4
    assert cache_blocks(model, EngineSettings(), draft) == 40


def test_no_more_is_taken_than_could_be_used():
    """All sequences at their longest need no more, and one block is for padding."""
    model = FakeLanguageModel(block_size=4, max_positions=10, blocks=10**6)
    assert cache_blocks(model, EngineSettings(max_num_seqs=2)) == 2 * 3 + 1


@pytest.mark.parametrize(("left", "configured"), [(1, 0), (50, 100)])
def test_too_little_memory_is_refused_with_both_numbers(left, configured):
    """A cache without a block to use is none."""
    model = FakeLanguageModel(block_size=16, blocks=left)
    with pytest.raises(OutOfMemory, match=r"at least 2 blocks of 256 bytes, and (256|100) bytes"):
        cache_blocks(model, EngineSettings(kv_cache_bytes=configured))


def test_the_largest_step_has_every_text_and_a_chunk_at_the_end_of_their_positions():
    """A chunk is as long as a step may be, and no longer than a text."""
    model = FakeLanguageModel(block_size=4, max_positions=10)
    few = EngineSettings(max_num_batched_tokens=8, max_num_seqs=5)
    assert largest_step(model, few) == ((1, 8, 3), (5, 1, 3))
    assert largest_step(model, EngineSettings()) == ((1, 12, 3), (64, 1, 3))
