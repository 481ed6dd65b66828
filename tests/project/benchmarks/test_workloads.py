"""What text generation is asked for, and what this backend's server may remember of it."""

from benchmarks.generation.ours import CONFIG
from benchmarks.generation.workloads import WORKLOADS

# Less than a block of the cache has; what begins alike for a block would be computed once.
BEGINNING = 8


def test_no_two_prompts_of_a_run_begin_alike():
    """A cache of prefixes would save one system what another computes; `shared` is about them."""
    prompts = [
        ask.prompt[:BEGINNING]
        for name, workload in WORKLOADS.items()
        if name != "shared"
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


def test_what_is_shared_is_new_in_each_round():
    """16 prompts of a round have 512 tokens in common, and none with those of another round."""
    rounds = [{ask.prompt[:512] for ask in WORKLOADS["shared"].drawn(seed)} for seed in (1, 2)]
    assert [len(begins) for begins in rounds] == [1, 1]
    assert not rounds[0] & rounds[1]
