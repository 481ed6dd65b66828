"""Requests that go to a model which plans its own steps."""

import pytest

from ge_backend.errors import Cancelled, ExecutorLost, GraphFailed, InvalidRequest, QueueFull
from ge_text.engine.delegate import Delegate
from ge_text.engine.parameters import Parameters
from ge_text.engine.sequence import GenerationRequest
from ge_text.engine.update import Finish
from ge_text.models.sampling import Sampling
from ge_text.models.scheduled import Levels, TokenDelta
from ge_text.models.structure import Structure, StructureKind


class Model:
    """Keeps what it is asked; the test tells."""

    vocabulary, max_positions, eos, cache_blocks, block_size = 100, 64, (2,), 3, 16

    def __init__(self):
        self.asked, self.tell, self.ended = {}, {}, []

    def begin(self, ask, tell):
        self.asked[ask.name], self.tell[ask.name] = ask, tell

    def end(self, name):
        self.ended.append(name)

    def levels(self):
        return Levels(waiting=4, running=5, cache_used=1 / 3, preempted=6)

    def close(self):
        pass


class Heard(list):
    """A sink; `stops` is what it says of each update."""

    stops = False

    def __call__(self, update):
        self.append(update)
        return self.stops


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def delegate(model):
    return Delegate(model, iter(range(1000)).__next__)


def told(*tokens, finish=""):
    return TokenDelta(
        tokens=tokens,
        logprobs=(-1.0,) * len(tokens),
        ranks=(1,) * len(tokens),
        top=(None,) * len(tokens),
        finish=finish,
    )


def test_a_request_is_asked_for_and_told_of(delegate, model):
    """Prompt and wishes go there, tokens come back; the model's ends of text end it, too."""
    heard = Heard()
    wishes = Parameters(max_tokens=5, min_tokens=2, stop_token_ids=(9,), priority=3)
    delegate.submit(
        GenerationRequest(id="7", prompt=(4, 5), parameters=wishes, timeout_s=1.5), heard
    )
    ask = model.asked["7/0"]
    assert (ask.prompt, ask.max_tokens, ask.min_tokens, ask.ends) == ((4, 5), 5, 2, (9, 2))
    assert (ask.seeded, ask.priority, ask.timeout_s) == (False, 3, 1.5)
    model.tell["7/0"](told(6))
    model.tell["7/0"](told(7, finish="length"))
    model.tell["7/0"](told(8))
    assert [(u.id, u.sample, u.tokens, u.finish) for u in heard] == [
        ("7", 0, (6,), None),
        ("7", 0, (7,), Finish.LENGTH),
    ]
    assert model.ended == []


def test_samples_are_texts_of_their_own(delegate, model):
    """Each has its number's seed, and ends by itself."""
    heard = Heard()
    wishes = Parameters(n=2, sampling=Sampling(seed=40), seeded=True, ignore_eos=True)
    delegate.submit(GenerationRequest(id="7", prompt=(4,), parameters=wishes), heard)
    assert [(a.sampling.seed, a.seeded, a.ends) for a in model.asked.values()] == [
        (40, True, ()),
        (41, True, ()),
    ]
    model.tell["7/1"](told(6, finish="stop"))
    model.tell["7/0"](told(5))
    assert [(u.sample, u.finish) for u in heard] == [(1, Finish.STOP), (0, None)]


def test_a_text_goes_on_behind_its_tokens(delegate, model):
    """They count against the limits; a sample that has ended is not asked for again."""
    wishes = Parameters(n=2, max_tokens=5, min_tokens=3, sampling=Sampling(seed=40))
    begun = GenerationRequest(id="7", prompt=(4,), parameters=wishes, generated=(None, (6, 7)))
    delegate.submit(begun, Heard())
    assert list(model.asked) == ["7/1"]
    ask = model.asked["7/1"]
    assert (ask.prompt, ask.max_tokens, ask.min_tokens) == ((4, 6, 7), 3, 1)
    assert ask.sampling.seed not in {40, 41}


def test_a_structure_goes_with_the_request(delegate, model):
    """It alone says when the text may end; behind tokens that were drawn it cannot go on."""
    structure = Structure(StructureKind.REGEX, "a+")
    wishes = Parameters(max_tokens=5, min_tokens=3, ignore_eos=True, structure=structure)
    delegate.submit(GenerationRequest(id="7", prompt=(4,), parameters=wishes), Heard())
    ask = model.asked["7/0"]
    assert (ask.structure, ask.min_tokens, ask.ends) == (structure, 0, (2,))
    begun = GenerationRequest(id="8", prompt=(4,), parameters=wishes, generated=((6,),))
    with pytest.raises(ExecutorLost, match="send the request again"):
        delegate.submit(begun, Heard())
    assert list(model.asked) == ["7/0"]


