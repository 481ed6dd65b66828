"""Who waits gets his turn in order, past nobody who waits for the same bytes."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ge_backend.device.workspace.pool import Pool
from ge_backend.errors import DeadlineExceeded
from ge_backend.executor.protocol.messages import NORMAL
from ge_backend.executor.server.queue import PRIORITY_STEP_NS, Job, JobQueue, too_late

SIZE = 4096
MS = 1_000_000


class Bench:
    """A queue in front of a pool, and names for the jobs in it."""

    def __init__(self, *, idle_ns=0, **places):
        self.pool = Pool(SIZE)
        for holder, nbytes in places.items():
            self.pool.workspace(holder).place(nbytes)
        self.queue = JobQueue(self.pool, idle_ns)
        self.jobs, self.begun = {}, {}
        self.now_ns = 10**9

    def add(self, name, holder="", *, at_ms=None, **terms):
        """Let a job wait, named so that the first letter may be its holder."""
        holder = holder or (name[0] if name[0] in self.pool.figures().holders else "")
        job = Job(work=lambda grant: lambda: None, holder=holder, **terms)
        self.jobs[job] = name
        now_ns = self.now_ns if at_ms is None else 10**9 + int(at_ms * MS)
        self.queue.add(job, now_ns)

    def take(self):
        """Return the name of the next job, or None."""
        started = self.queue.take(self.now_ns, running=len(self.begun))
        if started is None:
            return None
        name = self.jobs[started.job]
        self.begun[name] = started
        return name

    def end(self, name):
        started = self.begun.pop(name)
        self.queue.settle(started, self.now_ns)
        if started.lease is not None:
            self.pool.release(started.lease)
        assert self.pool.integrity() == []

    def drain(self, *, timed=False):
        """Run all that wait, one after another; `timed`: as long as they cost; return the order."""
        order = []
        while name := self.take():
            order.append(name)
            self.now_ns += timed * self.begun[name].job.cost_ns
            self.end(name)
        return order


def test_jobs_without_bytes_are_taken_in_the_order_of_their_coming():
    """First come, first served, and nothing is taken from an empty queue."""
    bench = Bench()
    for name in "12345":
        bench.add(name)
    assert bench.drain() == list("12345")
    assert bench.take() is None


def test_disjoint_holders_run_side_by_side_and_overlapping_ones_in_turn():
    """Both a and b fit, c overlaps one of them and waits for that one only."""
    bench = Bench(a=1900, b=1900, c=1000)
    overlapped, other = _who_meets(bench.pool, "c")
    for name in (overlapped, other, "c"):
        bench.add(name)
    assert [bench.take(), bench.take(), bench.take()] == [overlapped, other, None]
    bench.end(other)
    assert bench.take() is None
    bench.end(overlapped)
    assert bench.take() == "c"


def _who_meets(pool, holder):
    place = pool.claim(holder)[0]
    met = "a" if pool.claim("a")[0].overlaps(place) else "b"
    return met, "b" if met == "a" else "a"


def test_a_job_whose_bytes_are_busy_holds_nobody_up_who_needs_others():
    """Behind a job that waits for its bytes those pass whose bytes are free."""
    bench = Bench(a=1900, b=1900)
    for name in ("a1", "a2", "b1", "free"):
        bench.add(name)
    assert [bench.take(), bench.take(), bench.take(), bench.take()] == ["a1", "b1", "free", None]
    bench.end("a1")
    assert bench.take() == "a2"


def test_nobody_takes_bytes_for_which_another_has_waited_longer():
    """A large holder gets its turn though two small ones that it overlaps come again and again."""
    bench = Bench(a=1900, b=1900, large=4000)
    bench.add("a1")
    bench.add("b1")
    assert [bench.take(), bench.take()] == ["a1", "b1"]
    bench.add("large", "large")
    for number in range(2, 50):
        bench.add(f"a{number}")
        bench.add(f"b{number}")
    assert bench.take() is None
    bench.end("a1")
    assert bench.take() is None
    bench.end("b1")
    assert [bench.take(), bench.take()] == ["large", None]
    bench.end("large")
    assert [bench.take(), bench.take()] == ["a2", "b2"]


def test_who_waits_holds_nothing():
    """A job that has to wait has no lease, not of a part either."""
    bench = Bench(a=1900, large=4000)
    bench.add("a1")
    bench.take()
    leased = bench.pool.figures().leased_bytes
    bench.add("large", "large")
    assert bench.take() is None
    assert bench.pool.figures().leased_bytes == leased


def test_a_higher_priority_comes_first():
    """Priority 1 before 2 before 3, and within one the first that came."""
    bench = Bench()
    for name, priority in (("low", 3), ("mid", 2), ("high", 1), ("high too", 1), ("mid too", 2)):
        bench.add(name, priority=priority)
    assert bench.drain() == ["high", "high too", "mid", "mid too", "low"]


def test_the_default_priority_is_between():
    """A model can be put before all others as well as behind them."""
    bench = Bench()
    bench.add("low", priority=NORMAL + 1)
    bench.add("default")
    bench.add("high", priority=NORMAL - 1)
    assert bench.drain() == ["high", "default", "low"]


def test_no_higher_priority_passes_for_longer_than_its_step():
    """A waiting job of priority 3 is passed by those of priority 1 of the next two steps only."""
    bench = Bench()
    step_ms = PRIORITY_STEP_NS / MS
    bench.add("low", priority=3, at_ms=0)
    for count in itertools.count():
        bench.add(f"high{count}", priority=1, at_ms=50 * count, cost_ns=50 * MS)
        if 50 * count > 4 * step_ms:
            break
    before = bench.drain(timed=True).index("low")
    assert before == 2 * step_ms / 50


def test_a_stream_of_a_higher_priority_starves_nobody():
    """Saturated by an urgent neighbour that it overlaps, a job still has its turn: after a bound."""
    bench = Bench(a=3000, b=3000)
    bench.add("b", priority=3, at_ms=0)
    turns = []
    for count in range(100):  # an urgent job comes every 10 ms and takes 10 ms
        bench.now_ns = 10**9 + 10 * count * MS
        bench.add(f"a{count}", priority=1, model="a")  # nobody knew how long
        turns.append(bench.take())
        bench.now_ns += 10 * MS
        bench.end(turns[-1])
    assert turns.index("b") == 2 * PRIORITY_STEP_NS // (10 * MS)


def test_what_one_model_has_waiting_holds_up_no_other():
    """Small jobs pass the large ones of another model, until they have had as much of the device."""
    bench = Bench()
    for number in range(3):
        bench.add(f"large{number}", model="large", cost_ns=100 * MS)
    assert bench.take() == "large0"
    for number in range(12):
        bench.add(f"small{number}", model="small", cost_ns=10 * MS)
    bench.now_ns += 100 * MS
    bench.end("large0")
    assert [name[:5] for name in bench.drain(timed=True)] == ["small"] * 10 + ["large"] + [
        "small"
    ] * 2 + ["large"]


def test_jobs_of_one_model_stay_in_order_however_wrong_their_costs_were():
    """What took a hundredth of what was expected makes room for later ones, behind those there."""
    bench = Bench()
    for number in range(4):
        bench.add(f"{number}", model="m", cost_ns=100 * MS)
    for number in range(3):
        assert bench.take() == f"{number}"
        bench.now_ns += MS
        bench.end(f"{number}")
    bench.add("4", model="m", cost_ns=100 * MS)
    assert bench.drain() == ["3", "4"]


def test_a_wrong_cost_keeps_a_models_next_jobs_no_longer_than_its_own_end():
    """Those that wait move when it is known what the one before them took, either way."""
    bench = Bench()
    for number in range(3):
        bench.add(f"guessed{number}", model="guessed", cost_ns=3000 * MS)
    for number in range(4):
        bench.add(f"other{number}", model="other", cost_ns=100 * MS)
    assert [bench.take() for _ in "12"] == ["guessed0", "other0"]
    bench.now_ns += 100 * MS
    bench.end("guessed0")
    assert bench.take() == "guessed1"
    bench.now_ns += 900 * MS
    bench.end("guessed1")
    assert bench.drain() == ["other1", "other2", "other3", "guessed2"]


def test_nobody_owes_what_nobody_else_wanted():
    """What a model had of an idle device is no debt, however wrong its costs were."""
    bench = Bench()
    for number in range(40):
        bench.add(f"alone{number}", model="alone", cost_ns=1000)
        assert bench.take() == f"alone{number}"
        bench.now_ns += 50 * MS
        bench.end(f"alone{number}")
    for number in range(3):
        bench.add(f"other{number}", model="other", cost_ns=100 * MS)
    bench.add("again", model="alone")
    assert bench.drain(timed=True) == ["other0", "again", "other1", "other2"]


def test_what_was_not_done_is_not_charged():
    """Jobs that are dropped take nothing of their model's share."""
    bench, owner = Bench(), object()
    bench.add("cancelled", model="m", cost_ns=10**12, owner=owner)
    bench.add("late", model="m", cost_ns=10**12, deadline_ns=bench.now_ns)
    bench.queue.take_of(owner)
    bench.queue.take_late(bench.now_ns)
    for number in range(2):
        bench.add(f"other{number}", model="other", cost_ns=100 * MS)
    bench.add("again", model="m")
    assert bench.drain(timed=True)[1] == "again"


