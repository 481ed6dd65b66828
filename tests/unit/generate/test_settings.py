"""The limits of an engine."""

import pytest

from ge_backend.errors import ConfigError
from ge_backend.generate.settings import EngineSettings


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs is 0; expected at least 1"),
        ({"max_num_batched_tokens": 7, "max_num_seqs": 8}, "expected at least 8 (max_num_seqs)"),
        ({"prefill_chunk": -1}, "prefill_chunk is -1"),
        ({"block_size": 0}, "block_size is 0"),
        ({"kv_cache_bytes": -1}, "kv_cache_bytes is -1"),
        ({"max_waiting_requests": 0}, "max_waiting_requests is 0"),
        ({"swap_bytes": -1}, "swap_bytes is -1"),
        ({"itl_target_ms": 0}, "itl_target_ms is 0; expected more than 0"),
        ({"aging_s": float("nan")}, "aging_s is nan"),
    ],
)
def test_limits_that_cannot_work_are_refused(given, message):
    """A step has room for a token of every sequence, and nothing is less than it can be."""
    with pytest.raises(ConfigError) as caught:
        EngineSettings(**given)
    assert message in str(caught.value)
