"""Requests come and go, and each gets the very tokens that it would get alone."""

import itertools
import threading
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from builders.generation import (
    OUTPUTS,
    PROMPTS,
    Clock,
    Serving,
    check_mixture,
    drawn_settings,
    sequence,
)
from builders.integrity import engine_defects
from fakes.language_model import NAN, POISON, FakeLanguageModel, expected_tokens
from ge_backend.errors import (
    Cancelled,
    DeadlineExceeded,
    DeviceFault,
    ExecutorLost,
    GraphFailed,
    InvalidRequest,
    OutOfMemory,
    QueueFull,
)
from ge_text.engine.chunk import ENOUGH
from ge_text.engine.engine import Engine
from ge_text.engine.parameters import parse_parameters
from ge_text.engine.plan import StepShapes
from ge_text.engine.sequence import GenerationRequest
from ge_text.engine.settings import EngineSettings, PreemptionMode, Scheduling
from ge_text.engine.shapes import rule_shapes
from ge_text.engine.update import Finish

EOS = (7,)
SHARED = tuple(8 + (i * i * 5) % 56 for i in range(21))


def serving(block_size=4, blocks=200, eos=EOS, **given):
    model = FakeLanguageModel(block_size=block_size, blocks=blocks, eos=eos)
    return Serving(model, **given)


def submit_all(served, *, together=True, order=None, outputs=OUTPUTS):
    """Submit every prompt, at once or one after each step; return what each has to get."""
    expected = {}
    for number in order or range(len(PROMPTS)):
        asked = served.submit(str(number), PROMPTS[number], max_tokens=outputs[number], seed=number)
        expected[str(number)] = expected_tokens(PROMPTS[number], asked, eos=EOS)
        if not together:
            served.step()
    return expected


def check(served, expected):
    served.run()
    assert {name: served.tokens(name) for name in expected} == expected


@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
@pytest.mark.parametrize("chunk", [0, 1, 2, 5, 1000])
def test_no_chunk_and_no_block_size_changes_a_token(chunk, block_size):
    """How a prompt is divided and where its keys lie is nobody's business but ours."""
    served = serving(block_size, prefill_chunk=chunk, max_num_seqs=4, max_num_batched_tokens=24)
    check(served, submit_all(served))


@pytest.mark.parametrize("order", list(itertools.permutations(range(9), 9))[:: 9**5])
@pytest.mark.parametrize("scheduling", Scheduling)
def test_no_order_of_coming_changes_a_token(order, scheduling):
    """Who comes when, and who is served first, changes nobody's text."""
    served = serving(scheduling=scheduling, max_num_seqs=3, max_num_batched_tokens=16)
    check(served, submit_all(served, together=False, order=order))


@pytest.mark.parametrize("mode", PreemptionMode)
@pytest.mark.parametrize("swap_bytes", [0, 10**6])
def test_no_preemption_changes_a_token(mode, swap_bytes):
    """Neither computing again nor copying out and in again shows in a text."""
    served = serving(blocks=14, preemption=mode, swap_bytes=swap_bytes).be_optimistic()
    check(served, submit_all(served))
    counts = served.engine.figures().counts
    swaps = mode is not PreemptionMode.RECOMPUTE and swap_bytes > 0
    assert bool(counts["swapped_in"]) == swaps
    assert bool(counts["recomputed"]) == (not swaps)


@pytest.mark.parametrize("mode", PreemptionMode)
def test_texts_that_get_longer_than_was_expected_make_room_and_are_whole(mode):
    """Whoever expects 40 tokens of texts of 300 lets in too many: the oldest ones go on all the same."""
    served = serving(blocks=200, eos=(), preemption=mode, swap_bytes=10**6, max_num_seqs=12)
    for _ in range(200):
        served.engine._scheduler.forecast.observe(sequence(given=(1,) * 40, max_output=300))
    ends = {str(number): 150 + 20 * (number % 8) for number in range(16)}
    left = dict.fromkeys(ends, 0)
    order, expected = [], {}

    def sink(update):
        served.take(update)
        left[update.id] += len(update.tokens)
        if left[update.id] < ends[update.id]:
            return False
        order.append(update.id)
        return True

    for number, prompt in enumerate([*PROMPTS, *PROMPTS[:7]]):
        parameters = parse_parameters({"max_tokens": None, "seed": number})
        request = GenerationRequest(id=str(number), prompt=prompt, parameters=parameters)
        served.engine.submit(request, sink)
        expected[str(number)] = expected_tokens(prompt, parameters, most=ends[str(number)])
    check(served, expected)
    counts = served.engine.figures().counts
    assert 0 < counts["recomputed"] + counts["swapped_in"] < 60
    assert counts["stop"] == len(order) == len(ends)
    assert "0" in order[:3]


