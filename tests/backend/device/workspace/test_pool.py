"""A pool gives each holder a place, each run its bytes, and recounts what it gave."""

import random
import re
import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ge_backend.device.base import Range
from ge_backend.device.workspace.pool import Lease, Pool
from ge_backend.errors import OutOfMemory, ProtocolError

GIB = 2**30


@pytest.fixture
def pool():
    pool = Pool(12 * GIB)
    yield pool
    assert pool.integrity() == []


def bound(pool, holder, nbytes):
    return pool.workspace(holder).place(nbytes)


def measured(pool, holder, nbytes):
    pool.workspace(holder)
    return pool.place(holder, nbytes, bound=False)


def test_two_holders_share_what_they_cannot_both_have(pool):
    """The issue's example: 8 and 6 GiB in a pool of 12; each runs while the other does not."""
    a, b = bound(pool, "a", 8 * GIB), bound(pool, "b", 6 * GIB)
    assert a.overlaps(b)
    lease = pool.lease("a")
    assert pool.lease("b") is None
    pool.release(lease)
    other = pool.lease("b")
    assert pool.lease("a") is None
    pool.release(other)


def test_disjoint_holders_run_at_once(pool):
    """Places that do not overlap are leased side by side, and one place is leased once."""
    bound(pool, "a", 5 * GIB)
    bound(pool, "b", 6 * GIB)
    leases = [pool.lease("a"), pool.lease("b")]
    assert None not in leases
    assert pool.lease("a") is None
    assert pool.figures().leased_bytes == sum(r.nbytes for lease in leases for r in lease.ranges)
    for lease in leases:
        pool.release(lease)


