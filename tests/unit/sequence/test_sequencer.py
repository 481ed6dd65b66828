"""Each request gets the slot of its sequence, and states keep their sizes."""

import pytest

from ge_backend.errors import ExecutorLost, GraphFailed, InvalidRequest
from ge_backend.flow.request import Request
from ge_backend.sequence.sequencer import Sequencer
from ge_backend.sequence_batching import SequenceBatching, State
from ge_backend.tensors import DATA_TYPES


def sequencer(dims=(2,), capacity=2, strategy="oldest"):
    state = State(
        input="h",
        output="n",
        dtype=DATA_TYPES["FP32"],
        dims=dims,
        initial_dims=tuple(max(dim, 0) for dim in dims),
    )
    return Sequencer(
        SequenceBatching(
            strategy=strategy, capacity=capacity, idle_s=9, controls=(), states=(state,)
        )
    )


def admit(steps, name, *, start=False, end=False, index=0, rows=1):
    request = Request(index=index, rows=rows, tensors={}, sizes=())
    return steps.admit(request, name, start=start, end=end, now_s=0.0)


def settle(steps, error=None, size=2, index=0):
    steps.settle(index, error, {"h": (size,)})


def test_a_step_runs_in_its_sequences_slot():
    """Begun fresh, gone on, and freed at the end."""
    steps = sequencer()
    assert admit(steps, 1, start=True).fresh
    settle(steps)
    on = admit(steps, 1, end=True)
    assert (on.slot, on.fresh, on.states) == (0, False, ())
    settle(steps)
    assert steps.figures().live == 0
    assert steps.integrity() == []


def test_sizes_that_vary_are_each_sequences_own():
    """Only sequences whose states have equal sizes run together."""
    steps = sequencer(dims=(-1,))
    assert admit(steps, 1, start=True).states == ((0,),)
    settle(steps, size=5)
    assert admit(steps, 1).states == ((5,),)
    settle(steps, error=GraphFailed("no"), size=6)
    assert admit(steps, 1).states == ((5,),)
    settle(steps, size=6)
    assert admit(steps, 1, start=True).states == ((0,),)
    settle(steps)
    assert admit(steps, 1).key != admit(steps, 2, start=True, index=1).key


def test_with_direct_scheduling_a_slot_is_the_place_in_the_batch():
    """Whoever was there is gone: nobody else has to make room."""
    steps = sequencer(strategy="direct")
    for index, name in enumerate("ab"):
        assert admit(steps, name, start=True, index=index).slot == index
        settle(steps, index=index)
    assert admit(steps, "c", start=True, index=1).slot == 1
    settle(steps, index=1)
    assert not admit(steps, "a").fresh
    settle(steps)
    assert steps.figures().displaced == 1
    with pytest.raises(InvalidRequest):
        admit(steps, "b", index=1)


def test_with_oldest_scheduling_as_many_may_vanish_as_live():
    """The host does not say who was cancelled; the one that lives is not given up for that."""
    steps = sequencer(capacity=2)
    for name in ("lives", "b", "c", "d"):
        admit(steps, name, start=True)
        settle(steps)
    assert not admit(steps, "lives").fresh


def test_several_rows_are_refused():
    """A step is one row of a batch."""
    with pytest.raises(InvalidRequest, match="this request has 3"):
        admit(sequencer(), 1, start=True, rows=3)


def test_a_failed_last_step_frees_its_slot_all_the_same():
    """The host has ended the sequence."""
    steps = sequencer()
    admit(steps, 1, start=True, end=True)
    settle(steps, error=GraphFailed("no"))
    assert steps.figures().live == 0


def test_steps_without_an_outcome_have_failed():
    """After an unforeseen error their slots are free all the same."""
    steps = sequencer()
    admit(steps, 1, start=True, index=0)
    admit(steps, 2, start=True, end=True, index=1)
    steps.settle_rest()
    assert steps.figures().live == 1
    assert admit(steps, 1).fresh
    assert steps.integrity() == []


def test_a_sequence_whose_first_step_failed_still_begins():
    """Else it would go on from what another one has left in the slot."""
    steps = sequencer(capacity=1)
    admit(steps, 1, start=True, end=True)
    settle(steps)
    admit(steps, 2, start=True)
    settle(steps, error=GraphFailed("no"))
    assert admit(steps, 2).fresh
    settle(steps)
    assert not admit(steps, 2).fresh


def test_a_step_that_hears_of_the_loss_is_not_told_again():
    """One clear error for each sequence whose state is gone; then its id is unknown."""
    steps = sequencer()
    for index, name in enumerate("ab"):
        admit(steps, name, start=True, index=index)
        settle(steps, index=index)
    admit(steps, "a")
    steps.lose_all()
    settle(steps, error=ExecutorLost("gone"))
    with pytest.raises(InvalidRequest):
        admit(steps, "a")
    with pytest.raises(ExecutorLost, match="state of sequence 'b'"):
        admit(steps, "b")
    assert admit(steps, "a", start=True).fresh
    assert steps.integrity() == []