def test_texts_without_a_limit_are_served_together():
    """What a model could hold of one keeps nobody out while the cache is almost empty."""
    model = FakeLanguageModel(max_positions=100_000, blocks=2000)
    served = Serving(model, max_num_seqs=9)
    for number, prompt in enumerate(PROMPTS):
        served.submit(str(number), prompt, max_tokens=None, seed=number)
    served.step()
    assert served.engine.figures().running == 9


@pytest.mark.parametrize(("requests", "samples"), [(10, 1), (1, 10)])
def test_texts_that_begin_alike_are_served_together(requests, samples):
    """Blocks that all of them read are there once: a tenth of the cache is no reason to wait."""
    served = serving(blocks=41, max_num_seqs=10, max_num_batched_tokens=200)
    beginning = (*SHARED, *SHARED, *SHARED, *SHARED)
    for number in range(requests):
        last = 8 + number
        served.submit(str(number), (*beginning, last), max_tokens=5, seed=number, n=samples)
    running = []
    while served.engine.has_work:
        served.step()
        running.append(served.engine.figures().running)
    assert max(running) >= 9
    assert served.engine.figures().counts["recomputed"] == 0
    assert all(len(served.tokens(str(n), s)) for n in range(requests) for s in range(samples))


@pytest.mark.parametrize(
    ("batch", "query", "context"),
    [("1,2,4", "4,8", "1,2,4,8,16"), ("", "", ""), ("3", "2", "16"), ("1", "16", "2,4")],
)
def test_no_bucket_changes_a_token(batch, query, context):
    """Padding is nobody's token; what no bucket covers is computed all the same, and counted."""
    served = serving(
        max_num_seqs=4,
        max_num_batched_tokens=16,
        batch_buckets=batch,
        query_buckets=query,
        context_buckets=context,
    )
    lists = rule_shapes(served.engine._settings, 64, 4)
    served.engine.use(StepShapes(lists, 4, lambda shape: shape[0] * shape[1] * shape[2]))
    check(served, submit_all(served))
    figures = served.engine.figures()
    assert figures.counts["padded_tokens"] > 0
    assert bool(figures.counts["unplanned_groups"]) == (context == "2,4")
    shapes = {
        (group.rows, group.query, group.tables.shape[1])
        for made in served.model.steps
        for group in made.groups
    }
    assert figures.counts["unplanned_groups"] or shapes <= {*lists.decode, *lists.prompt}


def test_cancelled_neighbours_change_nothing():
    """Whoever leaves, at whatever step, takes nothing from those who stay."""
    served = serving(max_num_seqs=5, max_num_batched_tokens=16, blocks=30)
    expected = submit_all(served)
    for number in range(0, 9, 2):
        served.step()
        served.engine.cancel(str(number))
    served.run()
    for number in range(1, 9, 2):
        assert served.tokens(str(number)) == expected[str(number)]
    for number in range(0, 9, 2):
        got = served.tokens(str(number))
        assert got == expected[str(number)][: len(got)]


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 9, 14])
def test_another_engine_goes_on_where_one_was_lost(steps):
    """With the tokens so far a second engine gives the rest that the first would have given."""
    first = serving(max_num_seqs=4, max_num_batched_tokens=16)
    expected = submit_all(first)
    for _ in range(steps):
        first.step()
    second = serving(block_size=3, max_num_seqs=9, prefill_chunk=5)
    for name, tokens in expected.items():
        so_far = tuple(first.tokens(name))
        if first.ends(name):
            assert list(so_far) == tokens
            continue
        number = int(name)
        second.submit(
            name, PROMPTS[number], generated=(so_far,), max_tokens=OUTPUTS[number], seed=number
        )
    second.run()
    for name, tokens in expected.items():
        assert first.tokens(name) + second.tokens(name) == tokens
    first_tokens = [e.engine.figures().histograms["first_token"].counts for e in (first, second)]
    assert sum(map(sum, first_tokens)) == len(PROMPTS)