def test_a_place_that_is_large_enough_stays(pool):
    """Asking again for as much or less changes nothing."""
    workspace = pool.workspace("a")
    place = workspace.place(GIB)
    assert workspace.place(GIB // 2) == place
    assert workspace.place(GIB) == place


def test_a_place_grows_and_the_former_one_is_given_back(pool):
    """After growing only the new range counts; others are where they were."""
    workspace = pool.workspace("a")
    workspace.place(GIB)
    other = bound(pool, "b", 2 * GIB)
    assert workspace.place(9 * GIB).nbytes >= 9 * GIB
    assert pool.claim("b") == (other,)
    assert len(pool.claim("a")) == 1
    assert pool.figures().holders == {"a": 9 * GIB, "b": 2 * GIB}


def test_a_run_that_has_begun_keeps_the_former_place(pool):
    """Growing while a run is in flight leaves it its bytes, which nobody else gets meanwhile."""
    workspace = pool.workspace("a")
    former = workspace.place(GIB)
    lease = pool.lease("a")
    workspace.place(11 * GIB)
    assert lease.ranges == (former,)
    bound(pool, "b", 12 * GIB)
    assert pool.lease("b") is None
    pool.release(lease)
    again = pool.lease("b")
    assert again is not None
    pool.release(again)


def test_what_is_larger_than_the_pool_is_refused_with_the_numbers(pool):
    """Needed, available, and who holds what; nothing has changed afterwards."""
    bound(pool, "a", 8 * GIB)
    place = bound(pool, "b", 6 * GIB)
    workspace = pool.workspace("c")
    with pytest.raises(OutOfMemory) as caught:
        workspace.place(13 * GIB)
    for text in ("c needs 13 GiB", f"{GIB} bytes more", "12 GiB", "a 8 GiB, b 6 GiB"):
        assert text in str(caught.value)
    assert pool.claim("c") == ()
    with pytest.raises(OutOfMemory):
        pool.place("b", 14 * GIB, bound=True)
    assert pool.claim("b") == (place,)


def test_a_pool_of_the_size_of_its_largest_holder_holds_it():
    """What a model was said to need is enough for it."""
    pool = Pool(1000)
    assert bound(pool, "a", 1000).nbytes == 1000
    with pytest.raises(OutOfMemory, match="1 bytes more"):
        bound(pool, "b", 1001)


def test_without_a_size_nobody_waits():
    """Where no pool was set aside every graph has bytes of its own, from 0 on."""
    pool = Pool(0)
    assert bound(pool, "a", GIB) == Range(offset=0, nbytes=GIB)
    assert bound(pool, "b", 99 * GIB) == Range(offset=0, nbytes=99 * GIB)
    leases = [pool.lease(holder) for holder in ("a", "b", "a")]
    assert [lease.ranges for lease in leases] == [(), (), ()]
    for lease in leases:
        pool.release(lease)
    pool.remove("a")
    assert pool.integrity() == []


def test_who_has_no_place_runs_without_bytes(pool):
    """A graph that never said what it needs waits for nobody and keeps nobody waiting."""
    pool.workspace("dynamic")
    bound(pool, "a", 12 * GIB)
    leases = [pool.lease("a"), pool.lease("dynamic"), pool.lease("dynamic")]
    assert None not in leases
    for lease in leases:
        pool.release(lease)


def test_a_removed_holder_makes_room_and_may_come_again(pool):
    """Its bytes are free for others, and its name too."""
    bound(pool, "a", 12 * GIB)
    pool.remove("a")
    assert pool.figures().holders == {}
    assert pool.figures().placed_bytes == 0
    assert bound(pool, "a", GIB) == Range(offset=0, nbytes=GIB + 64)


def test_a_lease_outlives_its_holder(pool):
    """A run that is in flight when its graph is unloaded keeps its bytes to its end."""
    bound(pool, "a", 12 * GIB)
    lease = pool.lease("a")
    pool.remove("a")
    bound(pool, "b", GIB)
    assert pool.lease("b") is None
    pool.release(lease)
    other = pool.lease("b")
    assert other is not None
    pool.release(other)


def test_names_are_used_once_and_known(pool):
    """Two holders of one name, an unknown one, and a lease released twice are defects."""
    pool.workspace("a")
    with pytest.raises(ProtocolError, match="a is in the workspace pool already"):
        pool.workspace("a")
    for use in (pool.lease, pool.claim, pool.remove):
        with pytest.raises(ProtocolError, match="stranger is not in the workspace pool"):
            use("stranger")
    lease = pool.lease("a")
    pool.release(lease)
    with pytest.raises(ProtocolError, match="released twice"):
        pool.release(lease)


def test_bytes_for_which_another_has_waited_longer_are_not_given(pool):
    """A claim counts like a lease, for whoever it is not."""
    a = bound(pool, "a", GIB)
    bound(pool, "b", GIB)
    assert pool.lease("a", claimed=[a]) is None
    lease = pool.lease("b", claimed=[a])
    assert lease is not None
    pool.release(lease)


def test_bound_places_never_move(pool):
    """Whoever comes and goes, addresses that were built into a graph stay."""
    places = {name: bound(pool, name, 3 * GIB) for name in "abc"}
    measured(pool, "m", 5 * GIB)
    pool.remove("b")
    bound(pool, "d", 11 * GIB)
    for name in "ac":
        assert pool.claim(name) == (places[name],)


def test_measured_places_give_way(pool):
    """A range that is only counted is moved so that a bound one meets nobody, unless it is in use."""
    first = measured(pool, "m", 4 * GIB)
    assert first.offset == 0
    bound(pool, "a", 4 * GIB)
    bound(pool, "b", 3 * GIB)
    pool.remove("a")
    lease = pool.lease("m")
    stays = pool.claim("m")
    pool.workspace("c")
    pool.place("c", 5 * GIB, bound=True)
    assert pool.claim("m") == stays
    pool.release(lease)


def test_measuring_does_not_move_what_is_bound(pool):
    """The executor's measurement never takes a graph's range from under it."""
    place = bound(pool, "a", GIB)
    assert pool.place("a", 5 * GIB, bound=False) == place
    assert pool.claim("a") == (place,)


def test_who_says_that_he_needs_nothing_is_left_alone(pool):
    """A graph whose scratch is elsewhere waits for nobody, whatever is measured for it."""
    assert pool.workspace("elsewhere").place(0) == Range(offset=0, nbytes=0)
    for nbytes in (GIB, 99 * GIB):
        assert pool.place("elsewhere", nbytes, bound=False).nbytes == 0
    bound(pool, "a", 12 * GIB)
    leases = [pool.lease("a"), pool.lease("elsewhere", GIB), pool.lease("elsewhere")]
    assert None not in leases
    assert pool.figures().holders == {"elsewhere": 0, "a": 12 * GIB}
    for lease in leases:
        pool.release(lease)


def test_a_measured_holder_takes_what_its_run_takes(pool):
    """A small run of a large model leaves the rest to others; a run of all takes all."""
    measured(pool, "m", 8 * GIB)
    small = pool.lease("m", 2 * GIB)
    assert [r.nbytes for r in small.ranges] == [2 * GIB]
    assert pool.lease("m", 12 * GIB) is None
    pool.release(small)
    whole = pool.lease("m", 99 * GIB)
    assert whole.ranges == (Range(offset=0, nbytes=12 * GIB),)
    pool.release(whole)


def test_a_measured_holder_runs_beside_itself_as_far_as_there_is_room(pool):
    """12 GiB hold three runs of 4 GiB, wherever they lie, and no fourth one."""
    measured(pool, "m", 4 * GIB)
    leases = [pool.lease("m") for _ in range(3)]
    assert None not in leases
    assert pool.lease("m") is None
    assert pool.figures().leased_bytes == 12 * GIB
    for lease in leases:
        pool.release(lease)


def test_a_bound_holder_does_not_choose(pool):
    """Its address is built in: asking for fewer bytes gives it all of its place, or none."""
    place = bound(pool, "a", 4 * GIB)
    lease = pool.lease("a", GIB)
    assert lease.ranges == (place,)
    pool.release(lease)


def test_while_a_graph_changes_its_runs_hold_both_places(pool):
    """Between placing and the end of the change nobody knows which of the two a run uses."""
    workspace = pool.workspace("a")
    former = workspace.place(GIB)
    with pool.changing("a"):
        new = workspace.place(10 * GIB)
        lease = pool.lease("a")
        assert lease.ranges == (former, new)
        pool.release(lease)
    assert pool.claim("a") == (new,)


def test_a_changing_graph_waits_for_the_runs_that_hold_only_the_former_place(pool):
    """So that a run which has its lease, and has not looked up its range yet, finds the former."""
    workspace = pool.workspace("a")
    workspace.place(GIB)
    lease = pool.lease("a")
    placed = threading.Event()

    def change():
        with pool.changing("a"):
            workspace.place(10 * GIB)
            placed.set()

    thread = threading.Thread(target=change)
    thread.start()
    assert not placed.wait(0.05)
    pool.release(lease)
    assert placed.wait(20)
    thread.join()


def test_a_change_that_fails_leaves_the_former_place(pool):
    """The graph goes on with what it had."""
    workspace = pool.workspace("a")
    former = workspace.place(GIB)

    def change():
        with pool.changing("a"):
            workspace.place(10 * GIB)
            raise OutOfMemory("no room for the weights")

    with pytest.raises(OutOfMemory, match="weights"):
        change()
    assert pool.claim("a") == (former,)
    assert pool.figures().holders == {"a": GIB}


def test_a_change_without_a_new_place_changes_nothing(pool):
    """Most engines compile and need no more than before."""
    place = bound(pool, "a", GIB)
    with pool.changing("a"):
        assert pool.claim("a") == (place,)
    assert pool.claim("a") == (place,)


def test_the_figures_tell_what_is_placed_leased_and_was_leased_at_most(pool):
    """Overlapping places count once; the peak stays."""
    bound(pool, "a", 8 * GIB)
    bound(pool, "b", 6 * GIB)
    lease = pool.lease("a")
    pool.release(lease)
    pool.release(pool.lease("b"))
    figures = pool.figures()
    assert figures.size_bytes == 12 * GIB
    assert 8 * GIB <= figures.placed_bytes <= 12 * GIB
    assert (figures.leased_bytes, figures.peak_bytes) == (0, lease.ranges[0].nbytes)
    assert figures.holders == {"a": 8 * GIB, "b": 6 * GIB}


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda pool, lease: setattr(pool, "_leased_bytes", 7), r"hold \d+ bytes, 7 are counted"),
        (lambda pool, lease: pool._leases.remove(lease), "a has 0 leases, 1 are counted"),
        (lambda pool, lease: setattr(pool, "size_bytes", 100), r"up to \d+, the pool ends at 100"),
        (
            lambda pool, lease: pool._holdings["a"].__setattr__("nbytes", 9999),
            "a has a place of 1088 bytes, it asked for 9999",
        ),
        (
            lambda pool, lease: pool._leases.add(Lease("b", lease.ranges, 0)),
            "b has 1 leases, 0 are counted",
        ),
    ],
)
def test_what_does_not_agree_is_named_with_both_numbers(damage, text):
    """A recount finds what bookkeeping lost, each kind of it."""
    pool = Pool(4096)
    bound(pool, "a", 1024)
    bound(pool, "b", 1024)
    lease = pool.lease("a")
    assert pool.integrity() == []
    damage(pool, lease)
    assert any(re.search(text, found) for found in pool.integrity())


