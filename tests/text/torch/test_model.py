"""A model on a paged cache draws, token for token, what transformers' `generate` draws."""

import functools

import numpy as np
import pytest
import torch

from builders.language import (
    CPU,
    GREEDY,
    LLAMAS,
    OTHERS,
    VOCABULARY,
    Text,
    batch_of,
    generated,
    make,
    opened,
    run,
    texts_for,
)
from ge_backend.errors import GraphFailed, OutOfMemory
from ge_text.models.batch import padding_batch
from ge_text.models.sampling import Sampling
from ge_text.torch import block_plan
from ge_text.torch.llama import LlamaDecoder
from ge_text.torch.step import stage

LENGTHS = (1, 3, 4, 5, 11, 17, 2, 30)
GROWTH = 10
LONGEST = max(LENGTHS) + GROWTH


@functools.cache
def prompts():
    rng = np.random.default_rng(3)
    return [rng.integers(1, VOCABULARY, length) for length in LENGTHS]


@pytest.fixture(scope="module", params=["llama", "mistral-window", "gemma2"])
def checkpoint(request, tmp_path_factory):
    """A folder, and what transformers draws after every prompt."""
    folder = tmp_path_factory.mktemp(request.param)
    reference = make(folder, request.param)
    return folder, [generated(reference, prompt, GROWTH) for prompt in prompts()]


@pytest.fixture(params=["as it pays", "in place"])
def reading(request, monkeypatch):
    """Keys are gathered for models this small; in place they are read where there are many."""
    if request.param == "in place":
        monkeypatch.setattr(block_plan, "FIXED_BYTES", -(10**9))
        monkeypatch.setattr(block_plan, "RUN_BYTES", 300)


@pytest.mark.usefixtures("reading")
@pytest.mark.parametrize("name", [*LLAMAS, *OTHERS])
def test_every_family_draws_what_transformers_draws(tmp_path, name):
    """Prompts of mixed lengths, in chunks, joined by others between any two steps."""
    reference = make(tmp_path, name)
    texts, blocks = texts_for(prompts(), np.random.default_rng(5), 4, LONGEST)
    model = opened(tmp_path, blocks=blocks)
    assert isinstance(model._decoder, LlamaDecoder) == (name in LLAMAS)
    run(model, texts, GROWTH, np.random.default_rng(1))
    assert [text.output for text in texts] == [
        generated(reference, prompt, GROWTH) for prompt in prompts()
    ]


@pytest.mark.parametrize("block_size", [1, 2, 3, 16, 64])
@pytest.mark.parametrize("chunk", [1, 2, 7, 40])
def test_neither_block_nor_chunk_size_changes_a_token(checkpoint, block_size, chunk):
    """Where a prompt is cut and where its keys lie is nobody's business but the engine's."""
    folder, expected = checkpoint
    texts, blocks = texts_for(prompts(), np.random.default_rng(5), block_size, LONGEST)
    model = opened(folder, blocks=blocks, block_size=block_size)
    run(model, texts, GROWTH, np.random.default_rng(2), chunk=chunk)
    assert [text.output for text in texts] == expected


@pytest.mark.usefixtures("reading")
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("bucket", [None, "powers", "large"])
def test_neither_grouping_nor_padding_changes_a_token(checkpoint, together, bucket):
    """Padded rows, tokens and blocks are computed and have no say."""

    def powers(*sizes):
        return tuple(1 << (size - 1).bit_length() for size in sizes)

    def large(rows, query, blocks):
        return rows + 5, query + 3, blocks + 4

    folder, expected = checkpoint
    texts, blocks = texts_for(prompts(), np.random.default_rng(5), 4, LONGEST)
    model = opened(folder, blocks=blocks)
    chosen = {"powers": powers, "large": large}.get(bucket)
    run(model, texts, GROWTH, np.random.default_rng(2), together=together, bucket=chosen)
    assert [text.output for text in texts] == expected


@pytest.mark.usefixtures("reading")
def test_a_seeded_text_is_the_same_alone_and_in_any_batch(checkpoint):
    """What a row draws follows from its own tokens, its wishes, its seed and position."""
    wishes = [
        Sampling(temperature=0.8, seed=index, top_p=0.9, repetition_penalty=1.1)
        for index in range(len(prompts()))
    ]
    folder, _ = checkpoint
    outputs = []
    for order in ([*range(len(LENGTHS))], [*reversed(range(len(LENGTHS)))], None):
        groups = [[index] for index in range(len(LENGTHS))] if order is None else [order]
        found = {}
        for chosen in groups:
            texts, blocks = texts_for(
                [prompts()[index] for index in chosen],
                np.random.default_rng(5),
                4,
                LONGEST,
                [wishes[index] for index in chosen],
            )
            model = opened(folder, blocks=blocks)
            run(model, texts, GROWTH, np.random.default_rng(len(outputs)))
            found |= {index: text.output for index, text in zip(chosen, texts, strict=True)}
        outputs.append(found)
    assert outputs[0] == outputs[1] == outputs[2]


