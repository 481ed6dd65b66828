import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_backend.errors import ConfigError
from ge_backend.generate.buckets.phase_parameters import Phase, PhaseParameters, PhaseStrategy
from ge_backend.generate.buckets.phase_ranges import PhaseRule
from ge_backend.generate.buckets.phases import file_phase_buckets, phase_buckets

KINDS = ["exponential", "linear", "padding_aware", "lookup", "selection"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compat", [True, False])
def test_lists_are_the_reference_s(golden, digest, phase_parameters, phase_rule, kind, compat):
    """Every list comes out: in float64 all of them, exactly those that no tie decides."""
    for case in golden(kind):
        if "error" in case:
            with pytest.raises(ConfigError):
                phase_buckets(
                    phase_parameters(case), Phase(case["phase"]), phase_rule(case, compat=compat)
                )
        elif compat or not case.get("float_tie"):
            made = phase_buckets(
                phase_parameters(case), Phase(case["phase"]), phase_rule(case, compat=compat)
            )
            assert (len(made.buckets), digest(made.buckets)) == (case["count"], case["sha256"])
            if "seeds_sha256" in case:
                assert digest(made.seeds) == case["seeds_sha256"], case["id"]


def test_files_are_filtered_like_rules(golden, digest, phase_parameters, tmp_path):
    """Buckets from a file go through the same filters; a phase without any is an error."""
    path = tmp_path / "buckets.txt"
    for case in golden("file_buckets"):
        path.write_text(case["file_text"])
        given, phase = phase_parameters(case), Phase(case["phase"])
        if "error" in case:
            with pytest.raises(ConfigError):
                file_phase_buckets(given, phase, path)
        else:
            made = file_phase_buckets(given, phase, path)
            assert (len(made.buckets), digest(made.buckets)) == (case["count"], case["sha256"])


def test_what_a_file_loses_is_told(tmp_path):
    """Entries that do not fit are reported, so that nobody waits for them."""
    path = tmp_path / "buckets.txt"
    path.write_text("(1, [128, 2048], 0)\n(1, 1, 4)\n")
    given = PhaseParameters(
        max_seqs=4,
        max_prefill_seqs=1,
        block_tokens=128,
        max_batch_tokens=1024,
        max_model_tokens=1024,
    )
    made = file_phase_buckets(given, Phase.PROMPT, path)
    assert made.buckets == ((1, 128, 0),)
    assert made.refused == ((1, 2048, 0),)


def test_an_empty_phase_says_what_to_change(tmp_path):
    """A model shorter than one block has no prompt buckets; the error has the numbers."""
    given = PhaseParameters(
        max_seqs=8,
        max_prefill_seqs=1,
        block_tokens=128,
        max_batch_tokens=2048,
        max_model_tokens=100,
    )
    with pytest.raises(ConfigError, match="prompt buckets fits: max_model_tokens is 100"):
        phase_buckets(given, Phase.PROMPT, PhaseRule())


@given(
    seqs=st.integers(1, 16),
    block=st.sampled_from([16, 64, 128]),
    budget_blocks=st.integers(1, 40),
    model_blocks=st.integers(2, 64),
    strategy=st.sampled_from(list(PhaseStrategy)),
)
def test_prompt_buckets_keep_the_limits(seqs, block, budget_blocks, model_blocks, strategy):
    """No prompt bucket exceeds the token budget, the model's length, or its context."""
    given_ = PhaseParameters(
        max_seqs=seqs,
        max_prefill_seqs=seqs,
        block_tokens=block,
        max_batch_tokens=budget_blocks * block,
        max_model_tokens=model_blocks * block,
    )
    made = phase_buckets(given_, Phase.PROMPT, PhaseRule(strategy=strategy))
    assert made.buckets == tuple(sorted(set(made.buckets)))
    for batch, query, context in made.buckets:
        assert batch * query <= given_.max_batch_tokens
        assert query <= given_.max_model_tokens
        assert context <= model_blocks


@given(
    seqs=st.integers(1, 8),
    model_blocks=st.integers(1, 12),
    guesses=st.integers(0, 3),
)
def test_decode_buckets_cover_what_can_be_running(seqs, model_blocks, guesses):
    """Whatever sequences run, in a cache large enough, a decode bucket covers them."""
    given_ = PhaseParameters(
        max_seqs=seqs,
        max_prefill_seqs=1,
        block_tokens=16,
        max_batch_tokens=64,
        max_model_tokens=model_blocks * 16,
        num_blocks=seqs * model_blocks,
        speculative_tokens=guesses,
    )
    made = phase_buckets(given_, Phase.DECODE, PhaseRule())
    for batch, context in itertools.product(range(1, seqs + 1), range(1, model_blocks + 1)):
        ask = (batch, 1, batch * context)
        assert any(all(h >= n for h, n in zip(b, ask, strict=True)) for b in made.seeds)
    assert set(made.seeds) <= set(made.buckets)
