import pytest

from ge_backend.errors import ConfigError
from ge_backend.generate.buckets.phase_parameters import Phase, PhaseParameters, PhaseStrategy
from ge_backend.generate.buckets.phase_ranges import PhaseRule, phase_numbers, phase_ranges

GIVEN = {
    "max_seqs": 4,
    "max_prefill_seqs": 1,
    "block_tokens": 128,
    "max_batch_tokens": 1024,
    "max_model_tokens": 1024,
}
KINDS = ["exponential", "linear", "padding_aware", "lookup", "selection"]


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_the_reference_s(golden, phase_parameters, phase_rule, kind):
    """Every axis has the reference's min, step, max and what else its rule takes."""
    for case in golden(kind):
        if "cfgs" in case:
            given, phase = phase_parameters(case), Phase(case["phase"])
            numbers = phase_numbers(given, phase, phase_rule(case, compat=False))
            assert [list(axis) for axis in numbers] == case["cfgs"], case["id"]


def test_contiguous_decode_ends_at_the_cache():
    """With contiguous attention the last context is the whole cache."""
    given = PhaseParameters(**GIVEN, num_blocks=300, contiguous=True)
    assert phase_ranges(given, Phase.DECODE, PhaseRule())[2][-1] == 300


def test_explicit_mamba_chunks_round_queries():
    """Prompt queries are multiples of a chunk that was configured."""
    given = PhaseParameters(**GIVEN, mamba_chunk=256, mamba_chunk_explicit=True)
    assert phase_ranges(given, Phase.PROMPT, PhaseRule())[1] == (256, 512, 768, 1024)


def test_decode_needs_the_size_of_the_cache():
    """Before the cache's size is known there are no decode buckets."""
    with pytest.raises(ConfigError, match="num_blocks is 0"):
        phase_ranges(PhaseParameters(**GIVEN), Phase.DECODE, PhaseRule())


def test_an_empty_axis_is_an_error():
    """Overrides that leave an axis without sizes are an error that shows them."""
    given = PhaseParameters(**GIVEN, overrides={"prompt.query.min": 200, "prompt.query.max": 255})
    with pytest.raises(ConfigError, match=r"\(200, 128, 255\) make no sizes"):
        phase_ranges(given, Phase.PROMPT, PhaseRule(strategy=PhaseStrategy.LINEAR))
