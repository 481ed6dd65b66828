import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_backend.errors import ConfigError
from ge_backend.generate.buckets.phase_parameters import (
    PhaseParameters,
    PhaseStrategy,
    chosen_strategy,
    log2_ceil,
)

GIVEN = {
    "max_seqs": 4,
    "max_prefill_seqs": 1,
    "block_tokens": 128,
    "max_batch_tokens": 1024,
    "max_model_tokens": 1024,
}


@given(number=st.integers(1, 2**40))
def test_log2_ceil_is_exact(number):
    """The logarithm is rounded up over whole numbers."""
    power = log2_ceil(number)
    assert 2**power >= number
    assert power == 0 or 2 ** (power - 1) < number
    assert log2_ceil(1000) == math.ceil(math.log2(1000))


def test_blocks():
    """Tokens fill whole blocks, or need one more."""
    given_ = PhaseParameters(**GIVEN)
    assert (given_.blocks(1000), given_.blocks_up(1000)) == (7, 8)
    assert (given_.blocks(1024), given_.blocks_up(1024)) == (8, 8)


@pytest.mark.parametrize("name", list(GIVEN))
def test_limits_are_at_least_one(name):
    """A limit of zero is an error that names it."""
    with pytest.raises(ConfigError, match=f"{name} is 0, expected at least 1"):
        PhaseParameters(**{**GIVEN, name: 0})


def test_mamba_chunks_divide_the_budget():
    """A token budget that is no multiple of the chunk is an error."""
    with pytest.raises(ConfigError, match="multiple of mamba_chunk, which is 300"):
        PhaseParameters(**GIVEN, mamba_chunk=300)


def test_the_older_setting_wins():
    """The on/off setting for exponential spacing goes before the newer name."""
    assert chosen_strategy() is PhaseStrategy.EXPONENTIAL
    assert chosen_strategy("lin") is PhaseStrategy.LINEAR
    assert chosen_strategy("padding_aware") is PhaseStrategy.PADDING_AWARE
    assert chosen_strategy("pad", exponential=False) is PhaseStrategy.LINEAR
    assert chosen_strategy("lin", exponential=True) is PhaseStrategy.EXPONENTIAL
    with pytest.raises(ConfigError, match="'nope' is unknown; known are exp, lin, pad"):
        chosen_strategy("nope")
