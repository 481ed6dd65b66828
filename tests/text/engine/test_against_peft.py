"""The engine with real decoders and adapters, token for token what peft's models generate."""

import numpy as np
import pytest
import torch

from builders import language
from builders.adapters import make_adapter, make_broken
from builders.generation import Foretelling, Serving
from ge_text.engine.settings import PreemptionMode, SpeculationMode
from ge_text.engine.shapes import rule_shapes
from ge_text.engine.warmup import prepared_shapes
from ge_text.models.adapter_folder import AdapterFolder

NAMES = ("llama", "mistral-window", "gpt2")
OUTPUT = 12
PROMPTS = [
    tuple(np.random.default_rng(n).integers(1, language.VOCABULARY, length).tolist())
    for n, length in enumerate((1, 3, 30, 7, 16, 11, 2, 45))
]
CHOSEN = ("pirate", None, "poet", "pirate", None, "poet", "poet", "pirate")


@pytest.fixture(scope="module", params=NAMES)
def checkpoint(request, tmp_path_factory):
    """A folder with two adapters, and the models with either of them and without, by name."""
    folder = tmp_path_factory.mktemp(request.param)
    base = language.make(folder, request.param)
    layers = {"target_modules": ["c_attn", "c_proj", "c_fc"]} if request.param == "gpt2" else {}
    settings = {"pirate": layers, "poet": {"r": 2, "use_rslora": True, **layers, "seed": 2}}
    adapted = {name: make_adapter(folder, name, base, **more) for name, more in settings.items()}
    return folder, {None: base, **adapted}


@pytest.fixture(scope="module")
def expected(checkpoint):
    """What peft gives for each prompt alone."""
    _, oracles = checkpoint
    return [
        language.generated(oracles[name], prompt, OUTPUT)
        for name, prompt in zip(CHOSEN, PROMPTS, strict=True)
    ]


class Adapted(Serving):
    """An engine whose requests name an adapter of the folder."""

    def __init__(self, checkpoint, *, block_size=4, blocks=200, **settings):
        model = language.opened(checkpoint[0], block_size=block_size)
        model.memory_left = lambda steps: blocks * model.cache_bytes_per_block()
        self.folder = AdapterFolder(checkpoint[0], model.products, model.dtype)
        super().__init__(model, **settings)

    def ask(self, name, prompt, adapter, **given):
        found = adapter and self.folder.find(adapter)
        self.submit(
            name, prompt, adapter=found, **{"temperature": 0, "max_tokens": OUTPUT, **given}
        )

    def ask_all(self, **given):
        for number, (prompt, adapter) in enumerate(zip(PROMPTS, CHOSEN, strict=True)):
            self.ask(str(number), prompt, adapter, **given)
        return self

    def texts(self):
        return [self.tokens(str(number)) for number in range(len(PROMPTS))]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"prefill_chunk": 5, "max_num_batched_tokens": 64, "block_size": 16},
        {"blocks": 26},
        {"blocks": 26, "preemption": PreemptionMode.SWAP, "swap_bytes": 10**8},
        {"max_num_seqs": 3, "max_num_batched_tokens": 9},
    ],
)
def test_several_adapters_and_none_in_one_batch(checkpoint, expected, settings):
    """Each text is that of its adapter alone: in chunks, in little room, in small batches."""
    served = Adapted(checkpoint, **settings)
    if "blocks" in settings:
        served.be_optimistic()
    assert served.ask_all().run().texts() == expected


def test_one_prompt_under_all_adapters(checkpoint):
    """What was computed under one adapter is nothing for another, and the same for the same."""
    _, oracles = checkpoint
    served = Adapted(checkpoint)
    for turn in range(2):
        for name in oracles:
            served.ask(f"{turn} {name}", PROMPTS[7], name)
        served.run()
    for name, oracle in oracles.items():
        wanted = language.generated(oracle, PROMPTS[7], OUTPUT)
        assert served.tokens(f"0 {name}") == served.tokens(f"1 {name}") == wanted
    assert served.engine.figures().counts["prefix_found_tokens"] == 3 * 44


def test_adapters_that_take_turns(checkpoint, expected):
    """With room for one of them each is loaded again and again, and the texts are the same."""
    served = Adapted(checkpoint)
    most = max(served.folder.find(name).nbytes for name in ("pirate", "poet"))
    served = Adapted(checkpoint, lora_bytes=most)
    assert served.ask_all().run().texts() == expected
    assert served.engine.figures().counts["adapter_evictions"] >= 1