@hypothesis_settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_is_mixed_every_text_is_its_own(data):
    """Settings, arrivals, samples, cancellations and failures at random: the others never notice."""
    served = serving(
        data.draw(st.sampled_from([1, 2, 4, 16])),
        blocks=data.draw(st.integers(60, 90)),
        scheduling=data.draw(st.sampled_from(Scheduling)),
        prefix_cache=data.draw(st.booleans()),
        **drawn_settings(data),
    )
    shared = st.sampled_from([SHARED[:count] for count in (0, 5, 12)])
    own = st.lists(st.integers(8, 63), min_size=1, max_size=20)
    prompts = st.builds(itertools.chain, shared, own)
    check_mixture(data, served, prompts, most=8, max_tokens=st.integers(1, 12))


@pytest.mark.parametrize("mode", PreemptionMode)
@pytest.mark.parametrize(("blocks", "chunk"), [(200, 0), (24, 0), (24, 5), (24, 1)])
def test_what_is_found_in_the_cache_changes_no_token(blocks, chunk, mode):
    """Together and one after another, with little room and with neighbours that are cancelled."""
    tokens, computed = [], []
    for switch in (True, False):
        served = serving(
            blocks=blocks,
            prefix_cache=switch,
            max_num_seqs=5,
            preemption=mode,
            swap_bytes=10**6,
            prefill_chunk=chunk,
        ).be_optimistic()
        for number in range(12):
            text = (*SHARED[: 21 - 3 * (number % 3)], *PROMPTS[number % 5])
            served.submit(str(number), text, max_tokens=9, seed=number)
            served.submit(f"x{number}", text, max_tokens=30, seed=number)
            served.step()
            served.engine.cancel(f"x{number}")
        served.run()
        tokens.append([served.tokens(str(number)) for number in range(12)])
        computed.append(served.engine.figures().counts["computed_tokens"])
    assert tokens[0] == tokens[1]
    assert computed[0] < computed[1]


def test_figures_of_the_prefix_cache_are_of_what_was_spared():
    """Tokens asked for, tokens found, and what is kept; none without it."""
    served = serving(eos=())
    for name in ("a", "b"):
        served.submit(name, SHARED, max_tokens=3)
        served.run()
    figures = served.engine.figures()
    assert figures.counts["prefix_asked_tokens"] == 42
    assert figures.counts["prefix_found_tokens"] == 20
    assert figures.counts["computed_tokens"] == 2 * 23 - 20
    assert (figures.blocks_kept, figures.blocks_free) == (5, 199)
    small = serving(eos=(), blocks=8)
    for number in range(4):
        small.submit(str(number), PROMPTS[4 + number], max_tokens=3)
        small.run()
    assert small.engine.figures().counts["prefix_evicted_blocks"] > 0
    without = serving(prefix_cache=False)
    without.submit("a", SHARED, max_tokens=3)
    without.run()
    counts = without.engine.figures().counts
    assert [counts[name] for name in counts if name.startswith("prefix")] == [0, 0, 0]


@pytest.mark.parametrize("beam_width", [1, 2])
def test_a_text_is_told_what_the_cache_had_of_its_prompt(beam_width):
    """With each token: whole blocks of what was computed before, and nothing the first time."""
    served, told = serving(eos=()), {}

    def sink(update):
        told.setdefault(update.id, set()).add(update.found)
        return False

    for name in ("a", "b"):
        parameters = parse_parameters({"max_tokens": 3, "temperature": 0, "beam_width": beam_width})
        served.engine.submit(GenerationRequest(id=name, prompt=SHARED, parameters=parameters), sink)
        served.run()
    assert told == {"a": {0}, "b": {20}}


def test_salts_are_caches_apart():
    """Nobody's first token comes sooner because of what somebody with another salt asked."""
    served = serving(eos=())
    for name, salt in (("a", "x"), ("b", "y"), ("c", "x"), ("d", "")):
        served.submit(name, SHARED, max_tokens=1, cache_salt=salt)
        served.run()
    served.submit("e", SHARED, max_tokens=1, prefix_cache=False)
    served.run()
    assert [len(batch.ids) for batch in served.model.steps] == [21, 21, 1, 21, 21]


