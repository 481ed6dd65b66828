"""Sequences and engines for tests."""

from hypothesis import strategies as st

from builders.integrity import engine_defects
from fakes.language_model import NAN, POISON, FakeLanguageModel, expected_tokens
from ge_text.engine.admission import LengthForecast
from ge_text.engine.engine import Engine
from ge_text.engine.parameters import Parameters, parse_parameters
from ge_text.engine.sequence import GenerationRequest, make_sequence
from ge_text.engine.settings import EngineSettings, PreemptionMode
from ge_text.engine.speculation.base import Guess
from ge_text.engine.update import Finish

PROMPTS = [tuple(8 + (n * 13 + i * i * 7) % 56 for i in range(1 + n * 5 % 23)) for n in range(9)]
OUTPUTS = (3, 17, 1, 9, 12, 5, 20, 2, 30)


class Clock:
    """Goes forward a tick whenever somebody looks."""

    def __init__(self, tick_s=0.001):
        self.now_s = 0.0
        self.tick_s = tick_s

    def __call__(self, ticks=1):
        self.now_s += ticks * self.tick_s
        return self.now_s


class Optimist(LengthForecast):
    """Expects every sequence to end with its next token, whatever happens."""

    def remaining(self, sequence):
        return 1


def sequence(
    *,
    number=0,
    at_s=0.0,
    prompt=(5, 6, 7),
    given=(),
    max_output=8,
    sample=0,
    eos=(),
    guide=None,
    adapter=None,
    max_tokens=None,
    **parameters,
):
    """Return a sequence that waits; its key is its time."""
    request = GenerationRequest(
        id=str(number),
        prompt=tuple(prompt),
        parameters=Parameters(max_tokens=max_tokens, **parameters),
        guide=guide,
        adapter=adapter,
    )
    return make_sequence(
        request,
        sample,
        given=tuple(given),
        key=(at_s, number),
        max_output=max_output,
        eos=eos,
    )


class Serving:
    """An engine on a fake model, and what its clients got."""

    def __init__(self, model=None, draft=None, **settings):
        self.model = model or FakeLanguageModel()
        self.draft = draft
        self.clock = Clock()
        self.engine = Engine(self.model, EngineSettings(**settings), self.clock, draft)
        self.updates = []
        self.stop_texts = set()  # tokens that end a sample, as a stop text would

    def submit(
        self,
        name,
        prompt=(5, 6, 7),
        generated=(),
        timeout_s=None,
        guide=None,
        adapter=None,
        **parameters,
    ):
        parameters = parse_parameters({"max_tokens": 8, **parameters})
        request = GenerationRequest(
            id=name,
            prompt=tuple(prompt),
            parameters=parameters,
            generated=generated,
            timeout_s=timeout_s,
            guide=guide,
            adapter=adapter,
        )
        self.engine.submit(request, self.take)
        return parameters

    def take(self, update):
        self.updates.append(update)
        return not self.stop_texts.isdisjoint(update.tokens)

    def step(self):
        self.engine.step()
        assert engine_defects(self.engine) == []

    def run(self, most=10_000):
        """Step until nothing is left; then everything has to be free."""
        while self.engine.has_work:
            self.step()
            most -= 1
            assert most, "the engine does not come to an end"
        figures = self.engine.figures()
        assert (figures.blocks_used, figures.running, figures.waiting) == (0, 0, 0)
        return self

    def tokens(self, name, sample=0):
        return [
            token
            for update in self.updates
            if (update.id, update.sample) == (name, sample)
            for token in update.tokens
        ]

    def ends(self, name):
        return {
            update.sample: update.finish
            for update in self.updates
            if update.id == name and update.finish
        }

    def error(self, name):
        return next(update.error for update in self.updates if update.id == name and update.error)

    def be_optimistic(self):
        """Let everybody in, so that some have to leave again."""
        self.engine._scheduler.forecast = Optimist()
        return self


def check_prompts(served, run=Serving.run, **parameters):
    """Let every prompt be served, and compare with what each has to get; return what was counted."""
    expected = {}
    for number, prompt in enumerate(PROMPTS):
        asked = {"max_tokens": OUTPUTS[number], "seed": number, **parameters}
        given = served.submit(str(number), prompt, **asked)
        expected[str(number)] = expected_tokens(prompt, given, eos=served.model.eos)
    run(served)
    assert {name: served.tokens(name) for name in expected} == expected
    return served.engine.figures().counts


def drawn_settings(data):
    """Return settings of steps at random."""
    seqs = data.draw(st.integers(1, 5))
    return {
        "max_num_seqs": seqs,
        "max_num_batched_tokens": data.draw(st.integers(seqs, 30)),
        "prefill_chunk": data.draw(st.sampled_from([0, 1, 3, 8])),
        "preemption": data.draw(st.sampled_from(PreemptionMode)),
        "swap_bytes": data.draw(st.sampled_from([0, 2000])),
    }


def check_mixture(data, served, prompts, *, most=6, step=Serving.step, run=Serving.run, **wishes):
    """Let requests come at random, some to fail or be cancelled: each gets the text that is its own.

    Args:
        data: hypothesis's, which draws.
        served: without requests.
        prompts: what they are drawn from.
        most: requests.
        step: lets it take a step.
        run: lets it come to an end.
        wishes: what each parameter is drawn from.
    """
    if data.draw(st.booleans()):
        served.be_optimistic()
    expected, cancelled = {}, set()
    for number in range(data.draw(st.integers(1, most))):
        prompt = tuple(data.draw(prompts))
        samples = data.draw(st.sampled_from([1, 1, 3]))
        poison = data.draw(st.sampled_from([(), (), (), (POISON,), (NAN,)]))
        asked = {name: data.draw(wish) for name, wish in wishes.items()}
        given = served.submit(str(number), prompt + poison, n=samples, seed=number, **asked)
        for sample in range(samples):
            tokens = expected_tokens(prompt, given, sample=sample, eos=served.model.eos)
            expected[str(number), sample] = [] if poison else tokens
        for _ in range(data.draw(st.integers(0, 3))):
            step(served)
        if data.draw(st.integers(0, 4)) == 0:
            served.engine.cancel(str(number))
            cancelled.add(str(number))
    run(served)
    for (name, sample), tokens in expected.items():
        got = served.tokens(name, sample)
        assert got == (tokens[: len(got)] if name in cancelled else tokens)
        assert served.ends(name)[sample] in Finish


class Foretelling:
    """A drafter that knows the outputs of requests by their ids, and is wrong now and then."""

    costly = False
    read_s = 0.0

    def __init__(self, outputs, wrong_every=5):
        self._outputs = outputs
        self._wrong_every = wrong_every

    def draft(self, asked, *, read):
        return {
            sequence: Guess(tokens)
            for sequence, most in asked.items()
            if (tokens := self._told(sequence, most))
        }

    def _told(self, sequence, most):
        start = sequence.num_output
        output = self._outputs[sequence.request.id][start : start + most]
        return tuple(
            token + (place % self._wrong_every == 0) for place, token in enumerate(output, start)
        )
