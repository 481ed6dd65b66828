"""Models that the API can serve."""

import pytest

from ge_openai.models import Ability, Describer, ServedModel, describer, read_model, reader


def block(name, kind, *dims):
    return {"name": name, "data_type": kind, "dims": list(map(str, dims))}


def config(inputs, outputs, rows=16):
    return {"name": "m", "input": inputs, "output": outputs, "max_batch_size": rows}


TEXT = block("text", "TYPE_STRING", 1)
VECTOR = block("embedding", "TYPE_FP32", 96)


def test_a_language_model_has_the_tensors_of_the_vllm_backend():
    """Further ones do not matter."""
    names = ("text_input", "stream", "sampling_parameters", "input_ids")
    inputs = [block(name, "TYPE_STRING", 1) for name in names]
    outputs = [block("text_output", "TYPE_STRING", -1), VECTOR]
    assert read_model(config(inputs, outputs)) == ServedModel(name="m", ability=Ability.TEXT)
    assert read_model(config(inputs[:2], outputs)) is None


def test_a_language_model_of_this_project_describes_itself():
    """Which one of Triton's vLLM backend does not."""
    names = ("text_input", "stream", "sampling_parameters", "description")
    inputs = [block(name, "TYPE_STRING", 1) for name in names]
    outputs = [block("text_output", "TYPE_STRING", -1)]
    assert read_model(config(inputs, outputs)).own
    assert not read_model(config(inputs[:3], outputs)).own


def test_text_in_and_a_vector_out_is_an_embedding_model():
    """With the rows and the size that it takes and gives."""
    assert read_model(config([TEXT], [VECTOR])) == ServedModel(
        name="m", ability=Ability.EMBEDDING, rows=16, input="text", output="embedding", size=96
    )
    rowless = config([block("text", "TYPE_STRING", -1, 1)], [block("e", "TYPE_FP32", -1, 8)], 0)
    assert (read_model(rowless).rows, read_model(rowless).size) == (0, 8)


@pytest.mark.parametrize("names", [("q", "d"), ("text_pair", "text")])
def test_two_texts_in_and_a_score_out_is_a_ranker(names):
    """The query is the one that is declared first, unless that is called `text_pair`."""
    inputs = [block(name, "TYPE_STRING", 1) for name in names]
    asked = config(inputs, [block("scores", "TYPE_FP32", 1)])
    query, document = sorted(names, key="text_pair".__eq__)
    ranker = ServedModel(
        name="m",
        ability=Ability.RANKING,
        rows=16,
        input=query,
        pair=document,
        output="scores",
        size=1,
    )
    assert read_model(asked) == ranker
    said = {"score_activation": {"string_value": "identity"}}
    assert not read_model({**asked, "parameters": said}).logits


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ([TEXT, block("b", "TYPE_STRING", 1)], [VECTOR]),
        ([block("ids", "TYPE_INT64", -1)], [VECTOR]),
        ([TEXT, block("b", "TYPE_STRING", 1)], [block("labels", "TYPE_FP32", 3)]),
        ([TEXT, block("b", "TYPE_STRING", 1), TEXT | {"name": "c"}], [block("s", "TYPE_FP32", 1)]),
        ([TEXT], [block("score", "TYPE_FP32", 1)]),
        ([TEXT], [block("hidden", "TYPE_FP32", -1, 96)]),
        ([TEXT], [block("ids", "TYPE_INT64", -1)]),
        ([TEXT], []),
    ],
)
def test_other_models_are_none(inputs, outputs):
    """They are served by the server alone."""
    assert read_model(config(inputs, outputs)) is None


ASKS = block("description", "TYPE_STRING", 1) | {"optional": True}
SAYS = block("description", "TYPE_STRING", 1)


def test_what_describes_a_model_is_none_of_its_texts():
    """One that has to be sent is a text like any other."""
    plain = read_model(config([TEXT], [VECTOR]))
    assert read_model(config([TEXT, ASKS], [VECTOR, SAYS])) == plain
    score = [block("scores", "TYPE_FP32", 1), SAYS]
    assert read_model(config([TEXT, SAYS], score)).pair == "description"


def test_a_model_that_tokenizes_is_asked_with_its_texts():
    """In its own form; others are not asked."""
    given = config([TEXT, block("text_pair", "TYPE_STRING", 1), ASKS], [VECTOR, SAYS])
    truth = Describer(name="m", texts=("text", "text_pair"), batched=True)
    assert describer(given) == truth
    assert not describer({**given, "max_batch_size": 0}).batched
    for inputs, outputs in (([TEXT], [SAYS]), ([TEXT, SAYS], [SAYS]), ([TEXT, ASKS], [VECTOR])):
        assert describer(config(inputs, outputs)) is None


def test_the_step_that_reads_a_tensor_is_found_by_its_map():
    """With the name that it has there."""
    steps = [
        {"model_name": "encoder", "input_map": {"i": "ids"}},
        {"model_name": "split", "input_map": {"text": "words"}},
    ]
    ensemble = {"name": "m", "ensemble_scheduling": {"step": steps}}
    assert reader(ensemble, "words") == ("split", "text")
    assert reader(ensemble, "others") == ("", "")
    assert reader(config([TEXT], [VECTOR]), "text") == ("", "")