def test_every_sample_has_its_own_text_and_shares_the_prompts_blocks():
    """Samples differ by their seeds alone; the prompt is computed once but for its last token."""
    served = serving(eos=())
    prompt = PROMPTS[4] * 2
    asked = served.submit("a", prompt, n=4, max_tokens=6, seed=50)
    served.run()
    for sample in range(4):
        assert served.tokens("a", sample) == expected_tokens(prompt, asked, sample=sample)
    assert len({tuple(served.tokens("a", sample)) for sample in range(4)}) == 4
    shared = len(prompt) - 1
    counts = served.engine.figures().counts
    assert counts["copied_blocks"] == 3
    assert counts["computed_tokens"] == 4 * (len(prompt) + 5) - 3 * shared
    assert set(served.ends("a").values()) == {Finish.LENGTH}


def test_samples_whose_first_one_ends_at_once_go_on_alone():
    """The others are owed their texts whatever became of the first."""
    served = serving(eos=())
    asked = served.submit("a", PROMPTS[4], n=3, max_tokens=1)
    check(served, {"a": expected_tokens(PROMPTS[4], asked)})
    assert sorted(served.ends("a")) == [0, 1, 2]
    failing = serving()
    failing.submit("b", (NAN, 9), n=3)
    failing.run()
    assert set(failing.ends("b").values()) == {Finish.ERROR}
    assert sorted(failing.ends("b")) == [0, 1, 2]


def test_a_sample_that_fails_ends_its_request(monkeypatch):
    """Its client has the error and waits for nothing: the others are not drawn on for nobody."""
    served = serving()
    served.submit("a", (9, 9), n=3, max_tokens=50)
    other = served.submit("b", (9, 9), seed=7)
    whole = served.model.step

    def step(batch):
        drawn = whole(batch)
        rows = enumerate(batch.rows)
        failed = {at: GraphFailed("no") for at, row in rows if row.sampling.seed == 1}
        return replace(drawn, failed=failed)

    served.step()
    monkeypatch.setattr(served.model, "step", step)
    served.run()
    assert served.ends("a") == dict.fromkeys(range(3), Finish.ERROR)
    assert max(len(served.tokens("a", sample)) for sample in range(3)) < 8
    assert served.tokens("b") == expected_tokens((9, 9), other, eos=EOS)


def test_the_end_is_noticed_with_the_first_token():
    """A limit of one token and an end of text right behind the prompt end it in one step."""
    served = serving(eos=())
    asked = served.submit("a", (9, 9), max_tokens=1)
    (first,) = expected_tokens((9, 9), asked)
    served.submit("b", (9, 9), stop_token_ids=[first], max_tokens=50)
    served.step()
    assert not served.engine.has_work
    assert (served.ends("a"), served.ends("b")) == ({0: Finish.LENGTH}, {0: Finish.STOP})
    assert served.tokens("b") == [first]


@pytest.mark.parametrize("last", [False, True])
def test_a_text_that_has_ended_is_stopped_and_not_cancelled(last):
    """Its blocks are free when the step is over; other samples of its request go on."""
    served = serving(eos=())
    asked = served.submit("a", PROMPTS[4], n=2, max_tokens=4, seed=3)
    texts = [expected_tokens(PROMPTS[4], asked, sample=sample) for sample in range(2)]
    ending = texts[0][3 if last else 1]
    served.stop_texts = {ending}
    assert ending not in texts[1]
    while served.tokens("a")[-1:] != [ending]:
        served.step()
    figures = served.engine.figures()
    assert figures.running + figures.waiting == 1
    served.run()
    assert served.tokens("a") == texts[0][: texts[0].index(ending) + 1]
    assert served.tokens("a", 1) == texts[1]
    counts = served.engine.figures().counts
    assert [counts[name] for name in ("stop", "length", "cancelled")] == [1, 1, 0]


