"""The engine with real decoders, token for token what transformers' `generate` gives."""

import copy
import itertools

import numpy as np
import pytest
import torch

from builders import language
from builders.generation import Foretelling, Serving
from builders.integrity import drafter_defects
from builders.writer import write_apprentice
from ge_text.engine.settings import PreemptionMode, Scheduling, SpeculationMode
from ge_text.engine.shapes import rule_shapes
from ge_text.engine.update import Finish
from ge_text.engine.warmup import prepared_shapes

NAMES = ("llama", "mistral-window", "gpt2")
OUTPUT = 14
LENGTHS = (1, 3, 30, 7, 16, 11, 2, 45)
PROMPTS = [
    tuple(np.random.default_rng(n).integers(1, language.VOCABULARY, length).tolist())
    for n, length in enumerate(LENGTHS)
]


@pytest.fixture(scope="module", params=NAMES)
def checkpoint(request, tmp_path_factory):
    """A folder, and transformers' model of it."""
    folder = tmp_path_factory.mktemp(request.param)
    return folder, language.make(folder, request.param)


@pytest.fixture(scope="module")
def expected(checkpoint):
    """What `generate` gives for each prompt alone."""
    _, oracle = checkpoint
    return [language.generated(oracle, prompt, OUTPUT) for prompt in PROMPTS]


def serving(checkpoint, *, block_size=4, blocks=200, draft=None, **settings):
    model = language.opened(checkpoint[0], block_size=block_size)
    model.memory_left = lambda steps: blocks * model.cache_bytes_per_block()
    return Serving(model, draft and language.opened(draft, block_size=block_size), **settings)


@pytest.fixture(scope="module")
def apprentice(checkpoint, tmp_path_factory):
    """A checkpoint of nearly the same weights, which often agrees."""
    folder = tmp_path_factory.mktemp("draft")
    write_apprentice(checkpoint[1], folder)
    return folder


def submit(served, **parameters):
    for number, prompt in enumerate(PROMPTS):
        served.submit(str(number), prompt, **{"temperature": 0, "max_tokens": OUTPUT, **parameters})


def outputs(served):
    return [served.tokens(str(number)) for number in range(len(PROMPTS))]


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("chunk", [0, 1, 7])
def test_prompts_of_all_lengths_at_once(checkpoint, expected, chunk, block_size):
    """Whatever the chunk and the block size, every text is what it is alone."""
    served = serving(
        checkpoint, block_size=block_size, prefill_chunk=chunk, max_num_batched_tokens=64
    )
    submit(served)
    assert outputs(served.run()) == expected


@pytest.mark.parametrize("scheduling", Scheduling)
def test_requests_that_come_and_go(checkpoint, expected, scheduling):
    """One after the other, with few places and neighbours that are cancelled in between."""
    served = serving(checkpoint, max_num_seqs=3, max_num_batched_tokens=16, scheduling=scheduling)
    for number, prompt in reversed(list(enumerate(PROMPTS))):
        served.submit(str(number), prompt, temperature=0, max_tokens=OUTPUT)
        served.submit(f"x{number}", prompt[::-1], max_tokens=50, seed=number)
        served.step()
        served.step()
        served.engine.cancel(f"x{number}")
    assert outputs(served.run()) == expected


@pytest.mark.parametrize("mode", [PreemptionMode.RECOMPUTE, PreemptionMode.SWAP])
def test_sequences_that_have_to_make_room(checkpoint, expected, mode):
    """Computed again or copied out and in again: the same keys, the same tokens."""
    served = serving(checkpoint, blocks=26, preemption=mode, swap_bytes=10**8).be_optimistic()
    submit(served)
    assert outputs(served.run()) == expected
    counts = served.engine.figures().counts
    assert counts["swapped_in" if mode is PreemptionMode.SWAP else "recomputed"] > 0


