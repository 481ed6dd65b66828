"""Texts asked of `AsyncLLM`, and what comes back, with another in its place."""

import importlib
import math
import queue
import threading
from pathlib import Path

import numpy as np
import pytest

from builders.null_models import comes_true
from ge_backend.errors import (
    DeadlineExceeded,
    DeviceUnavailable,
    InvalidRequest,
    QueueFull,
)
from ge_text.models.json_schema import with_prepared_rules
from ge_text.models.sampling import Sampling
from ge_text.models.scheduled import EngineRequest, Levels
from ge_text.models.structure import Structure, StructureKind


class Opened:
    """A model with a queue of what it has told, and whether its death was."""

    def __init__(self, folder="/models/1", **options):
        self.died, self.told = threading.Event(), queue.SimpleQueue()
        made = importlib.import_module("ge_text.vllm.arguments").engine_arguments
        module = importlib.import_module("ge_text.vllm.model")
        self.model = module.VllmModel(
            made(Path(folder), "origin", "writer", options),
            vocabulary=300,
            eos=(2,),
            on_death=self.died.set,
        )

    def ask(self, *prompt, **given):
        fields = {"sampling": Sampling(), "seeded": False, "max_tokens": 3, **given}
        self.model.begin(EngineRequest(name="1.1/0", prompt=prompt, **fields), self.told.put)

    def answer(self):
        """Return all that is told, to its end."""
        found = [self.told.get(timeout=10)]
        while not (found[-1].finish or found[-1].error):
            found.append(self.told.get(timeout=10))
        return found


@pytest.fixture
def opened(async_llm):
    opened = Opened()
    yield opened
    opened.model.close()


def test_a_model_says_what_it_holds(opened):
    """As vLLM's own configuration has it once it has started."""
    model = opened.model
    found = model.vocabulary, model.max_positions, model.eos, model.cache_blocks, model.block_size
    assert found == (300, 64, (2,), 10, 16)


def test_tokens_come_one_by_one(opened, async_llm):
    """Each with why it was the last one, if it was; log-probabilities only where asked for."""
    opened.ask(5, 6, max_tokens=2)
    first, last = opened.answer()
    assert (first.tokens, first.finish, last.tokens, last.finish) == ((7,), "", (8,), "length")
    assert math.isnan(first.logprobs[0])
    assert first.top == (None,)
    assert opened.model.levels() == Levels(waiting=2, running=3, cache_used=0.5, preempted=2)


def test_wishes_go_with_the_request(opened, async_llm):
    """Under vLLM's names; a seed only where the client has one, so that vLLM may sample as fast."""
    sampling = Sampling(temperature=0.5, top_k=4, seed=9, bad_words_ids=((3, 4),))
    opened.ask(5, sampling=sampling, seeded=True, ends=(6,), min_tokens=1, priority=-2)
    (told,) = opened.answer()
    assert (told.tokens, told.finish) == ((6,), "stop")
    prompt, wishes, name, priority = async_llm.last.asked[0]
    assert (prompt, name, priority) == ({"prompt_token_ids": [5]}, "1.1/0", -2)
    assert (wishes.temperature, wishes.top_k, wishes.seed) == (0.5, 4, 9)
    assert (wishes.stop_token_ids, wishes.min_tokens, wishes.max_tokens) == ([6], 1, 3)
    assert (wishes.ignore_eos, wishes.detokenize) == (True, False)
    assert wishes._bad_words_token_ids == [[3, 4]]
    assert not wishes.skip_reading_prefix_cache
    opened.ask(5, sampling=sampling, prefix_cache=False, cache_salt="mine")
    opened.answer()
    prompt, wishes, _, _ = async_llm.last.asked[1]
    assert prompt == {"prompt_token_ids": [5], "cache_salt": "mine"}
    assert (wishes.seed, wishes.skip_reading_prefix_cache) == (None, True)