def test_static_shapes(checkpoint, expected):
    """Padding has no adapter, and steps with one need no other shapes."""
    sizes = {"batch_buckets": "1,3", "query_buckets": "5,9", "context_buckets": "4,16"}
    served = Adapted(checkpoint, max_num_seqs=8, max_num_batched_tokens=16, **sizes)
    lists = rule_shapes(served.engine._settings, served.engine.limits.max_length, 4)
    served.engine.use(prepared_shapes(served.model, lists, served.clock))
    assert served.ask_all().run().texts() == expected
    assert served.engine.figures().counts["padded_tokens"] > 0


@pytest.mark.parametrize("told", [False, True])
def test_guesses_are_verified_under_the_adapter(checkpoint, expected, told):
    """Those of the text itself, and those of somebody who knows the text."""
    settings = {"speculation": SpeculationMode.NGRAM, "num_speculative_tokens": 4}
    served = Adapted(checkpoint, **settings)
    if told:
        outputs = {str(number): text for number, text in enumerate(expected)}
        served.engine._speculation._drafter = Foretelling(outputs)
    assert served.ask_all().run().texts() == expected
    assert served.engine.figures().counts["accepted_tokens"] > 20 or not told


def test_beams_are_those_of_the_adapted_model(checkpoint):
    """Beside beams of the plain one."""
    _, oracles = checkpoint
    served = Adapted(checkpoint, max_num_seqs=8)
    stop = language.generated(oracles["poet"], PROMPTS[3], OUTPUT)[4]
    for name in oracles:
        asked = {"beam_width": 3, "n": 2, "stop_token_ids": [stop], "temperature": 1}
        served.ask(f"{name}", PROMPTS[3], name, **asked)
    served.run()
    for name, oracle in oracles.items():
        best = language.beams(
            oracle, PROMPTS[3], OUTPUT, num_beams=3, num_return_sequences=2, eos_token_id=stop
        )
        assert [served.tokens(f"{name}", sample) for sample in range(2)] == best


SIZES = {"batch_buckets": "1,2,4", "query_buckets": "5,20", "context_buckets": "16"}


@pytest.mark.parametrize("settings", [{}, {"prefill_chunk": 5}, {"blocks": 26}, SIZES])
@pytest.mark.parametrize("n", [1, 3])
def test_an_adapter_that_is_not_numbers_fails_its_own_texts(checkpoint, expected, settings, n):
    """Not those beside, nor those that get its blocks: also where it was cancelled, or is padded."""
    folder, _ = checkpoint
    make_broken(folder, "broken", like="pirate")
    served = Adapted(checkpoint, max_num_seqs=8, max_num_batched_tokens=64, **settings)
    if settings is SIZES:
        lists = rule_shapes(served.engine._settings, served.engine.limits.max_length, 4)
        served.engine.use(prepared_shapes(served.model, lists, served.clock))
    sampled = {"n": n, "temperature": 1 if n > 1 else 0}
    for turn in range(3):
        served.ask_all()
        for number, length in enumerate((17, 45, 3)):
            served.ask(f"{turn}.{number}", PROMPTS[7][:length], "broken", **sampled)
        served.step()
        served.engine.cancel(f"{turn}.1")
        served.run()
        assert served.texts() == expected
        assert {u.id for u in served.updates if u.error} >= {f"{turn}.0", f"{turn}.2"}
        served.updates.clear()


def test_half_precision_by_log_probabilities(checkpoint):
    """In BF16 an adapter takes half the room, and scores are still those of the adapted model."""
    folder, oracles = checkpoint
    model = language.opened(folder, dtype="BF16")
    held = AdapterFolder(folder, model.products, "BF16").find("pirate")
    assert held.nbytes * 2 == AdapterFolder(folder, model.products, "FP32").find("pirate").nbytes
    served = Serving(model)
    for number, prompt in enumerate(PROMPTS):
        asked = {"temperature": 0, "max_tokens": 1, "logprobs": 0}
        served.submit(str(number), prompt, adapter=held, **asked)
    served.run()
    off = {
        name: np.mean([abs(u.logprobs[0] - score(oracles[name], u)) for u in served.updates])
        for name in ("pirate", None)
    }
    assert off["pirate"] < 0.5 < off[None]


def score(model, update):
    """Return a model's log-probability of the token that an update brings, behind its prompt."""
    with torch.inference_mode():
        logits = model(torch.tensor([PROMPTS[int(update.id)]])).logits[0, -1]
    return float(logits.log_softmax(-1)[update.tokens[0]])