def test_a_stop_text_ends_the_text_there(delegate, model):
    """The sink has found it; it counts as stopped, and what comes late is nobody's."""
    heard = Heard()
    heard.stops = True
    delegate.submit(GenerationRequest(id="7", prompt=(4,)), heard)
    model.tell["7/0"](told(6))
    model.tell["7/0"](told(7))
    assert len(heard) == 1
    assert model.ended == ["7/0"]
    assert delegate.figures().counts["stop"] == 1


def test_cancelling_and_failing_are_told_once(delegate, model):
    """Each text hears of its end; the model is told to stop."""
    first, second = Heard(), Heard()
    delegate.submit(GenerationRequest(id="7", prompt=(4,)), first)
    delegate.submit(GenerationRequest(id="8", prompt=(4,)), second)
    delegate.cancel("7")
    delegate.cancel("7")
    model.tell["8/0"](TokenDelta(error=GraphFailed("it broke")))
    assert [(u.finish, type(u.error)) for u in first] == [(Finish.CANCELLED, Cancelled)]
    assert [(u.finish, type(u.error)) for u in second] == [(Finish.ERROR, GraphFailed)]
    third = Heard()
    delegate.submit(GenerationRequest(id="9", prompt=(4,)), third)
    delegate.abort(GraphFailed("all of it"))
    assert [u.finish for u in third] == [Finish.ERROR]
    assert model.ended == ["7/0", "8/0", "9/0"]


def test_a_sample_that_fails_ends_its_request(delegate, model):
    """Its client waits for none of the others then; neighbours go on."""
    heard, neighbour = Heard(), Heard()
    wishes = Parameters(n=3)
    delegate.submit(GenerationRequest(id="7", prompt=(4,), parameters=wishes), heard)
    delegate.submit(GenerationRequest(id="8", prompt=(4,)), neighbour)
    model.tell["7/2"](told(6, finish="stop"))
    model.tell["7/1"](TokenDelta(error=QueueFull("too many")))
    model.tell["7/0"](told(6))
    assert [(u.sample, u.finish) for u in heard] == [
        (2, Finish.STOP),
        (0, Finish.ERROR),
        (1, Finish.ERROR),
    ]
    assert (neighbour, model.ended) == ([], ["7/0", "7/1"])


def test_no_sample_begins_when_another_has_failed(delegate, model, monkeypatch):
    """The model may tell that of the first before it is asked for the second."""

    class Failing:
        def __get__(self, model, _):
            if "7/0" in model.tell:
                model.tell["7/0"](TokenDelta(error=QueueFull("too many")))
            return (2,)

    monkeypatch.setattr(Model, "eos", Failing())
    heard = Heard()
    wishes = Parameters(n=2)
    delegate.submit(GenerationRequest(id="7", prompt=(4,), parameters=wishes), heard)
    assert list(model.asked) == ["7/0"]
    assert [u.finish for u in heard] == [Finish.ERROR] * 2


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            GenerationRequest(id="8", prompt=(4,), parameters=Parameters(max_tokens=60)),
            "room for 48 tokens",
        ),
        (GenerationRequest(id="8", prompt=(100,)), "prompt has token 100"),
        (GenerationRequest(id="7", prompt=(4,)), "under way already"),
        (
            GenerationRequest(id="8", prompt=(4,), parameters=Parameters(beam_width=2)),
            "no beam search",
        ),
    ],
)
def test_what_can_never_be_served_is_not_asked(delegate, model, request_, message):
    """It is refused with the limit."""
    delegate.submit(GenerationRequest(id="7", prompt=(4,)), Heard())
    with pytest.raises(InvalidRequest, match=message):
        delegate.submit(request_, Heard())
    assert list(model.asked) == ["7/0"]


def test_figures_are_of_the_model_and_of_the_requests(delegate, model):
    """Levels as the model has them; tokens, ends and times as they went by here."""
    delegate.submit(GenerationRequest(id="7", prompt=(4, 5)), Heard())
    model.tell["7/0"](told(6))
    model.tell["7/0"](told(7, 8, finish="stop"))
    figures = delegate.figures()
    assert (figures.waiting, figures.running, figures.blocks_used, figures.blocks_free) == (
        4,
        5,
        1,
        2,
    )
    counts = figures.counts
    assert (counts["prompt_tokens"], counts["generated_tokens"], counts["stop"]) == (2, 3, 1)
    assert counts["recomputed"] == 6
    seen = {name: sum(figures.histograms[name].counts) for name in ("first_token", "inter_token")}
    assert seen == {"first_token": 1, "inter_token": 1}
    assert not delegate.has_work
