"""Each request gets the slot of its sequence, and states keep their sizes."""

from dataclasses import replace

import numpy as np
import pytest

from builders.integrity import slot_defects
from ge_backend.errors import (
    Cancelled,
    DeadlineExceeded,
    ExecutorLost,
    GraphFailed,
    InvalidRequest,
    OutOfMemory,
    QueueFull,
    StateLost,
)
from ge_backend.model.config.sequence_batching import SequenceBatching, State
from ge_backend.serving.batching.request import Request
from ge_backend.serving.sequence.sequencer import END, START, Sequencer
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
    steps.admit(request, name, start * START + end * END, 0.0)
    return request


def settle(steps, error=None, size=2, index=0):
    steps.settle(index, error, {"h": (size,)})


FAILURES = [GraphFailed("no"), Cancelled("no"), DeadlineExceeded("no"), OutOfMemory("no")]


def begin(steps, name, *, size=2, index=0):
    """Let a sequence's first step go well."""
    admit(steps, name, start=True, index=index)
    settle(steps, size=size, index=index)


def test_a_step_is_the_request_with_its_slot():
    """Whatever else is known of it."""
    known = Request(
        index=3,
        rows=1,
        tensors={"x": np.ones(1)},
        sizes=(4,),
        equal_sizes=(5,),
        omitted=("y",),
        deadline_ns=6,
        cancelled=lambda: True,
        on_device={"z": object()},
        wanted=frozenset({"out"}),
        common=(7,),
    )
    expected = replace(known, slot=0, starting=True, states=((0,),))
    sequencer(dims=(-1,)).admit(known, 1, START, 0.0)
    assert known == expected


def test_a_step_runs_in_its_sequences_slot():
    """Begun fresh, gone on, and freed at the end."""
    steps = sequencer()
    assert admit(steps, 1, start=True).starting
    settle(steps)
    on = admit(steps, 1, end=True)
    assert (on.slot, on.starting, on.states) == (0, False, ())
    settle(steps)
    assert steps.live == 0
    assert slot_defects(steps._table) == []


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


def test_only_states_whose_sizes_vary_have_to_be_told():
    """The others' are known beforehand."""
    fixed, varying = (
        State(input=name, output="n", dtype=DATA_TYPES["FP32"], dims=dims, initial_dims=(2,))
        for name, dims in (("fixed", (2,)), ("h", (-1,)))
    )
    steps = Sequencer(
        SequenceBatching(
            strategy="oldest", capacity=2, idle_s=9, controls=(), states=(fixed, varying)
        )
    )
    assert admit(steps, 1, start=True).states == ((2,),)
    settle(steps, size=5)
    assert admit(steps, 1).states == ((5,),)


def test_with_direct_scheduling_a_slot_is_the_place_in_the_batch():
    """Whoever was there is gone: nobody else has to make room."""
    steps = sequencer(strategy="direct")
    for index, name in enumerate("ab"):
        assert admit(steps, name, start=True, index=index).slot == index
        settle(steps, index=index)
    assert admit(steps, "c", start=True, index=1).slot == 1
    settle(steps, index=1)
    assert not admit(steps, "a").starting
    settle(steps)
    assert steps.events["displaced"] == 1
    with pytest.raises(InvalidRequest):
        admit(steps, "b", index=1)


def test_with_oldest_scheduling_as_many_may_vanish_as_live():
    """The host does not say who was cancelled; the one that lives is not given up for that."""
    steps = sequencer(capacity=2)
    for name in ("lives", "b", "c", "d"):
        admit(steps, name, start=True)
        settle(steps)
    assert not admit(steps, "lives").starting


def test_several_rows_are_refused():
    """A step is one row of a batch."""
    with pytest.raises(InvalidRequest, match="this request has 3"):
        admit(sequencer(), 1, start=True, rows=3)


@pytest.mark.parametrize("error", FAILURES)
def test_a_last_step_that_did_not_run_frees_its_slot_all_the_same(error):
    """The host has ended the sequence, whether END failed, came too late or was cancelled."""
    steps = sequencer()
    begin(steps, 1)
    admit(steps, 1, end=True)
    settle(steps, error=error)
    assert (steps.live, steps.events["ended"]) == (0, 1)
    with pytest.raises(InvalidRequest):
        admit(steps, 1)
    assert slot_defects(steps._table) == []


@pytest.mark.parametrize("error", FAILURES)
def test_a_step_that_did_not_run_changes_nothing(error):
    """The state and its size are those of before; a first step is still the first."""
    steps = sequencer(dims=(-1,))
    admit(steps, 1, start=True)
    settle(steps, error=error, size=7)
    again = admit(steps, 1)
    assert (again.starting, again.states) == (True, ((0,),))
    settle(steps, size=3)
    admit(steps, 1)
    settle(steps, error=error, size=9)
    third = admit(steps, 1)
    assert (third.starting, third.states) == (False, ((3,),))


@pytest.mark.parametrize("error", FAILURES)
def test_a_start_in_the_middle_that_did_not_run_drops_the_state_of_before(error):
    """The next step begins anew, and does not go on from what the client gave up."""
    steps = sequencer(dims=(-1,))
    begin(steps, 1, size=5)
    admit(steps, 1, start=True)
    settle(steps, error=error)
    on = admit(steps, 1)
    assert (on.starting, on.states) == (True, ((0,),))


def test_a_request_that_cannot_be_run_begins_and_ends_its_sequence():
    """The host has done so; else the next step would go on from the state of before."""
    steps = sequencer(dims=(-1,))
    begin(steps, 1, size=5)
    steps.skip(0, 1, START, 0.0)
    assert (steps.events["begun"], steps.events["ended"]) == (2, 1)
    on = admit(steps, 1)
    assert (on.starting, on.states) == (True, ((0,),))
    settle(steps)
    steps.skip(0, 1, END, 0.0)
    assert steps.live == 0
    steps.skip(0, 1, END, 0.0)  # nobody knows it
    assert slot_defects(steps._table) == []