@st.composite
def traffic(draw):
    """Up to four models, each with jobs (when one comes after the one before it, what it takes)."""
    times = st.tuples(st.integers(0, 300), st.integers(1, 200))
    return draw(st.lists(st.lists(times, min_size=1, max_size=12), min_size=1, max_size=4))


@settings(max_examples=200, deadline=None)
@given(traffic())
def test_each_model_has_at_least_its_share_of_the_device(models):
    """No job is later than its model's own device would have it, but by the others' longest jobs.

    That device is as many times slower as there are models: the bound of start-time fair queueing.
    """
    bench, coming = Bench(), []
    for model, jobs in enumerate(models):
        came_ms = own_ms = 0
        others = sum(max(ms for _, ms in other) for other in models) - max(ms for _, ms in jobs)
        for number, (later_ms, takes_ms) in enumerate(jobs):
            came_ms += later_ms
            own_ms = max(own_ms, came_ms)
            latest_ms = own_ms + takes_ms + others
            coming.append((came_ms, model, number, takes_ms, latest_ms))
            own_ms += takes_ms * len(models)
    coming.sort()
    latest, ends_ms, running = {}, 0, None
    while coming or latest:
        if coming and (running is None or coming[0][0] <= ends_ms):
            came_ms, model, number, takes_ms, latest_ms = coming.pop(0)
            bench.now_ns, name = came_ms * MS, f"{model}/{number}"
            latest[name] = latest_ms
            bench.add(name, model=str(model), cost_ns=takes_ms * MS)
        else:
            bench.now_ns = ends_ms * MS
            bench.end(running)
            assert ends_ms <= latest.pop(running)
            running = None
        if running is None and (running := bench.take()):
            ends_ms = (bench.now_ns + bench.begun[running].job.cost_ns) // MS


