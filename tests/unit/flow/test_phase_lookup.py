from bisect import insort

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_backend.errors import ConfigError
from ge_backend.flow.phase_lookup import fallback_value, first_covering, look_up
from ge_backend.flow.phase_parameters import Phase, PhaseParameters, SlidingWindow
from ge_backend.flow.phases import phase_buckets

BUCKETS = st.sets(st.tuples(*[st.integers(0, 5)] * 3), max_size=9).map(sorted)


def test_first_covering_is_the_reference_s(golden):
    """The first bucket in list order that covers is found, or none."""
    for case in golden("find"):
        found = first_covering([tuple(bucket) for bucket in case["list"]], tuple(case["target"]))
        assert found == (tuple(case["bucket"]) if case["bucket"] else None)


@given(buckets=BUCKETS, ask=st.tuples(*[st.integers(0, 6)] * 3))
def test_first_covering_finds_what_there_is(buckets, ask):
    """It finds the first of those that cover, whatever the list."""
    covering = [b for b in buckets if all(h >= n for h, n in zip(b, ask, strict=True))]
    assert first_covering(buckets, ask) == (covering[0] if covering else None)


def test_fallback_values_are_the_reference_s(golden):
    """Fallback sizes grow in steps of the cube root."""
    for case in golden("fallback_value"):
        assert fallback_value(*case["args"]) == case["value"]


@given(number=st.integers(2, 10**12), step=st.integers(1, 256))
def test_fallback_values_are_multiples_of_the_exact_cube_root(number, step):
    """A fallback is the next multiple of the rounded-up cube root times the step."""
    value = fallback_value(number, step)
    root = next(r for r in range(round(number ** (1 / 3)) - 1, 10**5) if r**3 >= number)
    assert value >= number
    assert value % (root * step) == 0
    assert value - number < root * step


def test_a_step_below_one_is_an_error():
    """There are no multiples of nothing."""
    with pytest.raises(ConfigError, match="step of a fallback is 0"):
        fallback_value(5, 0)


def test_lookups_are_the_reference_s(golden, phase_parameters, phase_rule):
    """Runs get the reference's buckets, those it makes included, in the order they were asked."""
    for case in golden("lookup"):
        parameters, phase = phase_parameters(case), Phase(case["phase"])
        made = phase_buckets(parameters, phase, phase_rule(case, compat=True))
        buckets = list(made.buckets)
        for ask, bucket, added in case["lookups"]:
            decode = phase is Phase.DECODE
            wanted = (ask[0], 1, ask[1]) if decode else tuple(ask)
            seeds = made.seeds if decode and len(ask) == 3 else ()
            found = look_up(parameters, phase, buckets, wanted, seeds)
            assert list(found.bucket) == bucket, (case["id"], ask)
            if added:
                insort(buckets, found.bucket)
            else:
                assert found.prepared


@given(
    ask=st.tuples(st.integers(1, 20), st.integers(1, 3000), st.integers(0, 40)),
    window=st.none() | st.just(SlidingWindow(threshold=256, slice=128)),
)
def test_it_says_whether_a_bucket_is_large_enough(ask, window):
    """A bucket that the caps made smaller than the run is marked."""
    parameters = PhaseParameters(
        max_seqs=8,
        max_prefill_seqs=1,
        block_tokens=128,
        max_batch_tokens=1024,
        max_model_tokens=1024,
        num_blocks=300,
        sliding_window=window,
    )
    found = look_up(parameters, Phase.PROMPT, [(1, 128, 0), (4, 256, 4)], ask)
    assert found.covers == all(h >= n for h, n in zip(found.bucket, ask, strict=True))
    if ask[0] <= 4 and ask[1] <= 256 and ask[2] <= 4:
        assert found.covers
        assert found.prepared
