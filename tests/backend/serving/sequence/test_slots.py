"""Who lives in which slot, against a plain oracle."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.integrity import slot_defects
from ge_backend.errors import ExecutorLost, InvalidRequest
from ge_backend.serving.sequence.slots import SlotTable


def table(capacity=2, idle_s=10.0):
    return SlotTable(capacity, idle_s)


def step(slots, sequence, *, start=False, end=False, now_s=0.0):
    taken = slots.admit(sequence, start=start, end=end, now_s=now_s)
    slots.advance(taken)
    if taken.last:
        slots.leave(taken)
    return taken


def test_a_sequence_keeps_its_slot_from_start_to_end():
    """Every step finds the state where the one before left it."""
    slots = table()
    first = step(slots, 7, start=True)
    other = step(slots, 8, start=True)
    assert first.slot != other.slot
    assert step(slots, 7).slot == step(slots, 7, end=True).slot == first.slot
    assert (first.starting, step(slots, 8).starting) == (True, False)
    assert slot_defects(slots) == []


def test_a_slot_is_taken_again_after_the_end():
    """END makes room."""
    slots = table(capacity=1)
    assert step(slots, 7, start=True, end=True).slot == step(slots, "eight", start=True).slot
    assert slots.live == 1


def test_who_did_not_begin_is_told_so():
    """A step without START, or after END, is the client's error, and says what to do."""
    slots = table()
    with pytest.raises(InvalidRequest, match=r"sequence 'a' is not known.*sequence_start"):
        step(slots, "a")
    step(slots, "a", start=True, end=True)
    with pytest.raises(InvalidRequest, match="has ended"):
        step(slots, "a", end=True)


def test_start_in_the_middle_begins_anew():
    """The state of before is dropped."""
    slots = table(capacity=1)
    step(slots, 7, start=True)
    assert step(slots, 7, start=True).starting
    assert slots.live == 1
    assert slot_defects(slots) == []


def test_an_idle_sequence_makes_room_for_another():
    """Until then its steps are taken: that it is alive is the host's to say, whose clock counts."""
    slots = table(capacity=1, idle_s=5.0)
    step(slots, 7, start=True, now_s=0.0)
    step(slots, 7, now_s=10.5)
    step(slots, 8, start=True, now_s=15.6)
    with pytest.raises(InvalidRequest, match="idle for over 5 s"):
        step(slots, 7, now_s=15.6)
    assert (slots.events["expired"], slots.events["displaced"]) == (1, 0)


def test_the_host_may_say_which_slot_is_taken():
    """Its owner is gone then; so is nobody else, whoever was idle longest."""
    slots = table(capacity=3)
    for sequence in (1, 2, 3):
        assert begin_at(slots, sequence, sequence - 1).slot == sequence - 1
    assert begin_at(slots, 4, 1).slot == 1
    assert begin_at(slots, 3, 0).slot == 0  # an id that has another place as well
    assert slots.live == 3
    assert slot_defects(slots) == []
    for sequence, place in ((1, 0), (2, 1), (3, 1)):
        with pytest.raises(InvalidRequest):
            slots.admit(sequence, start=False, end=False, now_s=0.0, place=place)
    for place in (0, 2):
        assert slots.admit(3, start=False, end=False, now_s=0.0, place=place).slot == place


def begin_at(slots, sequence, place):
    return slots.admit(sequence, start=True, end=False, now_s=0.0, place=place)


def test_a_new_sequence_displaces_the_one_idle_longest():
    """The host never has more alive than fit, so whoever is idle longest is gone already."""
    slots = table(capacity=2, idle_s=100.0)
    step(slots, 1, start=True)
    step(slots, 2, start=True)
    step(slots, 1)
    step(slots, 3, start=True)
    assert slots.events["displaced"] == 1
    step(slots, 1)
    with pytest.raises(InvalidRequest):
        step(slots, 2)


def test_lost_state_is_said_once_and_new_sequences_work():
    """The error names the loss; afterwards the sequence is as unknown as any."""
    slots = table()
    step(slots, 7, start=True)
    slots.lose_all()
    with pytest.raises(ExecutorLost, match="state of sequence 7 was lost"):
        step(slots, 7)
    with pytest.raises(InvalidRequest):
        step(slots, 7)
    assert step(slots, 7, start=True).starting
    assert slots.events["lost"] == 1
    assert slot_defects(slots) == []


def test_a_step_that_was_overtaken_frees_nothing():
    """A late END of a sequence whose slot is another's leaves that one alone."""
    slots = table(capacity=1)
    late = slots.admit(1, start=True, end=True, now_s=0.0)
    step(slots, 2, start=True)
    slots.advance(late)
    slots.leave(late)
    assert slots.live == 1
    assert slot_defects(slots) == []


EVENTS = st.lists(
    st.tuples(st.integers(1, 5), st.booleans(), st.booleans(), st.floats(0, 4)), max_size=60
)


@settings(max_examples=200, deadline=None)
@given(events=EVENTS, capacity=st.integers(1, 3))
def test_any_order_of_events_agrees_with_an_oracle(events, capacity):
    """Live ids, freshness and the number of slots are those of a list kept by hand."""
    slots, alive, now = SlotTable(capacity, 5.0), [], 0.0
    for sequence, start, end, pause in events:
        now += pause
        if start and sequence not in alive and len(alive) == capacity:
            del alive[0]
        if start or sequence in alive:
            taken = step(slots, sequence, start=start, end=end, now_s=now)
            assert taken.starting == start
            assert 0 <= taken.slot < capacity
            alive = [other for other in alive if other != sequence] + [sequence] * (not end)
        else:
            with pytest.raises(InvalidRequest):
                step(slots, sequence, start=start, end=end, now_s=now)
        assert slots.live == len(alive)
        assert slot_defects(slots) == []
