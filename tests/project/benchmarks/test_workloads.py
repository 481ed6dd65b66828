"""What text generation is asked for, and what this backend's server may remember of it."""

from benchmarks.generation.ours import CONFIG
from benchmarks.generation.workloads import WORKLOADS

# Less than a block of the cache has; what begins alike for a block would be computed once.
BEGINNING = 8


def test_no_two_prompts_of_a_run_begin_alike():
    """A cache of prefixes would save one system what another one computes."""
    prompts = [
        ask.prompt[:BEGINNING]
        for workload in WORKLOADS.values()
        for seed in range(1, 4)
        for ask in workload.drawn(seed)
    ]
    assert len(set(prompts)) == len(prompts) > 200


def test_a_seed_draws_the_same_again():
    """All systems get the same requests in a round."""
    for workload in WORKLOADS.values():
        assert workload.drawn(1) == workload.drawn(1) != workload.drawn(2)


def test_ours_keeps_no_prefixes_as_vllm_keeps_none():
    """`--no-enable-prefix-caching` is what vLLM is started with."""
    text = CONFIG.format(precision="bf16")
    assert 'key: "precision" value { string_value: "bf16" }' in text
    assert 'key: "prefix_cache" value { string_value: "off" }' in text