def test_the_least_number_of_tokens_comes_first():
    """No end is drawn below min_tokens; the model's ends are as forbidden as the client's."""
    served = serving(eos=tuple(range(0, 64, 2)))
    asked = served.submit("a", (9, 9), min_tokens=10, max_tokens=40)
    served.run()
    got = served.tokens("a")
    assert got == expected_tokens((9, 9), asked, eos=served.model.eos)
    assert len(got) > 10
    assert all(token % 2 for token in got[:10])


def test_updates_carry_what_was_drawn():
    """Each token comes with its log-probability, and the last one with the reason of the end."""
    served = serving(eos=())
    served.submit("a", (9, 9), max_tokens=3)
    served.run()
    assert [(len(u.tokens), u.logprobs, u.top) for u in served.updates] == [
        (1, (-0.5,), (None,))
    ] * 3
    assert [update.finish for update in served.updates] == [None, None, Finish.LENGTH]


@pytest.mark.parametrize("poison", [POISON, NAN])
def test_an_error_ends_the_sequence_that_caused_it(poison):
    """Its neighbours get every token; it gets the error."""
    served = serving(max_num_seqs=9)
    served.submit("bad", (9, poison, 9))
    expected = submit_all(served)
    check(served, expected)
    assert isinstance(served.error("bad"), GraphFailed)
    assert served.tokens("bad") == []


def test_a_cancelled_request_is_gone_with_the_next_step():
    """Waiting, running or swapped: everything is free, and the client is told once."""
    served = serving(max_num_seqs=1, blocks=30)
    served.submit("running", PROMPTS[4], max_tokens=50)
    served.submit("waiting", PROMPTS[5])
    served.submit("samples", PROMPTS[5], n=3)
    served.step()
    for name in ("running", "waiting", "samples", "unknown"):
        served.engine.cancel(name)
    served.step()
    assert not served.engine.has_work
    assert served.engine.figures().blocks_used == 0
    ends = [update for update in served.updates if update.finish]
    assert [(update.id, update.sample) for update in ends] == [
        ("running", 0),
        ("waiting", 0),
        ("samples", 0),
        ("samples", 1),
        ("samples", 2),
    ]
    assert all(update.finish is Finish.CANCELLED for update in ends)
    assert all(isinstance(update.error, Cancelled) for update in ends)


def test_a_request_may_end_before_it_was_received():
    """A cancellation that comes at once leaves nothing behind."""
    served = serving()
    served.submit("a")
    served.engine.cancel("a")
    served.run()
    assert served.ends("a") == {0: Finish.CANCELLED}
    assert served.model.steps == []


@pytest.mark.parametrize("seqs", [1, 2])
def test_a_late_request_ends_whether_it_runs_or_waits(seqs):
    """The request's own time counts from its coming, and frees everything when it is over."""
    served = serving(max_num_seqs=seqs)
    served.submit("first", PROMPTS[4], max_tokens=100, ignore_eos=True)
    served.submit("late", PROMPTS[5], max_tokens=100, ignore_eos=True, timeout_s=0.05)
    served.submit("in time", PROMPTS[3], max_tokens=1, timeout_s=9.0)
    while not served.ends("late"):
        served.step()
    assert served.clock.now_s < 0.07
    assert isinstance(served.error("late"), DeadlineExceeded)
    assert bool(served.tokens("late")) == (seqs == 2)
    served.run()
    assert len(served.tokens("first")) == 100
    assert served.ends("in time") == {0: Finish.LENGTH}


def test_a_deadline_is_not_a_later_requests_of_the_same_id():
    """An id may be used again when its request has ended."""
    served = serving()
    served.submit("a", max_tokens=1, timeout_s=0.05)
    served.run()
    served.submit("a", max_tokens=60, ignore_eos=True)
    served.run()
    assert len(served.tokens("a")) == 61


def test_deadlines_of_requests_that_have_ended_are_forgotten():
    """Long time limits of many short requests do not pile up."""
    served = serving()
    for number in range(300):
        served.submit(str(number), max_tokens=1, timeout_s=1e6)
        served.run()
    assert len(served.engine._live._deadlines) <= 100
    served.submit("late", max_tokens=60, ignore_eos=True, timeout_s=0.01)
    served.run()
    assert isinstance(served.error("late"), DeadlineExceeded)


