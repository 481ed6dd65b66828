import dataclasses
import json
from pathlib import Path

import pytest

from ge_backend.engines.torch.encoder_export import Exported
from ge_backend.errors import ModelError
from ge_backend.model.config.model_folder import parse_config
from ge_backend.model.files.encoder_folder import EncoderFolder
from ge_tools.model.imported import (
    encoder_config,
    ensemble_config,
    lower_cased,
    normaliser_note,
    tokenizer_config,
)

SENTENCE = EncoderFolder(
    folder=Path("x"),
    output="sentence_embedding",
    pooling="mean",
    normalised=True,
    labels=(),
    max_length=256,
)
EXPORTED = Exported(width=384, difference=0.0)


def test_the_encoder_takes_ids_of_any_length_and_the_mask_if_it_is_sent():
    """Its largest bucket is the longest text."""
    config = parse_config(encoder_config(SENTENCE, EXPORTED), "encoder")
    assert [(i.name, i.allow_ragged_batch, i.optional) for i in config.input] == [
        ("input_ids", True, False),
        ("attention_mask", True, True),
    ]
    assert [(o.name, list(o.dims)) for o in config.output] == [("sentence_embedding", [384])]
    assert config.parameters["max_length"].string_value == "256"


@pytest.mark.parametrize(
    ("changes", "dims", "labels"),
    [
        ({}, [384], ""),
        ({"output": "token_embeddings", "pooling": ""}, [-1, 384], ""),
        ({"output": "scores", "pooling": "", "labels": ("a", "b")}, [384], "labels.txt"),
    ],
)
def test_the_ensemble_has_the_outputs_of_the_encoder(changes, dims, labels):
    """A vector per token is as long as its text; a classifier's scores have names."""
    checkpoint = dataclasses.replace(SENTENCE, **changes)
    configs = (
        encoder_config(checkpoint, EXPORTED),
        ensemble_config(checkpoint, EXPORTED, "minilm"),
    )
    for config in (parse_config(text, "one") for text in configs):
        (output,) = config.output
        assert (list(output.dims), output.label_filename) == (dims, labels)
        assert config.max_batch_size == 32


def test_the_ensemble_runs_the_tokenizer_before_the_encoder():
    """Under the name that was given; long texts are cut by the tokenizer."""
    config = parse_config(ensemble_config(SENTENCE, EXPORTED, "minilm"), "ensemble")
    steps = [step.model_name for step in config.ensemble_scheduling.step]
    assert steps == ["minilm_tokenizer", "minilm_encoder"]
    tokenizer = parse_config(tokenizer_config(SENTENCE), "tokenizer")
    assert tokenizer.parameters["tokenizer.max_length"].string_value == "256"


def test_pairs_of_texts_go_the_whole_way():
    """With what tells them apart, where the encoder wants it."""
    checkpoint = dataclasses.replace(SENTENCE, output="scores", pooling="", pairs=True)
    inputs = ("input_ids", "attention_mask", "token_type_ids")
    exported = dataclasses.replace(EXPORTED, inputs=inputs)
    encoder = parse_config(encoder_config(checkpoint, exported), "encoder")
    assert [(each.name, each.optional) for each in encoder.input] == [
        ("input_ids", False),
        ("attention_mask", True),
        ("token_type_ids", True),
    ]
    ensemble = parse_config(ensemble_config(checkpoint, exported, "ranker"), "ensemble")
    assert [each.name for each in ensemble.input] == ["text", "text_pair"]
    first, second = ensemble.ensemble_scheduling.step
    assert dict(first.input_map) == {"text": "text", "text_pair": "text_pair"}
    assert set(first.output_map) == set(second.input_map) == set(inputs)


@pytest.mark.parametrize(
    ("width", "logits", "said"), [(1, False, True), (1, True, False), (3, False, False)]
)
def test_a_rankers_scores_are_logits_unless_its_folder_says_otherwise(width, logits, said):
    """Where there is one; several are a classifier's."""
    checkpoint = dataclasses.replace(
        SENTENCE, output="scores", pooling="", pairs=True, logits=logits
    )
    exported = dataclasses.replace(EXPORTED, width=width)
    ensemble = parse_config(ensemble_config(checkpoint, exported, "ranker"), "ensemble")
    values = [each.string_value for each in ensemble.parameters.values()]
    assert values == (["identity"] if said else [])


@pytest.mark.parametrize(
    ("changes", "switches"),
    [
        ({}, set()),
        ({"lower_case": True}, set()),  # in its file
        ({"pooling": ""}, set()),
        ({"pooling": "", "pairs": True}, {"tokenizer.pairs"}),
    ],
)
def test_the_tokenizer_prepares_texts_as_the_folder_says(changes, switches):
    """No white space is left out: sentence-transformers does so no more since 5.4."""
    checkpoint = dataclasses.replace(SENTENCE, **changes)
    parameters = parse_config(tokenizer_config(checkpoint), "tokenizer").parameters
    assert {key for key in parameters if parameters[key].string_value == "true"} == switches


BERT = {"type": "BertNormalizer", "lowercase": True}
LOWER, NFC = {"type": "Lowercase"}, {"type": "NFC"}


@pytest.mark.parametrize(
    ("own", "steps"),
    [
        (None, [LOWER]),
        (BERT, [LOWER, BERT]),
        ({"type": "Sequence", "normalizers": [NFC, BERT]}, [LOWER, NFC, BERT]),
        ({"type": "Sequence", "normalizers": [NFC, LOWER]}, [NFC, LOWER]),
        (LOWER, [LOWER]),
    ],
)
def test_a_tokenizer_puts_texts_in_lower_case_before_anything_else(own, steps):
    """Unless it does so already; all else of its file stays."""
    said = json.loads(lower_cased(json.dumps({"normalizer": own, "model": {"é": 1}})))
    assert said == {"normalizer": {"type": "Sequence", "normalizers": steps}, "model": {"é": 1}}


def test_a_file_that_is_cut_off_is_no_tokenizer():
    """One line says so."""
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        lower_cased('{"normalizer": nu')


def test_another_normaliser_than_the_files_is_told(tmp_path):
    """As of a cased BERT, which transformers 5 puts in lower case; else there is nothing to say."""
    own, made = tmp_path / "tokenizer.json", tmp_path / "made.json"
    own.write_text(json.dumps({"normalizer": None}))
    made.write_text(json.dumps({"normalizer": {"type": "BertNormalizer", "lowercase": True}}))
    assert '"lowercase": true}, and not as tokenizer.json, null;' in normaliser_note(own, made)
    assert normaliser_note(own, own) == ""
    assert normaliser_note(tmp_path / "none", made) == ""


def test_the_tokenizer_is_on_a_cpu():
    """Wherever GE_DEVICE says that the encoder is."""
    tokenizer = parse_config(tokenizer_config(SENTENCE), "tokenizer")
    assert tokenizer.parameters["device"].string_value == "cpu"
