"""Sequences and engines for tests."""

from fakes.language_model import FakeLanguageModel
from ge_backend.generate.admission import LengthForecast
from ge_backend.generate.engine import Engine
from ge_backend.generate.parameters import Parameters, parse_parameters
from ge_backend.generate.request import GenerationRequest
from ge_backend.generate.sequence import make_sequence
from ge_backend.generate.settings import EngineSettings
from ge_backend.generate.speculation.base import Guess


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
    **parameters,
):
    """Return a sequence that waits; its key is its time."""
    request = GenerationRequest(
        id=str(number),
        prompt=tuple(prompt),
        parameters=Parameters(max_tokens=None, **parameters),
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
        assert self.engine.integrity() == []

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