def test_what_cannot_be_served_is_refused_at_once():
    """Nothing of a refused request is kept."""
    served = serving(blocks=4)
    with pytest.raises(InvalidRequest, match="room for 12 tokens"):
        served.submit("a", (9,) * 9, max_tokens=5)
    served.submit("b", (9,) * 9, max_tokens=4)
    with pytest.raises(InvalidRequest, match="'b' is being served"):
        served.submit("b", (9,))
    served.run()


def test_a_full_queue_refuses_at_once():
    """Whoever may not wait hears it from `submit`, before any step."""
    served = serving(max_num_seqs=1, max_waiting_requests=2)
    served.submit("a", max_tokens=30)
    served.step()
    served.submit("b")
    served.submit("c")
    with pytest.raises(QueueFull, match="2 requests wait"):
        served.submit("d")
    served.run()
    served.submit("d")
    served.run()
    assert sorted(served.ends("d")) == [0]


def test_samples_and_those_who_made_room_count_as_served():
    """A request waits until its first sample runs: many samples lock no other request out."""
    served = serving(max_num_seqs=2, max_waiting_requests=2)
    served.submit("many", n=10, max_tokens=30)
    for _ in range(3):
        served.step()
    assert served.engine.figures().waiting > 2
    served.submit("a")
    served.submit("b")
    with pytest.raises(QueueFull, match="2 requests wait"):
        served.submit("c")
    served.run()
    pressed = serving(blocks=9, max_waiting_requests=1).be_optimistic()
    for name in "ab":
        pressed.submit(name, (9, 9, 9), max_tokens=25, ignore_eos=True)
        pressed.step()
    while not pressed.engine.figures().waiting:
        pressed.step()
    pressed.submit("c")
    pressed.run()


def test_priority_and_length_decide_who_is_served_first():
    """With one place the order of the first tokens is the order of being served."""

    def order(scheduling, **given):
        served = serving(scheduling=scheduling, max_num_seqs=1, eos=())
        served.submit("running", max_tokens=4)
        served.step()
        served.submit("plain", (9,) * 9, max_tokens=20)
        served.submit("other", (9,), **{"max_tokens": 3, **given})
        served.run()
        return list(dict.fromkeys(update.id for update in served.updates))[1:]

    assert order(Scheduling.FCFS, priority=-5) == ["plain", "other"]
    assert order(Scheduling.SJF) == ["other", "plain"]
    assert order(Scheduling.PRIORITY, priority=-1) == ["other", "plain"]
    assert order(Scheduling.PRIORITY, priority=1) == ["plain", "other"]


def test_a_broken_device_is_the_callers_to_handle():
    """A fault comes out of `step`; `abort` tells every client, those not yet received too."""
    served = serving()
    served.submit("a", max_tokens=9)
    served.submit("b", n=2, max_tokens=9)
    served.step()

    def broken(_batch):
        raise DeviceFault("gone")

    served.model._on_step = broken
    with pytest.raises(DeviceFault):
        served.engine.step()
    served.submit("c")
    served.engine.abort(ExecutorLost("the device is gone"))
    assert not served.engine.has_work
    assert sorted(served.ends("b")) == [0, 1]
    for name in ("a", "b", "c"):
        assert isinstance(served.error(name), ExecutorLost)
    assert engine_defects(served.engine) == []
    assert served.engine.figures().blocks_used == 0


def test_submitting_does_not_wait_for_a_step():
    """A client's thread is never held up by the model."""
    within, go_on = threading.Event(), threading.Event()

    def slow(_batch):
        within.set()
        assert go_on.wait(10)

    model = FakeLanguageModel(on_step=slow)
    served = Serving(model)
    served.submit("a", max_tokens=1)
    stepping = threading.Thread(target=served.engine.step)
    stepping.start()
    assert within.wait(10)
    begun = time.monotonic()
    served.submit("b", max_tokens=1)
    served.engine.cancel("b")
    assert served.engine.has_work
    assert served.engine.figures().running == 1
    waited = time.monotonic() - begun
    go_on.set()
    stepping.join(10)
    assert waited < 5
    served.run()
    assert served.ends("b") == {0: Finish.CANCELLED}


