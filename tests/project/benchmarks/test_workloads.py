"""What text generation is asked for, and what this backend's server may remember of it."""

from benchmarks.bench_generation import _parse
from benchmarks.generation.ours import Ours, config_of
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
    text = config_of({"precision": "bf16"})
    assert 'key: "precision" value { string_value: "bf16" }' in text
    assert 'key: "prefix_cache" value { string_value: "off" }' in text


def test_a_second_server_of_ours_has_further_parameters():
    """It is told apart by its name, and is the same but for those."""
    asked = _parse(["--set", "stream_interval=4", "stop=a=b"]).set
    assert asked == [("stream_interval", "4"), ("stop", "a=b")]
    plain, other = Ours("fp32"), Ours("fp32", dict(asked[:1]))
    assert (plain.name, other.name) == ("ge", "ge, set so")
    line = 'parameters { key: "stream_interval" value { string_value: "4" } }\n'
    assert config_of(other._parameters) == config_of(plain._parameters) + line


def test_what_is_shared_is_new_in_each_round():
    """16 prompts of a round have 512 tokens in common, and none with those of another round."""
    rounds = [{ask.prompt[:512] for ask in WORKLOADS["shared"].drawn(seed)} for seed in (1, 2)]
    assert [len(begins) for begins in rounds] == [1, 1]
    assert not rounds[0] & rounds[1]
