"""Text in weights of eight bits on the real server, with all that steps share or skip."""

import pytest
import tritonclient.grpc as grpcclient

from builders.adapters import make_adapter
from builders.graphs import parameters
from builders.language import make
from builders.metrics import metric
from builders.near_ties import TIE, gap
from builders.null_models import comes_true
from builders.structures import Wanted
from builders.text_stream import GREEDY, TextStream
from builders.writer import PROMPTS, make_writer, write_apprentice

pytest.importorskip("openvino")

from ge_backend.engines.ov.arithmetic import has_int8

pytestmark = pytest.mark.skipif(not has_int8(), reason="text of eight bits is refused here")

# Random weights are worse off with eight bits than trained ones.
INT8 = {"precision": "int8", "assume": "precision"}
GUESSING = {"num_speculative_tokens": "5"}
MODELS = {
    "half": {"precision": "bf16"},
    "alone": {**INT8, "prefix_cache": "off", "max_num_seqs": "1"},
    "writer": INT8,
    "guesser": {**INT8, **GUESSING, "speculation": "ngram"},
    "apprentice": {
        **INT8,
        **GUESSING,
        "speculation": "model",
        "speculative_model": "draft",
    },
}
GUESSERS = ("guesser", "apprentice")
TO_ITS_END = {"ignore_eos": False, "max_tokens": 100}
STRUCTURES = (
    Wanted("guided_json", {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}),
    Wanted("guided_regex", "[0-9]{3}-[A-Z]?"),
    Wanted("guided_choice", ["yes", "no", "I do not know"]),
)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return the folder of the models."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def writer(models):
    """Return the checkpoint that all but one of the models have."""
    (models / "half" / "1").mkdir(parents=True)
    return make_writer(models / "half" / "1", positions=4096)


@pytest.fixture(scope="module")
def server(triton_server, models, writer):
    """One checkpoint under several names, and one that loses too much."""
    for name, settings in MODELS.items():
        (models / name).mkdir(exist_ok=True)
        (models / name / "config.pbtxt").write_text('backend: "ge"\n' + parameters(**settings))
        if name != "half":
            (models / name / "1").symlink_to(models / "half" / "1")
    make_adapter(writer.folder, "pirate", writer.model)
    write_apprentice(writer.model, models / "apprentice" / "draft")
    (models / "far" / "1").mkdir(parents=True)
    make(models / "far" / "1", "llama", hidden_size=64, intermediate_size=96)
    (models / "far" / "config.pbtxt").write_text('backend: "ge"\n' + parameters(precision="int8"))
    return triton_server(models)


def answers(server, asked, output="output_ids"):
    """Return what comes for each (model, prompt, sampling), all asked for at once."""
    with grpcclient.InferenceServerClient(server.grpc) as connected:
        client = TextStream(connected)
        for model, prompt, sampling in asked:
            client.ask(
                model=model,
                text_input=prompt,
                exclude_input_in_output=[True],
                sampling={**GREEDY, **sampling},
                outputs=(output,),
            )
        responses = client.wait()
    return [responses[number][0][output] for number in range(len(asked))]


@pytest.fixture
def gaps(server, writer):
    """Return a function: how far two texts per prompt are apart where they part, in a model's eyes."""

    def gaps_of(model, found, expected, prompts=PROMPTS, sampling=None):
        return [
            gap(server, model, writer.encode(prompt), *pair, sampling or {})
            for prompt, *pair in zip(prompts, found, expected, strict=True)
        ]

    return gaps_of


def test_texts_are_the_same_alone_together_and_guessed(server, gaps):
    """Whatever runs in the same step, and however many tokens of a text are verified at once."""
    alone = answers(server, [("alone", prompt, {}) for prompt in PROMPTS])
    half = answers(server, [("half", prompt, {}) for prompt in PROMPTS])
    assert max(gaps("alone", half, alone)) > TIE
    for model in ("writer", *GUESSERS):
        found = answers(server, [(model, prompt, {}) for prompt in PROMPTS])
        assert max(gaps("alone", found, alone)) < TIE
    for model in GUESSERS:
        told = {"guided_regex": "(abc ){20}", **TO_ITS_END}
        assert answers(server, [(model, "a", told)]) == answers(server, [("alone", "a", told)])
        assert comes_true(
            lambda m=model: metric(server, "ge_text_accepted_tokens_total", model=m) > 40
        )


def test_a_prefix_that_is_kept_gives_the_same_text(server, gaps):
    """Its keys were computed by steps of other shapes."""
    long = " ".join(PROMPTS) * 2
    (first,) = answers(server, [("writer", long, {})])
    found = answers(server, [("writer", long, {}), ("alone", long, {})])
    assert max(gaps("alone", found, [first, first], [long, long])) < TIE
    assert comes_true(
        lambda: metric(server, "ge_text_prefix_found_tokens_total", model="writer") >= 32
    )


def test_answers_keep_to_their_structures(server):
    """As they do in any precision."""
    asked = [
        ("writer", PROMPTS[0], {wanted.name: wanted.value, **TO_ITS_END}) for wanted in STRUCTURES
    ]
    texts = answers(server, asked, "text_output")
    assert all(
        wanted.keeps(text.decode()) for wanted, (text,) in zip(STRUCTURES, texts, strict=True)
    )


def test_texts_with_adapters_are_in_eight_bits_too(server, gaps):
    """Alone or beside others, and those without one are what they are without it."""
    adapted = {"lora_name": "pirate"}
    before = answers(server, [("writer", prompt, {}) for prompt in PROMPTS])
    mixed = [
        each for prompt in PROMPTS for each in (("writer", prompt, adapted), ("writer", prompt, {}))
    ]
    together = answers(server, mixed)
    found, beside = together[::2], together[1::2]
    alone = answers(server, [("alone", prompt, adapted) for prompt in PROMPTS])
    half = answers(server, [("half", prompt, adapted) for prompt in PROMPTS])
    assert max(gaps("alone", found, alone, sampling=adapted)) < TIE
    assert max(gaps("half", alone, half, sampling=adapted)) > TIE
    assert max(gaps("writer", found, before, sampling=adapted)) > TIE
    assert max(gaps("writer", beside, before)) < TIE
    assert comes_true(lambda: metric(server, "ge_text_adapted_steps_total", model="writer"))


def test_a_model_that_loses_too_much_is_served_in_the_next_precision(server):
    """The log has the figure, and the parameter that keeps the one that was asked for."""
    with grpcclient.InferenceServerClient(server.grpc) as connected:
        client = TextStream(connected)
        sampling = {"max_tokens": 3, "ignore_eos": True}
        client.ask(model="far", input_ids=[3, 4, 5], sampling=sampling, outputs=("output_ids",))
        ((tensors,),) = client.wait().values()
    assert len(tensors["output_ids"]) == 3
    log = server.log_tail(2000)
    assert "precision 'int8' is too far from BF16: KL 0." in log
    assert "the parameter 'assume: precision' keeps it" in log