@pytest.mark.parametrize(
    ("batch", "query", "context"), [("", "", ""), ("1,3", "5,9", "4,16"), ("8", "16", "2,15")]
)
def test_static_shapes(checkpoint, expected, batch, query, context):
    """Padded rows, padded tokens and padded contexts change nothing, nor do steps outside."""
    served = serving(
        checkpoint,
        max_num_seqs=8,
        max_num_batched_tokens=16,
        batch_buckets=batch,
        query_buckets=query,
        context_buckets=context,
    )
    lists = rule_shapes(served.engine._settings, served.engine.limits.max_length, 4)
    served.engine.use(prepared_shapes(served.model, lists, served.clock))
    submit(served)
    assert outputs(served.run()) == expected
    assert served.engine.figures().counts["padded_tokens"] > 0


@pytest.mark.parametrize("together", [True, False])
def test_beginnings_that_were_computed_before(checkpoint, together):
    """Keys that another text left give the tokens that keys of its own would give."""
    _, oracle = checkpoint
    prompts = [PROMPTS[7][: 45 - 6 * n] + PROMPTS[n] for n in range(6)]
    served = serving(checkpoint, blocks=60)
    for number, prompt in enumerate(prompts):
        served.submit(str(number), prompt, temperature=0, max_tokens=OUTPUT)
        if not together:
            served.run()
    served.run()
    wanted = [language.generated(oracle, prompt, OUTPUT) for prompt in prompts]
    assert [served.tokens(str(number)) for number in range(6)] == wanted
    assert served.engine.figures().counts["prefix_found_tokens"] >= 5 * 12


@pytest.mark.parametrize("steps", [1, 6, 13])
def test_another_engine_goes_on(checkpoint, expected, steps):
    """After a loss, prompt and tokens so far are enough to go on with the very same tokens."""
    first = serving(checkpoint, max_num_batched_tokens=64)
    submit(first)
    for _ in range(steps):
        first.step()
    second = serving(checkpoint, block_size=16)
    for number, prompt in enumerate(PROMPTS):
        if not first.ends(str(number)):
            so_far = (tuple(first.tokens(str(number))),)
            second.submit(str(number), prompt, generated=so_far, temperature=0, max_tokens=OUTPUT)
    second.run()
    joined = [a + b for a, b in zip(outputs(first), outputs(second), strict=True)]
    assert joined == expected


def test_an_end_of_text_is_generates(checkpoint):
    """A text ends with its end of text, which is part of it, and never below the least."""
    _, oracle = checkpoint
    free = [language.generated(oracle, prompt, OUTPUT) for prompt in PROMPTS]
    stop = free[3][4]
    served = serving(checkpoint)
    submit(served, stop_token_ids=[stop])
    served.run()
    wanted = [language.generated(oracle, p, OUTPUT, eos_token_id=stop) for p in PROMPTS]
    assert outputs(served) == wanted
    assert served.ends("3") == {0: Finish.STOP}
    later = serving(checkpoint)
    submit(later, stop_token_ids=[stop], min_tokens=8)
    wanted = [
        language.generated(oracle, p, OUTPUT, eos_token_id=stop, min_new_tokens=8) for p in PROMPTS
    ]
    assert outputs(later.run()) == wanted


def test_penalties_are_generates(checkpoint):
    """A penalty reads prompt and output of its own sequence, also after a restart."""
    _, oracle = checkpoint
    served = serving(checkpoint, blocks=26).be_optimistic()
    submit(served, repetition_penalty=1.7)
    wanted = [language.generated(oracle, p, OUTPUT, repetition_penalty=1.7) for p in PROMPTS]
    assert outputs(served.run()) == wanted


