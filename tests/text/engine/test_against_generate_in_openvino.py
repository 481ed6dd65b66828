"""The engine on OpenVINO's steps: blocks of 32 tokens, and the tokens of transformers' `generate`."""

import numpy as np
import pytest

from builders import language
from builders.adapters import make_adapter, make_broken
from builders.generation import Foretelling, Serving
from ge_backend.errors import GraphFailed
from ge_text.engine.settings import PreemptionMode, SpeculationMode
from ge_text.models.adapter_folder import AdapterFolder

OUTPUT = 34
PROMPTS = [
    tuple(np.random.default_rng(n).integers(1, language.VOCABULARY, length).tolist())
    for n, length in enumerate((1, 31, 70, 32, 33, 11, 2, 90))
]


@pytest.fixture(scope="module", params=("llama", "mistral-window"))
def checkpoint(request, tmp_path_factory):
    """A folder, and transformers' model of it."""
    folder = tmp_path_factory.mktemp(request.param)
    return folder, language.make(folder, request.param)


@pytest.fixture(scope="module")
def expected(checkpoint):
    """What `generate` gives for each prompt alone."""
    _, oracle = checkpoint
    return [language.generated(oracle, prompt, OUTPUT) for prompt in PROMPTS]


def serving(checkpoint, *, blocks=40, **settings):
    model = language.in_openvino(checkpoint[0])
    model.memory_left = lambda steps: blocks * model.cache_bytes_per_block()
    return Serving(model, **{"max_num_batched_tokens": 64, **settings})


def submit(served, prompts=PROMPTS, **parameters):
    for number, prompt in enumerate(prompts):
        served.submit(str(number), prompt, **{"temperature": 0, "max_tokens": OUTPUT, **parameters})


def outputs(served):
    return [served.tokens(str(number)) for number in range(len(PROMPTS))]


@pytest.mark.parametrize("chunk", [0, 1, 7, 33])
def test_prompts_of_all_lengths_at_once(checkpoint, expected, chunk):
    """Whatever the chunk, every text is what it is alone."""
    served = serving(checkpoint, prefill_chunk=chunk)
    submit(served)
    assert outputs(served.run()) == expected


@pytest.mark.parametrize("mode", [PreemptionMode.RECOMPUTE, PreemptionMode.SWAP])
def test_sequences_that_have_to_make_room(checkpoint, expected, mode):
    """Computed again or copied out and in again: the same keys, the same tokens."""
    served = serving(checkpoint, blocks=9, preemption=mode, swap_bytes=10**8).be_optimistic()
    submit(served)
    assert outputs(served.run()) == expected
    counts = served.engine.figures().counts
    assert counts["swapped_in" if mode is PreemptionMode.SWAP else "recomputed"] > 0


def test_beginnings_that_were_computed_before(checkpoint):
    """Keys that another text left give the tokens that keys of its own would give."""
    _, oracle = checkpoint
    prompts = [PROMPTS[7][: 80 - 2 * n] + PROMPTS[n] for n in (0, 5, 6)]
    served = serving(checkpoint)
    for number, prompt in enumerate(prompts):
        served.submit(str(number), prompt, temperature=0, max_tokens=OUTPUT)
        served.run()
    for number, prompt in enumerate(prompts):
        assert served.tokens(str(number)) == language.generated(oracle, prompt, OUTPUT)
    assert served.engine.figures().counts["prefix_found_tokens"] >= 2 * 32


@pytest.mark.parametrize("steps", [1, 9])
def test_torch_goes_on_where_it_ended(checkpoint, expected, steps):
    """Prompt and tokens so far are enough, whoever drew them."""
    first = serving(checkpoint)
    submit(first)
    for _ in range(steps):
        first.step()
    second = Serving(language.opened(checkpoint[0]))
    for number, prompt in enumerate(PROMPTS):
        if not first.ends(str(number)):
            so_far = (tuple(first.tokens(str(number))),)
            second.submit(str(number), prompt, generated=so_far, temperature=0, max_tokens=OUTPUT)
    second.run()
    joined = [a + b for a, b in zip(outputs(first), outputs(second), strict=True)]
    assert joined == expected


def test_random_texts_depend_on_seed_and_position_alone(checkpoint):
    """Alone or beside others, in OpenVINO or in torch: a seed has one text."""
    parameters = {"temperature": 0.9, "top_k": 20, "top_p": 0.95, "seed": 7}
    found = []
    for served in (
        serving(checkpoint),
        serving(checkpoint, max_num_seqs=1),
        Serving(language.opened(checkpoint[0])),
    ):
        submit(served, **parameters)
        found.append(outputs(served.run()))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("length", [0, 1, 6])
def test_verified_guesses_change_nothing(checkpoint, expected, length):
    """Several tokens of a text at once, each with its score."""
    served = serving(checkpoint, speculation=SpeculationMode.NGRAM, num_speculative_tokens=length)
    told = {str(number): output for number, output in enumerate(expected)}
    served.engine._speculation._drafter = Foretelling(told)
    submit(served)
    assert outputs(served.run()) == expected
    counts = served.engine.figures().counts
    assert counts["accepted_tokens"] > 20 or not length


def test_beams_are_generates(checkpoint):
    """Blocks that beams share are copied before one of them writes."""
    _, oracle = checkpoint
    served = serving(checkpoint, max_num_seqs=8)
    submit(served, PROMPTS[:4], beam_width=3, n=2)
    served.run()
    for number, prompt in enumerate(PROMPTS[:4]):
        best = language.beams(
            oracle, prompt, OUTPUT, num_beams=3, num_return_sequences=2, eos_token_id=None
        )
        assert [served.tokens(str(number), sample) for sample in range(2)] == best
    assert served.engine.figures().counts["copied_blocks"] > 0


def test_an_adapter_that_is_not_numbers_leaves_none_of_it_to_others(checkpoint, expected):
    """Blocks that it had are OpenVINO's next, which multiplies what it masks."""
    folder, oracle = checkpoint
    make_adapter(folder, "pirate", oracle)
    make_broken(folder, "broken", like="pirate")
    served = serving(checkpoint)
    broken = AdapterFolder(folder, served.model.products, served.model.dtype).find("broken")
    served.submit("broken", PROMPTS[7], adapter=broken)
    served.run()
    assert isinstance(served.error("broken"), GraphFailed)
    submit(served)
    assert outputs(served.run()) == expected


CHOSEN = ("pirate", None, "poet", "broken", "pirate", None, "poet", "poet")


def test_several_adapters_and_none_in_one_batch(checkpoint, expected):
    """Each text is that of its adapter alone; one that is not numbers fails its own text."""
    folder, base = checkpoint
    other = {"r": 2, "use_rslora": True, "target_modules": ["k_proj", "down_proj"], "seed": 2}
    oracles = {
        "pirate": make_adapter(folder, "pirate", base),
        "poet": make_adapter(folder, "poet", base, **other),
    }
    make_broken(folder, "broken", like="pirate")
    served = serving(checkpoint)
    adapters = AdapterFolder(folder, served.model.products, served.model.dtype)
    for number, (name, prompt) in enumerate(zip(CHOSEN, PROMPTS, strict=True)):
        found = name and adapters.find(name)
        served.submit(str(number), prompt, adapter=found, temperature=0, max_tokens=OUTPUT)
    served.run()
    for number, (name, prompt) in enumerate(zip(CHOSEN, PROMPTS, strict=True)):
        if name == "broken":
            assert isinstance(served.error(str(number)), GraphFailed)
            continue
        wanted = language.generated(oracles[name], prompt, OUTPUT) if name else expected[number]
        assert served.tokens(str(number)) == wanted