def test_auto_chunks_keep_running_streams_going():
    """A long prompt goes in pieces that add the target to the 14 ms that running streams take.

    Alone it goes in larger ones.
    """
    clock = Clock(tick_s=0)

    def take(batch):
        clock.now_s += 0.010 + 0.001 * len(batch.ids)

    model = FakeLanguageModel(on_step=take, block_size=16, max_positions=4096)
    engine = Engine(model, EngineSettings(itl_target_ms=80.0), clock)
    served = Serving(model)
    served.engine, served.clock = engine, clock
    for number in range(4):
        served.submit(str(number), PROMPTS[number], max_tokens=200, ignore_eos=True)
    for _ in range(20):
        served.step()
    served.submit("long", [9] * 1500, max_tokens=4)
    gaps, prompts = [], []
    while not served.tokens("long"):
        before = clock.now_s
        served.step()
        gaps.append(clock.now_s - before)
        prompts.append(len(model.steps[-1].ids) - 4)
    assert max(gaps) < 0.15
    assert max(gaps[5:]) < 0.080 + 0.014 + 0.001
    assert sum(prompts) >= 1500
    assert len(prompts) < 25
    served.run()
    alone = Engine(model, EngineSettings(itl_target_ms=80.0), clock)
    served.engine = alone
    served.submit("again", [9] * 1500, max_tokens=1)
    served.step()
    assert len(model.steps[-1].ids) == ENOUGH > max(prompts[5:])


@pytest.mark.parametrize(("copy_s", "swaps"), [(0.0, True), (5.0, False)])
def test_auto_preemption_goes_by_what_was_measured(copy_s, swaps):
    """After the first copy the cheaper way is known: swapping, unless copies are slow."""
    served = serving(
        blocks=14, preemption=PreemptionMode.AUTO, swap_bytes=10**6, prefix_cache=False
    ).be_optimistic()
    model, swap_out = served.model, served.model.swap_out

    def slow_copy(blocks):
        served.clock.now_s += copy_s
        return swap_out(blocks)

    model.swap_out = slow_copy
    model._on_step = lambda batch: served.clock(len(batch.ids))
    for number in range(6):
        served.submit(str(number), PROMPTS[4], max_tokens=24, ignore_eos=True)
    served.run()
    counts = served.engine.figures().counts
    assert (counts["recomputed"] == 0) == swaps
    assert (counts["swapped_out"] > 1) == swaps


def test_a_failed_step_teaches_nothing_about_times():
    """What went wrong and was repeated says nothing of what a prompt token costs."""
    served = serving(prefill_chunk=0)
    served.submit("bad", (POISON, *PROMPTS[4]))
    served.submit("good", PROMPTS[4])
    served.step()
    assert served.engine.figures().counts["failed_steps"] > 0
    assert served.engine._chunk.token_s == 0
    served.submit("next", PROMPTS[3])
    served.step()
    assert served.engine._chunk.token_s > 0


def test_figures_add_up():
    """Every token, end and moment is counted once."""
    served = serving(max_num_seqs=4, max_num_batched_tokens=40)
    expected = submit_all(served)
    served.submit("x", n=2)
    served.engine.cancel("x")
    served.submit("bad", (POISON,))
    served.step()
    during = served.engine.figures()
    assert (during.running, during.waiting) == (3, 6)
    assert during.blocks_used + during.blocks_free == 199
    served.run()
    figures = served.engine.figures()
    counts, histograms = figures.counts, figures.histograms
    generated = sum(map(len, expected.values()))
    assert counts["generated_tokens"] == generated
    assert counts["prompt_tokens"] == sum(map(len, PROMPTS)) + 3 + 1
    assert counts["stop"] + counts["length"] == 9
    assert (counts["cancelled"], counts["error"]) == (2, 1)
    assert counts["failed_steps"] >= 1
    assert sum(histograms["first_token"].counts) == 9
    assert sum(histograms["inter_token"].counts) == generated - 9
    assert sum(histograms["latency"].counts) == 11
    assert sum(histograms["step"].counts) == counts["steps"]
    assert histograms["step_tokens"].total == counts["computed_tokens"]
    assert during.counts["steps"] < counts["steps"]


def test_a_model_without_memory_for_a_cache_is_refused():
    """An engine that could serve nothing does not open."""
    with pytest.raises(OutOfMemory):
        Engine(FakeLanguageModel(blocks=1), EngineSettings(), Clock())