def test_random_texts_depend_on_seed_and_position_alone(checkpoint):
    """Alone, beside others, preempted or gone on with elsewhere: a seed has one text."""
    parameters = {"temperature": 0.9, "top_k": 20, "top_p": 0.95, "max_tokens": OUTPUT}

    def texts(served, step=1):
        for number in range(len(PROMPTS))[::step]:
            served.submit(str(number), PROMPTS[number], seed=7 + number, **parameters)
        return outputs(served.run())

    together = texts(serving(checkpoint))
    assert texts(serving(checkpoint, max_num_seqs=1)) == together
    assert texts(serving(checkpoint, prefill_chunk=3), step=-1) == together
    assert texts(serving(checkpoint, blocks=26).be_optimistic()) == together
    resumed = serving(checkpoint)
    for number, prompt in enumerate(PROMPTS):
        so_far = (tuple(together[number][:5]),)
        resumed.submit(str(number), prompt, generated=so_far, seed=7 + number, **parameters)
    assert outputs(resumed.run()) == [text[5:] for text in together]
    assert len(set(itertools.chain.from_iterable(together))) > 10


def test_samples_are_those_of_their_seeds(checkpoint):
    """Sample i of a request is the text of a request with its seed, though blocks are shared."""
    served = serving(checkpoint)
    served.submit("many", PROMPTS[4], n=3, seed=20, max_tokens=OUTPUT)
    for sample in range(3):
        served.submit(f"one{sample}", PROMPTS[4], seed=20 + sample, max_tokens=OUTPUT)
    served.run()
    for sample in range(3):
        assert served.tokens("many", sample) == served.tokens(f"one{sample}")


def test_half_precision_by_log_probabilities(checkpoint):
    """In BF16 ties flip, so texts may differ: scores are as near the exact ones as others' are."""
    folder, oracle = checkpoint
    served = Serving(
        language.opened(folder, dtype="BF16"), max_num_seqs=5, max_num_batched_tokens=24
    )
    submit(served, logprobs=0)
    served.run()
    half = copy.deepcopy(oracle).bfloat16()
    ours, theirs = [], []
    for number, prompt in enumerate(PROMPTS):
        tokens = served.tokens(str(number))
        drawn = [update for update in served.updates if update.id == str(number)]
        assert len(tokens) == OUTPUT
        exact, rough = (scores(model, prompt, tokens) for model in (oracle, half))
        ours += [abs(update.logprobs[0] - exact[at]) for at, update in enumerate(drawn)]
        theirs += [abs(a - b) for a, b in zip(rough, exact, strict=True)]
    assert 0 < np.mean(ours) <= 1.5 * np.mean(theirs) + 0.01
    assert max(ours) <= 2 * max(theirs) + 0.05


def scores(model, prompt, tokens):
    """Return transformers' log-probability of each of these tokens behind the ones before."""
    ids = torch.tensor([[*prompt, *tokens]])
    with torch.inference_mode():
        logits = model(ids).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
    return logits.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()


@pytest.mark.parametrize(
    ("width", "penalty", "early"),
    [(2, 1.0, False), (4, 0.0, "never"), (3, -1.5, True), (3, 2.0, "never"), (4, 1.0, True)],
)
def test_beams_are_generates(checkpoint, width, penalty, early):
    """The best texts of a beam search, in order, with ends of text and in little room."""
    _, oracle = checkpoint
    stop = language.generated(oracle, PROMPTS[3], OUTPUT)[4]
    served = serving(checkpoint, blocks=80, max_num_seqs=8, prefill_chunk=9)
    asked = {"beam_width": width, "length_penalty": penalty, "early_stopping": early, "n": 2}
    prompts = PROMPTS[1:5]
    for number, prompt in enumerate(prompts):
        served.submit(str(number), prompt, max_tokens=OUTPUT, stop_token_ids=[stop], **asked)
    served.run()
    for number, prompt in enumerate(prompts):
        best = language.beams(
            oracle,
            prompt,
            OUTPUT,
            num_beams=width,
            num_return_sequences=2,
            length_penalty=penalty,
            early_stopping=early,
            eos_token_id=stop,
        )
        assert [served.tokens(str(number), sample) for sample in range(2)] == best
    assert served.engine.figures().counts["copied_blocks"] > 0