def test_a_solo_job_waits_for_all_and_lets_nobody_pass():
    """Nothing behind it begins, whatever bytes it needs, and it begins when nothing runs."""
    bench = Bench(a=1000)
    bench.add("1")
    assert bench.take() == "1"
    bench.add("solo", solo=True)
    bench.add("a1")
    assert bench.take() is None
    bench.end("1")
    assert bench.take() == "solo"
    assert bench.begun["solo"].grant.alone


def test_a_job_is_alone_if_nothing_runs_and_nothing_waits():
    """What waits behind it, for whatever reason, is company."""
    bench = Bench(a=1000)
    bench.add("a1")
    bench.take()
    assert bench.begun["a1"].grant.alone
    bench.add("a2")
    bench.add("3")
    bench.add("4")
    bench.take()
    bench.take()
    assert not bench.begun["3"].grant.alone
    bench.end("3")
    bench.end("4")
    bench.end("a1")
    bench.take()
    assert bench.begun["a2"].grant.alone


def test_a_job_is_alone_only_where_nothing_has_shared_the_device_for_a_while():
    """What comes soon after jobs that had company may well have some, too."""
    bench = Bench(idle_ns=100 * MS)
    bench.add("1")
    bench.add("2")
    bench.take()
    bench.now_ns += 20 * MS
    bench.take()
    assert [bench.begun[name].grant.alone for name in "12"] == [False, False]
    bench.end("1")
    bench.end("2")
    for name, waited_ms, alone in (("3", 99, False), ("4", 1, True), ("5", 0, True)):
        bench.now_ns += waited_ms * MS
        bench.add(name)
        bench.take()
        assert bench.begun[name].grant.alone == alone
        bench.end(name)


def test_being_held_up_is_waiting_for_bytes_while_there_is_a_lane():
    """The grant tells when the job came, and since when only its bytes were missing."""
    bench = Bench(a=1000)
    bench.add("a1")
    bench.take()
    bench.add("a2")
    bench.now_ns += 5 * MS  # all lanes are busy until now
    assert bench.take() is None
    bench.now_ns += 7 * MS
    bench.end("a1")
    assert bench.take() == "a2"
    grant = bench.begun["a2"].grant
    assert (grant.held_up_ns, bench.now_ns - grant.came_ns) == (7 * MS, 12 * MS)


def test_who_was_never_held_up_says_so():
    """Waiting for a lane is not waiting for bytes."""
    bench = Bench(a=1000)
    bench.add("a1")
    bench.now_ns += 5 * MS
    bench.take()
    assert bench.begun["a1"].grant.held_up_ns == 0


