"""One thread does all the work of a service's models."""

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fakes.language_model import FakeLanguageModel
from ge_backend.errors import ModelError
from ge_text.models import own_thread
from ge_text.models.batch import padding_batch
from ge_text.models.open import OpenedLanguage
from ge_text.models.own_thread import OwnThread


@pytest.fixture
def opened(monkeypatch):
    """Open models that note in which thread they were opened and have run a step."""

    def opener(asked):
        if asked == "broken":
            raise ModelError("no such checkpoint")
        threads.append(threading.get_ident())
        model = FakeLanguageModel(on_step=lambda _: threads.append(threading.get_ident()))
        return OpenedLanguage(model=model, tokenizer=None, sampling={})

    threads = []
    monkeypatch.setattr(own_thread, "open_language", opener)
    thread = OwnThread()
    models = [thread.open(asked).model for asked in ("target", "draft")]
    for model in models:
        model.open_cache(4)
    return thread, models, threads


def test_all_models_run_in_one_thread_whoever_asks(opened):
    """Several lanes take turns: the models see one thread, which is none of theirs."""
    _, models, threads = opened
    batch = padding_batch((1, 1, 1))
    callers = set()

    def step(number):
        callers.add(threading.get_ident())
        models[number % 2].step(batch)
        time.sleep(0.01)

    with ThreadPoolExecutor(4) as lanes:
        list(lanes.map(step, range(20)))
    assert len(callers) > 1
    assert len(threads) == 22
    assert len(set(threads)) == 1
    assert not callers & set(threads)


def test_a_model_of_openvino_is_asked_directly(monkeypatch):
    """It has threads of its own, and handing a step over and back takes time."""
    model = FakeLanguageModel()
    found = OpenedLanguage(model=model, tokenizer=None, sampling={}, engine="openvino")
    monkeypatch.setattr(own_thread, "open_language", lambda _: found)
    assert OwnThread().open("target").model is model


def test_what_a_model_is_and_returns_is_passed_on(opened):
    """Sizes are the model's own, and so is what is saved of its cache and put back."""
    _, (model, _), _ = opened
    own = FakeLanguageModel()
    for name in ("vocabulary", "max_positions", "eos", "dtype", "block_size", "products"):
        assert getattr(model, name) == getattr(own, name)
    assert model.cache_bytes_per_block() == own.cache_bytes_per_block()
    assert model.memory_left() == own.memory_left()
    model.copy_blocks([(1, 2)])
    model.swap_in(model.swap_out([1, 2]), [2, 3])


def test_errors_reach_the_caller(opened):
    """What fails in the thread fails where it was asked for, and the thread goes on."""
    thread, (model, _), _ = opened
    with pytest.raises(ModelError, match="no such checkpoint"):
        thread.open("broken")
    with pytest.raises(KeyError):
        model.drop_adapter("nobody's")
    model.step(padding_batch((1, 1, 1)))


def test_the_thread_ends_with_its_models(monkeypatch):
    """Nothing is left when the last model is dropped."""

    def opener(asked):
        threads.append(threading.current_thread())
        return OpenedLanguage(model=FakeLanguageModel(), tokenizer=None, sampling={})

    threads = []
    monkeypatch.setattr(own_thread, "open_language", opener)
    model = OwnThread().open("target").model
    gc.collect()
    model.open_cache(2)  # the model keeps it
    assert threads[0].is_alive()
    del model
    gc.collect()
    threads[0].join(5.0)
    assert not threads[0].is_alive()