@pytest.mark.parametrize("width", [2, 8])
def test_beams_with_many_ends_are_generates(checkpoint, width):
    """However many of the likeliest tokens end a text, or may not yet."""
    _, oracle = checkpoint
    ends = list(range(1, 80))
    served = serving(checkpoint, blocks=160, max_num_seqs=8)
    asked = {"beam_width": width, "stop_token_ids": ends, "min_tokens": 5}
    for number, prompt in enumerate(PROMPTS):
        served.submit(str(number), prompt, max_tokens=OUTPUT, **asked)
    served.run()
    for number, prompt in enumerate(PROMPTS):
        (best,) = language.beams(
            oracle,
            prompt,
            OUTPUT,
            num_beams=width,
            num_return_sequences=1,
            min_new_tokens=5,
            eos_token_id=ends,
        )
        assert served.tokens(str(number)) == best


@pytest.mark.parametrize("length", [0, 1, 6])
@pytest.mark.parametrize("block_size", [4, 16])
def test_verified_guesses_change_nothing(checkpoint, expected, length, block_size):
    """Right and wrong ones, from the text itself or from who knows it, in whatever number."""
    settings = {"speculation": SpeculationMode.NGRAM, "num_speculative_tokens": length}
    served = serving(checkpoint, block_size=block_size, max_num_batched_tokens=64, **settings)
    submit(served)
    assert outputs(served.run()) == expected
    served = serving(checkpoint, block_size=block_size, max_num_batched_tokens=64, **settings)
    told = {str(number): output for number, output in enumerate(expected)}
    served.engine._speculation._drafter = Foretelling(told)
    submit(served)
    assert outputs(served.run()) == expected
    counts = served.engine.figures().counts
    assert counts["accepted_tokens"] < counts["drafted_tokens"]
    assert counts["accepted_tokens"] > 20 or not length


@pytest.mark.parametrize("length", [0, 1, 6])
@pytest.mark.parametrize("block_size", [4, 16])
def test_a_second_models_guesses_change_nothing(
    checkpoint, apprentice, expected, length, block_size
):
    """It has a cache of its own, which follows texts that go otherwise, leave and come back."""
    settings = {
        "speculation": SpeculationMode.MODEL,
        "speculative_model": apprentice,
        "num_speculative_tokens": length,
        "max_num_batched_tokens": 64,
    }
    for blocks in (400, 208 // block_size):
        served = serving(
            checkpoint, draft=apprentice, block_size=block_size, blocks=blocks, **settings
        ).be_optimistic()
        submit(served)
        assert outputs(served.run()) == expected
        counts = served.engine.figures().counts
        assert counts["accepted_tokens"] <= counts["drafted_tokens"]
        assert counts["accepted_tokens"] > 20 or not length
        assert drafter_defects(served.engine._drafter) == []
    assert counts["recomputed"] > 0 or block_size > 4


def test_verified_guesses_change_no_random_text(checkpoint, apprentice):
    """Penalties, filters and a least length hold of every guessed place by itself."""

    def run(told, **settings):
        served = serving(
            checkpoint, blocks=120, draft=settings.get("speculative_model"), **settings
        )
        if told:
            served.engine._speculation._drafter = Foretelling(told)
        for number, prompt in enumerate(PROMPTS):
            served.submit(
                str(number),
                prompt,
                seed=number,
                max_tokens=24,
                temperature=(0, 0.3, 1.0)[number % 3],
                top_k=(0, 5)[number % 2],
                repetition_penalty=(1.0, 1.3)[number // 2 % 2],
                frequency_penalty=(0.0, 0.4)[number // 3 % 2],
                stop_token_ids=[5, 17],
                min_tokens=number,
            )
        texts = outputs(served.run())
        return {str(n): text for n, text in enumerate(texts)}, served.engine.figures().counts

    plain, _ = run({})
    guessed, counts = run(plain, speculation=SpeculationMode.NGRAM, num_speculative_tokens=5)
    assert guessed == plain
    assert counts["accepted_tokens"] > 30
    drafted, counts = run(
        {},
        speculation=SpeculationMode.MODEL,
        speculative_model=apprentice,
        num_speculative_tokens=5,
    )
    assert drafted == plain
    assert counts["accepted_tokens"] > 30