def test_what_is_too_late_is_taken_out_with_its_error():
    """Only passed deadlines count; the error says how long the job waited and how late it is."""
    bench = Bench()
    bench.add("late", deadline_ns=bench.now_ns + 3 * MS)
    bench.add("in time", deadline_ns=bench.now_ns + 9 * MS)
    bench.add("patient")
    assert bench.queue.next_deadline_ns() == bench.now_ns + 3 * MS
    ((job, error),) = bench.queue.take_late(bench.now_ns + 5 * MS)
    assert bench.jobs[job] == "late"
    assert isinstance(error, DeadlineExceeded)
    assert "waited 5.0 ms for the device and was 2.0 ms too late" in str(error)
    assert bench.queue.next_deadline_ns() == bench.now_ns + 9 * MS
    assert bench.drain() == ["in time", "patient"]
    assert bench.queue.next_deadline_ns() == 0


def test_a_job_of_a_holder_that_is_gone_takes_no_turn_from_others():
    """It is taken with no bytes, to tell its owner; what it was to do is not done."""
    bench, told = Bench(a=1000, b=1000), []
    bench.add("a1", drop=told.append)
    bench.add("b1")
    bench.pool.remove("a")
    started = bench.queue.take(bench.now_ns, running=0)
    assert started.lease is None
    started.job.work(started.grant)()
    assert [str(error) for error in told] == ["a is not in the workspace pool"]
    assert bench.drain() == ["b1"]


def test_who_leaves_gives_up_the_claim_too():
    """Behind a large job that is taken out, those have their turn whom it had held up."""
    bench = Bench(a=1900, b=1900, large=4000)
    bench.add("a1")
    bench.take()
    owner = object()
    bench.add("large", "large", owner=owner)
    bench.add("b1")
    assert bench.take() is None
    (job,) = bench.queue.take_of(owner)
    assert bench.jobs[job] == "large"
    assert bench.take() == "b1"
    assert len(bench.queue) == 0


def test_one_job_of_an_owner_can_be_taken_out_by_its_number():
    """Neither his others, nor another owner's of that number, nor one that has begun."""
    bench = Bench()
    owner, other = object(), object()
    for name, whose, number in (("1", owner, 1), ("2", owner, 2), ("3", other, 2)):
        bench.add(name, owner=whose, number=number)
    assert bench.take() == "1"
    assert bench.queue.take_of(owner, 1) == []
    (job,) = bench.queue.take_of(owner, 2)
    assert bench.jobs[job] == "2"
    assert bench.drain() == ["3"]


def test_measurements_take_turns_and_let_all_others_pass():
    """Who waits for another's end claims no bytes, and is next of those that measure."""
    bench = Bench(a=1000, b=1000, c=1000)
    for name in ("a1", "b1", "c1"):
        bench.add(name, measures=True)
    bench.add("b2")
    assert [bench.take() for _ in range(3)] == ["a1", "b2", None]
    bench.end("b2")
    assert bench.take() is None
    bench.end("a1")
    assert [bench.take(), bench.take()] == ["b1", None]
    bench.end("b1")
    assert bench.take() == "c1"


def test_a_measurement_that_waits_for_bytes_has_not_begun():
    """Another one takes its turn, whose bytes are free."""
    bench = Bench(a=1000, b=1000)
    bench.add("a1")
    assert bench.take() == "a1"
    bench.add("a2", measures=True)
    bench.add("b1", measures=True)
    assert [bench.take(), bench.take()] == ["b1", None]
    bench.end("a1")
    assert bench.take() is None
    bench.end("b1")
    assert bench.take() == "a2"


def test_a_measured_holder_also_takes_other_free_bytes():
    """Runs of an engine that finds its own scratch go side by side as far as the pool reaches."""
    bench = Bench()
    bench.pool.workspace("m")
    bench.pool.place("m", 1500, bound=False)
    for name in ("m1", "m2", "m3"):
        bench.add(name)
    assert [bench.take(), bench.take(), bench.take()] == ["m1", "m2", None]
    bench.end("m1")
    assert bench.take() == "m3"


@pytest.mark.parametrize("holders", [2, 5])
def test_every_job_of_every_holder_is_taken_once(holders):
    """With overlapping places and several lanes nothing is lost and nothing is doubled."""
    names = [chr(ord("a") + index) for index in range(holders)]
    bench = Bench(**{name: 1000 + 500 * index for index, name in enumerate(names)})
    expected = [f"{name}{number}" for number in range(20) for name in names]
    for name in expected:
        bench.add(name)
    order, running = [], []
    while len(order) < len(expected):
        name = bench.take() if len(running) < 3 else None
        if name is None:
            bench.end(running.pop(0))
        else:
            order.append(name)
            running.append(name)
    assert sorted(order) == sorted(expected)
    for name in names:  # those of one holder stay in order
        own = [int(done[1:]) for done in order if done[0] == name]
        assert own == sorted(own)


def test_a_late_request_is_told_both_times():
    """The text is the same wherever lateness is found out."""
    assert "waited 50.0 ms" in str(too_late(50 * MS, MS // 2))
    assert "0.5 ms too late" in str(too_late(50 * MS, MS // 2))
