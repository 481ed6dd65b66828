"""Text over keys and values of eight bits on the real server, with all that steps share or skip."""

import pytest
import tritonclient.grpc as grpcclient

from builders.adapters import make_adapter
from builders.graphs import parameters
from builders.metrics import metric
from builders.near_ties import TIE, gap
from builders.null_models import comes_true
from builders.text_stream import GREEDY, TextStream
from builders.writer import PROMPTS, make_writer

pytest.importorskip("openvino")

NARROW = {"kv_cache_dtype": "int8"}
MODELS = {
    "wide": {},
    "alone": {**NARROW, "prefix_cache": "off", "max_num_seqs": "1"},
    "writer": NARROW,
    "guesser": {**NARROW, "speculation": "ngram", "num_speculative_tokens": "5"},
}
LONG = " ".join(PROMPTS) * 2


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    """Return the checkpoint that all models have."""
    folder = tmp_path_factory.mktemp("models") / "wide" / "1"
    folder.mkdir(parents=True)
    return make_writer(folder, positions=4096, head_dim=64)


@pytest.fixture(scope="module")
def server(triton_server, writer):
    """One checkpoint under several names."""
    models = writer.folder.parent.parent
    for name, settings in MODELS.items():
        (models / name).mkdir(exist_ok=True)
        (models / name / "config.pbtxt").write_text('backend: "ge"\n' + parameters(**settings))
        if name != "wide":
            (models / name / "1").symlink_to(writer.folder)
    make_adapter(writer.folder, "pirate", writer.model)
    return triton_server(models)


def answers(server, model, prompts=PROMPTS, **sampling):
    """Return the tokens that come for each prompt, all asked for at once."""
    with grpcclient.InferenceServerClient(server.grpc) as connected:
        client = TextStream(connected)
        for prompt in prompts:
            client.ask(
                model=model,
                text_input=prompt,
                exclude_input_in_output=[True],
                sampling={**GREEDY, **sampling},
                outputs=("output_ids",),
            )
        responses = client.wait()
    return [responses[number][0]["output_ids"] for number in range(len(prompts))]


@pytest.mark.parametrize("model", ["writer", "guesser"])
@pytest.mark.parametrize("sampling", [{}, {"lora_name": "pirate"}])
def test_texts_are_the_same_alone_together_and_guessed(server, writer, model, sampling):
    """Each token's keys have a scale of their own; an adapter's steps read the same cache."""
    prompts = (*PROMPTS, LONG)
    alone = answers(server, "alone", prompts, **sampling)
    for _ in range(2):  # once more with the beginnings that are known
        found = answers(server, model, prompts, **sampling)
        for prompt, *pair in zip(prompts, found, alone, strict=True):
            assert gap(server, "alone", writer.encode(prompt), *pair, sampling) < TIE


def test_beginnings_were_found_and_guesses_kept(server):
    """As in a wide cache; without either the test above says less."""
    for model, name in (("writer", "prefix_found"), ("guesser", "accepted")):
        of = f"ge_text_{name}_tokens_total"
        assert comes_true(lambda of=of, model=model: metric(server, of, model=model) > 0), of


def test_scores_are_those_of_a_wide_cache_but_for_rounding(server, writer):
    """Where texts part, the wide one's model finds both likely; it is a random one, and sure of all."""
    for prompt, *pair in zip(
        PROMPTS, answers(server, "alone"), answers(server, "wide"), strict=True
    ):
        assert gap(server, "wide", writer.encode(prompt), *pair, {}) < 4 * TIE