@pytest.mark.parametrize(
    ("kind", "text", "name", "value"),
    [
        (StructureKind.JSON, '{"type": "object"}', "json", '{"type": "object"}'),
        (StructureKind.REGEX, "a+", "regex", "a+"),
        (StructureKind.CHOICE, '["yes", "no"]', "choice", ["yes", "no"]),
        (StructureKind.GRAMMAR, "root ::= x", "grammar", "root ::= x"),
        (
            StructureKind.GRAMMAR,
            "start: %json {}",
            "grammar",
            with_prepared_rules("start: %json {}"),
        ),
    ],
)
def test_structures_are_vllms_own_affair(tmp_path, async_llm, kind, text, name, value):
    """They go with the request, one at most, and vLLM's own ends of text count for them."""
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).touch()
    opened = Opened(tmp_path)
    for structure in (Structure(kind, text), None):
        opened.ask(5, structure=structure)
        opened.answer()
    (_, kept, *_), (_, free, *_) = async_llm.last.asked
    given = {each: found for each, found in vars(kept.structured_outputs).items() if found}
    assert (given, kept.ignore_eos) == ({name: value}, False)
    assert (free.structured_outputs, free.ignore_eos) == (None, True)
    opened.model.close()


def test_a_structure_without_a_tokenizer_is_refused(opened):
    """With the file that is missing; the next text is written."""
    opened.ask(5, structure=Structure(StructureKind.REGEX, "a+"))
    (told,) = opened.answer()
    assert isinstance(told.error, InvalidRequest)
    assert "guided_regex needs vLLM's own tokenizer; put tokenizer_config.json" in str(told.error)
    opened.ask(5, max_tokens=1)
    assert opened.answer()[0].tokens == (6,)


def test_log_probabilities_are_of_the_token_and_of_the_best(opened):
    """As many of the best as were asked for, best first."""
    opened.ask(5, sampling=Sampling(logprobs=2), max_tokens=1)
    (told,) = opened.answer()
    assert told.logprobs == (-2.0,)
    ids, values = told.top[0]
    assert ids.tolist() == [1, 2]
    np.testing.assert_array_equal(values, np.array([-0.5, -1.0], np.float32))
    opened.ask(5, sampling=Sampling(logprobs=0), max_tokens=1)
    (told,) = opened.answer()
    assert (told.logprobs, told.top) == ((-2.0,), (None,))
    assert told.ranks == (3,)


@pytest.mark.parametrize(
    ("token", "kind", "message"),
    [(13, InvalidRequest, "no 13"), (16, QueueFull, "no 16"), (14, DeadlineExceeded, "0.2 s")],
)
def test_what_goes_wrong_ends_the_text_alone(opened, token, kind, message):
    """With an error of ours; the next text is written."""
    opened.ask(token, timeout_s=0.2)
    (told,) = opened.answer()
    assert isinstance(told.error, kind)
    assert message in str(told.error)
    opened.ask(5, max_tokens=1)
    assert opened.answer()[0].tokens == (6,)


def test_a_text_that_is_ended_is_aborted(opened, async_llm):
    """The engine hears of it; ending what is not under way means nothing."""
    opened.ask(14)
    assert comes_true(lambda: async_llm.last.asked)
    opened.model.end("1.1/0")
    opened.model.end("nobody")
    assert comes_true(lambda: async_llm.last.gone == ["1.1/0"])


def test_a_death_is_told(opened, async_llm):
    """Whether a request meets it or nobody asks."""
    opened.ask(15)
    assert opened.died.wait(10)
    opened.died.clear()
    async_llm.last.errored = True
    assert opened.died.wait(10)


def test_an_engine_that_does_not_start_says_why(async_llm):
    """With vLLM's own words."""
    with pytest.raises(DeviceUnavailable, match="max_model_len is more than the model has"):
        Opened(max_model_len="2000")


def test_closing_ends_vllm(async_llm):
    """Its processes are shut down."""
    Opened().model.close()
    assert async_llm.last.down
