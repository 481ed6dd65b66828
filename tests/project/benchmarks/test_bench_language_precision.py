"""Precisions of a language model are compared on the same steps and the same text."""

import itertools

import numpy as np
import pytest
import torch
from tools.probes import bench_language_precision as bench
from tools.probes.bench_language_precision import (
    HELD,
    Held,
    Row,
    fastest,
    greedy,
    lines,
    logprobs,
    opened,
)

from builders.language import VOCABULARY, make

LENGTH = 16


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    return folder, make(folder, "llama")


@pytest.fixture
def short(monkeypatch):
    """Sizes for a tiny model."""
    monkeypatch.setattr(bench, "CACHED", 40)
    monkeypatch.setattr(bench, "WINDOW", LENGTH)


@pytest.mark.usefixtures("short")
def test_log_probabilities_are_those_of_the_text(checkpoint):
    """Each window by itself, as transformers' model has them; rounding moves them a little."""
    folder, reference = checkpoint
    ids = np.random.default_rng(4).integers(0, VOCABULARY, 2 * LENGTH + 5)
    expected = []
    with torch.inference_mode():
        for window in np.split(ids, [LENGTH, 2 * LENGTH]):
            scores = reference(torch.tensor(window[None])).logits[0].log_softmax(-1)
            expected += scores[torch.arange(len(window) - 1), torch.tensor(window[1:])].tolist()
    exact, *_, rounded = (logprobs(opened(folder, held, 1), ids) for held in HELD[:3])
    np.testing.assert_allclose(exact, expected, rtol=1e-4, atol=1e-4)
    assert 0 < np.abs(rounded - exact).mean() < 1


@pytest.mark.usefixtures("short")
def test_greedy_tokens_are_those_of_the_text_so_far(checkpoint):
    """Each window by itself, as transformers' model finds them."""
    folder, reference = checkpoint
    ids = np.random.default_rng(4).integers(0, VOCABULARY, LENGTH + 5)
    with torch.inference_mode():
        expected = [
            reference(torch.tensor(window[None])).logits[0, :-1].argmax(-1).tolist()
            for window in np.split(ids, [LENGTH])
        ]
    assert greedy(opened(folder, HELD[0], 1), ids).tolist() == [*itertools.chain(*expected)]


@pytest.mark.usefixtures("short")
def test_every_model_takes_every_step(checkpoint):
    """All sizes are timed for all of them."""
    models = {held: opened(checkpoint[0], held, 1) for held in HELD[:2]}
    found = fastest(models, 1)
    assert list(found) == list(HELD[:2])
    assert all(set(times) == {1, 8} and min(times.values()) > 0 for times in found.values())


def test_the_table_compares_with_its_first_line():
    """Differences of log-probabilities; perplexity is of each by itself."""
    rows = [
        Row(
            held=Held(name, "model"),
            seconds={1: 0.01, 8: 0.02},
            nbytes=3 << 20,
            token_bytes=1536,
            logprobs=np.log(np.array(likely)),
            tokens=np.array(tokens),
        )
        for name, likely, tokens in (("fp32", [0.5, 0.5], [3, 4]), ("bf16", [0.5, 0.25], [3, 5]))
    ]
    assert lines(rows)[2:] == [
        "| `fp32` | `model` | 10.0 | 20.0 | 3 MiB | 1.5 KiB |  |  | 2.000 |  |",
        "| `bf16` | `model` | 10.0 | 20.0 | 3 MiB | 1.5 KiB | 0.3466 | 0.69 | 2.828 | 50.0% |",
    ]