def test_two_that_use_the_same_bytes_are_named():
    """The worst that can happen is found by the recount."""
    pool = Pool(4096)
    place = bound(pool, "a", 1024)
    pool.lease("a")
    pool._leases.add(Lease("b", (place,), 0))
    assert any("a uses" in found or "b uses" in found for found in pool.integrity())


class PoolMachine(RuleBasedStateMachine):
    """Holders come, grow, run and go in any order; no bytes are ever used twice."""

    def __init__(self):
        super().__init__()
        self.pool = Pool(4096)
        self.bound, self.leases, self.count = {}, [], 0

    @rule(nbytes=st.integers(1, 5000), bound=st.booleans())
    def come(self, nbytes, bound):
        self.count += 1
        holder = f"h{self.count}"
        self.pool.workspace(holder)
        self.bound[holder] = bound
        try:
            place = self.pool.place(holder, nbytes, bound=bound)
        except OutOfMemory:
            assert nbytes > 4096
        else:
            assert nbytes <= place.nbytes

    @precondition(lambda self: self.bound)
    @rule(dice=st.randoms(use_true_random=False), nbytes=st.integers(1, 4096))
    def grow(self, dice, nbytes):
        holder = dice.choice(sorted(self.bound))
        self.pool.place(holder, nbytes, bound=self.bound[holder])

    @precondition(lambda self: self.bound)
    @rule(dice=st.randoms(use_true_random=False), nbytes=st.integers(0, 4096))
    def begin(self, dice, nbytes):
        holder = dice.choice(sorted(self.bound))
        claim = self.pool.claim(holder, nbytes)
        lease = self.pool.lease(holder, nbytes)
        taken = [r for held in self.leases for r in held.ranges]
        if lease is None:
            assert any(one.overlaps(other) for one in claim for other in taken)
        else:
            assert not any(one.overlaps(other) for one in lease.ranges for other in taken)
            self.leases.append(lease)

    @precondition(lambda self: self.leases)
    @rule(dice=st.randoms(use_true_random=False))
    def end(self, dice):
        self.pool.release(self.leases.pop(dice.randrange(len(self.leases))))

    @precondition(lambda self: self.bound)
    @rule(dice=st.randoms(use_true_random=False))
    def go(self, dice):
        holder = dice.choice(sorted(self.bound))
        del self.bound[holder]
        self.pool.remove(holder)

    @invariant()
    def agrees(self):
        assert self.pool.integrity() == []


PoolMachine.TestCase.settings = settings(deadline=None, max_examples=25, stateful_step_count=25)
TestPoolMachine = PoolMachine.TestCase


def test_many_threads_never_use_the_same_bytes(pool):
    """Leases taken and given back by eight threads at once mark their bytes, which nobody has."""
    for index in range(6):
        bound(pool, f"h{index}", (index + 1) * GIB)
    marked, lock, doubles, total = [], threading.Lock(), [], [0] * 8

    def work(index):
        dice = random.Random(index)
        while total[index] < 200:
            lease = pool.lease(f"h{dice.randrange(6)}")
            if lease is None:
                continue
            total[index] += 1
            with lock:
                doubles.extend(o for o in marked for r in lease.ranges if r.overlaps(o))
                marked.extend(lease.ranges)
            with lock:
                for held in lease.ranges:
                    marked.remove(held)
            pool.release(lease)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (doubles, total) == ([], [200] * 8)
    assert pool.figures().leased_bytes == 0