def test_blocks_survive_copying_and_a_stay_in_host_memory(checkpoint):
    """A text goes on with the very tokens after its blocks were copied, or swapped out and in."""
    folder, expected = checkpoint
    texts, blocks = texts_for(prompts()[4:6], np.random.default_rng(5), 4, LONGEST)
    model = opened(folder, blocks=2 * blocks)
    for text in texts:
        run(model, [text], 3, np.random.default_rng(2))
    copied, swapped = texts
    moved = copied.table + blocks
    model.copy_blocks(list(zip(copied.table.tolist(), moved.tolist(), strict=True)))
    saved = model.swap_out(swapped.table.tolist())
    assert saved.nbytes == len(swapped.table) * model.cache_bytes_per_block()
    for text in texts:  # what they had is now another's
        used = Text(prompt=prompts()[7], table=text.table)
        run(model, [used], 1, np.random.default_rng(2), chunk=40)
    copied.table, swapped.table = moved, swapped.table[::-1].copy()
    model.swap_in(saved, swapped.table.tolist())
    run(model, texts, GROWTH, np.random.default_rng(2))
    assert [text.output for text in texts] == expected[4:6]


def test_blocks_that_change_places_are_read_before_they_are_written(checkpoint):
    """A chain of copies moves contents, it does not smear one of them."""
    model = opened(checkpoint[0], blocks=5)
    for index in range(5):
        with torch.inference_mode():
            model._cache.keys[0][index] = index
    model.copy_blocks([(1, 2), (2, 3), (3, 1)])
    model.copy_blocks([])
    assert model._cache.keys[0].amax((1, 2, 3)).tolist() == [0, 3, 1, 2, 4]


def test_a_model_says_what_it_needs(checkpoint):
    """Sizes are those that the engine plans with."""
    model = opened(checkpoint[0], blocks=3, block_size=8)
    assert (model.vocabulary, model.max_positions) == (VOCABULARY, 128)
    assert (model.dtype, model.block_size, model.eos) == ("FP32", 8, ())
    cache = model._cache
    held = sum(tensor.nbytes for tensor in (*cache.keys, *cache.values))
    assert held == 3 * model.cache_bytes_per_block()
    assert model.memory_left() == 2**30


def test_the_scratch_of_a_step_is_measured_in_one_that_is_as_large(checkpoint):
    """It grows with tokens and contexts, is the same every time, and holds for smaller steps."""
    model = opened(checkpoint[0], blocks=40)
    small, long, wide = ((1, 1, 2),), ((1, 1, 30),), ((1, 64, 30), (9, 1, 4))
    found = [model.scratch_bytes(steps) for steps in (small, long, wide, wide)]
    assert 0 < found[0] < found[1] < found[2] == found[3]
    assert found[2] > 64 * 48 * 4  # what the widest layer alone has
    beyond = model.scratch_bytes(((1, 64, 1000), (9, 1, 4)))  # more than the cache has
    assert beyond == model.scratch_bytes(((1, 64, 39), (9, 1, 4)))


@pytest.mark.usefixtures("reading")
def test_keys_and_values_may_be_kept_in_less_than_the_weights(checkpoint):
    """In half the memory; scores move by what rounding keys and values makes of them, no more."""
    scores, sizes = [], []
    for cache in (None, "BF16"):
        texts, blocks = texts_for(prompts(), np.random.default_rng(5), 4, LONGEST)
        model = opened(checkpoint[0], blocks=blocks, cache=cache)
        batch = batch_of([(text, len(text.prompt)) for text in texts], 4)
        with torch.inference_mode():
            scores.append(model._decoder.logits(stage(batch, model._cache, CPU)))
        sizes.append(model.cache_bytes_per_block())
    assert sizes[0] == 2 * sizes[1]
    whole, half = scores
    assert half.dtype == whole.dtype == torch.float32
    moved = float((half - whole).abs().mean() / whole.abs().mean())
    assert 1e-5 < moved < 0.1


def test_a_cache_that_does_not_fit_is_refused_with_both_numbers(checkpoint):
    """The message says what it takes, what there is and which setting to change."""
    model = opened(checkpoint[0])
    blocks = 2**33 // model.cache_bytes_per_block()
    with pytest.raises(OutOfMemory, match=r"takes 85899\d+ bytes, .* 4294967296 free"):
        model.open_cache(blocks)


def test_a_step_without_a_cache_is_an_error_of_its_own(checkpoint):
    """It is a mistake of the engine, named as one."""
    with pytest.raises(GraphFailed, match="a step before open_cache"):
        opened(checkpoint[0]).step(padding_batch((1, 1, 1)))


def test_what_the_engine_refuses_becomes_one_of_our_errors(checkpoint):
    """A token outside of the vocabulary fails the step with the engine's reason."""
    model = opened(checkpoint[0], blocks=3)
    text = Text(prompt=np.array([VOCABULARY]), table=np.array([1]), sampling=GREEDY)
    with pytest.raises(GraphFailed, match="failed to run"):
        model.step(batch_of([(text, 1)], 4))


def test_getting_ready_touches_nobodys_blocks(checkpoint):
    """A bucket is warmed up over padding alone, also while texts are running."""
    folder, expected = checkpoint
    texts, blocks = texts_for(prompts()[4:5], np.random.default_rng(5), 4, LONGEST)
    model = opened(folder, blocks=blocks)
    run(model, texts, 4, np.random.default_rng(2))
    for bucket in ((1, 1, 1), (4, 1, 8), (2, 16, 4)):
        model.prepare(bucket)
    run(model, texts, GROWTH, np.random.default_rng(2))
    assert texts[0].output == expected[4]
    model.close()