def test_a_request_that_cannot_be_run_does_not_hear_of_a_loss():
    """Its client is told what is wrong with it; that the state is gone the next one is told."""
    steps = sequencer()
    begin(steps, 1)
    steps.lose_all()
    for end in (False, True):
        steps.skip(0, 1, end * END, 0.0)
    with pytest.raises(ExecutorLost, match="state of sequence 1"):
        admit(steps, 1)
    with pytest.raises(InvalidRequest):
        admit(steps, 1)
    steps.skip(0, 1, START, 0.0)
    assert admit(steps, 1).starting
    assert slot_defects(steps._table) == []


def test_a_step_whose_state_moved_on_without_an_answer_loses_its_sequence():
    """To repeat it would count it twice; others, and the id when it begins again, are well."""
    steps = sequencer()
    for index, name in enumerate("ab"):
        admit(steps, name, start=True, index=index)
    settle(steps, error=StateLost("moved on"))
    settle(steps, index=1)
    assert (steps.live, steps.events["lost"]) == (1, 1)
    with pytest.raises(InvalidRequest):
        admit(steps, "a")
    assert not admit(steps, "b").starting
    settle(steps)
    assert admit(steps, "a", start=True).starting
    assert slot_defects(steps._table) == []


def test_who_begins_anew_does_not_meet_the_last_step_of_before():
    """One batch may have both, with `oldest`: each has a slot, and the old step counts for none."""
    steps = sequencer(dims=(-1,), capacity=1)
    begin(steps, 1, size=5)
    old = admit(steps, 1, end=True, index=0)
    new = admit(steps, 1, start=True, index=1)
    assert (old.states, new.states, new.starting) == (((5,),), ((0,),), True)
    assert old.slot != new.slot
    settle(steps, size=6, index=0)
    settle(steps, error=GraphFailed("no"), index=1)
    on = admit(steps, 1)
    assert (on.slot, on.starting, on.states) == (new.slot, True, ((0,),))
    assert steps.events["ended"] == 1  # by the START
    assert slot_defects(steps._table) == []


def test_nobody_gets_a_slot_with_a_step_under_way():
    """Rather than to mix two states, the host is told to try again; it never sends so many."""
    steps = sequencer(capacity=1)
    for index, name in enumerate("ab"):
        admit(steps, name, start=True, index=index)
    with pytest.raises(QueueFull, match="all 2 slots"):
        admit(steps, "c", start=True, index=2)
    settle(steps, index=0)
    settle(steps, index=1)
    assert admit(steps, "c", start=True, index=2).starting
    assert slot_defects(steps._table) == []


def test_an_id_at_two_places_is_two_sequences():
    """With `direct`, steps of before may still wait at the one when it begins at the other."""
    steps = sequencer(dims=(-1,), strategy="direct")
    begin(steps, 1, size=5, index=0)
    begin(steps, 1, size=8, index=1)
    assert [admit(steps, 1, index=place).states for place in (0, 1)] == [((5,),), ((8,),)]
    settle(steps, size=6, index=0)
    settle(steps, size=9, index=1)
    admit(steps, 1, end=True, index=0)
    settle(steps, size=7, index=0)
    assert admit(steps, 1, index=1).states == ((9,),)
    assert slot_defects(steps._table) == []


def test_a_success_that_is_told_after_a_loss_counts_for_nobody():
    """The slot is free, and who gets it begins with the initial size."""
    steps = sequencer(dims=(-1,))
    begin(steps, 1)
    admit(steps, 1)
    steps.lose_all()
    settle(steps, size=5)
    with pytest.raises(ExecutorLost):
        admit(steps, 1)
    other = admit(steps, 2, start=True)
    assert (other.starting, other.states) == (True, ((0,),))
    assert slot_defects(steps._table) == []


def test_a_sequence_whose_first_step_is_under_way_is_not_lost():
    """It had no state yet, so the step is repeated; only if that fails, too, the sequence ends."""
    steps = sequencer(dims=(-1,))
    begin(steps, "old", index=0)
    for index, name in enumerate("ab"):
        admit(steps, name, start=True, index=index)
    steps.lose_all()
    assert (steps.live, steps.events["lost"]) == (2, 1)
    settle(steps, size=5, index=0)
    settle(steps, error=ExecutorLost("again"), index=1)
    assert (steps.live, steps.events["lost"]) == (1, 2)
    on = admit(steps, "a")
    assert (on.starting, on.states) == (False, ((5,),))
    with pytest.raises(InvalidRequest):
        admit(steps, "b", index=1)
    assert slot_defects(steps._table) == []


def test_steps_without_an_outcome_lose_their_sequences():
    """After an unforeseen error nobody knows what their states are."""
    steps = sequencer()
    admit(steps, 1, start=True, index=0)
    admit(steps, 2, start=True, end=True, index=1)
    steps.settle_rest()
    assert (steps.live, steps.events["lost"]) == (0, 2)
    with pytest.raises(InvalidRequest):
        admit(steps, 1)
    assert slot_defects(steps._table) == []


def test_a_sequence_whose_first_step_failed_still_begins():
    """Else it would go on from what another one has left in the slot."""
    steps = sequencer(capacity=1)
    admit(steps, 1, start=True, end=True)
    settle(steps)
    admit(steps, 2, start=True)
    settle(steps, error=GraphFailed("no"))
    assert admit(steps, 2).starting
    settle(steps)
    assert not admit(steps, 2).starting


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
    assert admit(steps, "a", start=True).starting
    assert slot_defects(steps._table) == []
