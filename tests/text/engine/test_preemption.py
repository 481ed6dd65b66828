"""How a sequence gives its blocks up."""

import pytest

from builders.generation import sequence
from ge_text.engine.preemption import Preemption
from ge_text.engine.settings import PreemptionMode


def computed(tokens):
    made = sequence(prompt=(1,) * tokens)
    made.num_computed = tokens
    return made


def test_recomputing_never_swaps():
    """The plain way needs no memory."""
    assert not Preemption(PreemptionMode.RECOMPUTE, 100).swaps(computed(8), 2)


def test_swapping_ends_where_host_memory_does():
    """What finds no room is recomputed, and what comes back gives room."""
    preemption = Preemption(PreemptionMode.SWAP, 5)
    assert preemption.swaps(computed(8), 5)
    assert not preemption.swaps(computed(8), 6)
    preemption.took(4)
    assert not preemption.swaps(computed(8), 2)
    preemption.gave_back(4)
    assert preemption.swaps(computed(8), 2)


def test_nothing_computed_is_nothing_to_keep():
    """A sequence without keys starts over for free."""
    assert not Preemption(PreemptionMode.SWAP, 5).swaps(computed(0), 0)


@pytest.mark.parametrize(("token_s", "swaps"), [(0.001, True), (0.0001, False)])
def test_auto_takes_what_was_measured_cheaper(token_s, swaps):
    """Two copies of two blocks at 1 ms against eight tokens."""
    preemption = Preemption(PreemptionMode.AUTO, 5)
    preemption.observe_swap(2, 0.002)
    preemption.token_s = token_s
    assert preemption.swaps(computed(8), 2) is swaps


def test_auto_tries_a_swap_before_it_knows():
    """Nothing can be compared that was never measured."""
    preemption = Preemption(PreemptionMode.AUTO, 5)
    preemption.token_s = 0.001
    assert preemption.swaps(computed(8), 2)


def test_later_measurements_move_the_estimate():
    """One slow copy is soon outweighed."""
    preemption = Preemption(PreemptionMode.AUTO, 5)
    preemption.token_s = 0.001
    preemption.observe_swap(1, 1.0)
    assert not preemption.swaps(computed(8), 1)
    for _ in range(40):
        preemption.observe_swap(1, 0.0001)
    assert preemption.swaps(computed(8), 1)
