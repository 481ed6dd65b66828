import json

import pytest

from builders.checkpoints import as_sentence_encoder
from ge_backend.device.files.encoder_folder import read_encoder_folder
from ge_backend.errors import ConfigError


@pytest.fixture
def folder(tmp_path):
    """A function that writes a folder's `config.json`, and what it says of its tokenizer."""

    def folder(tokenizer=None, **config):
        (tmp_path / "config.json").write_text(json.dumps(config))
        if tokenizer is not None:
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
        return tmp_path

    return folder


def test_a_plain_encoder_gives_a_vector_per_token(folder):
    """As many tokens as there are positions for, if nothing says fewer."""
    found = read_encoder_folder(folder(architectures=["BertModel"], max_position_embeddings=128))
    assert (found.output, found.pooling, found.labels) == ("token_embeddings", "", ())
    assert found.per_token
    assert found.max_length == 128


@pytest.mark.parametrize(
    ("mode", "pooling"), [("mean_tokens", "mean"), ("cls_token", "cls"), ("max_tokens", "max")]
)
def test_a_folder_of_sentence_transformers_pools_as_it_says(folder, mode, pooling):
    """To unit length where it has that module; texts are as long as it was trained on."""
    there = folder(architectures=["BertModel"], max_position_embeddings=512)
    found = read_encoder_folder(as_sentence_encoder(there, mode, max_seq_length=256))
    assert (found.output, found.pooling, found.normalised) == ("sentence_embedding", pooling, True)
    assert found.max_length == 256


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_what_is_done_to_a_text_before_its_tokens(folder, kind):
    """It is put in lower case where a folder of sentence-transformers says so."""
    there = as_sentence_encoder(folder(architectures=["BertModel"]))
    assert not read_encoder_folder(there).lower_case
    said = {"max_seq_length": 99, "do_lower_case": True}
    (there / f"sentence_{kind}_config.json").write_text(json.dumps(said))
    found = read_encoder_folder(there)
    assert (found.lower_case, found.max_length) == (True, 99)
    (there / "modules.json").unlink()
    assert not read_encoder_folder(there).lower_case


def test_newer_folders_name_the_pooling_in_one_key(folder):
    """As sentence-transformers 6 writes it."""
    there = as_sentence_encoder(folder(architectures=["BertModel"]))
    (there / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "cls"}))
    assert read_encoder_folder(there).pooling == "cls"


def test_a_classifier_gives_scores_with_the_names_of_its_labels(folder):
    """In the order of their numbers, which JSON keeps as texts."""
    labels = {str(number): f"label {number}" for number in (10, 9, 0)}
    there = folder(architectures=["BertForSequenceClassification"], id2label=labels)
    found = read_encoder_folder(there)
    assert (found.output, found.per_token) == ("scores", False)
    assert found.labels == ("label 0", "label 9", "label 10")


def test_a_classifier_of_tokens_gives_scores_for_each(folder):
    """Labels are for the host's classification of whole texts."""
    there = folder(architectures=["BertForTokenClassification"], id2label={"0": "O", "1": "NAME"})
    found = read_encoder_folder(there)
    assert (found.output, found.classifies, found.per_token) == ("token_scores", True, True)
    assert found.labels == ()


@pytest.mark.parametrize("head", ["QuestionAnswering", "MultipleChoice", "NextSentencePrediction"])
def test_a_head_that_would_be_left_out_is_refused(folder, head):
    """One that the checkpoint was only trained with is not."""
    with pytest.raises(ConfigError, match=f"BertFor{head}, whose head would be left out"):
        read_encoder_folder(folder(architectures=[f"BertFor{head}"]))
    for fine in ("BertForMaskedLM", "BertForPreTraining"):
        assert read_encoder_folder(folder(architectures=[fine])).output == "token_embeddings"


def test_positions_that_are_not_for_tokens_are_left_out(folder):
    """RoBERTa counts from two; a tokenizer without a limit says a number of 30 digits."""
    there = folder({"model_max_length": 10**30}, model_type="roberta", max_position_embeddings=514)
    assert read_encoder_folder(there).max_length == 512


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["LlamaForCausalLM"]},
        {"architectures": ["T5ForConditionalGeneration"]},
        {"model_type": "marian", "is_encoder_decoder": True},
    ],
)
def test_what_writes_text_is_refused(folder, config):
    """It is no encoder; the error names what it is."""
    with pytest.raises(ConfigError, match=r"(Llama|T5|marian).*which writes text"):
        read_encoder_folder(folder(**config))


def test_a_part_that_would_be_left_out_is_refused(folder):
    """A dense layer behind the pooling, a pooling that is not known."""
    there = as_sentence_encoder(folder(architectures=["BertModel"]), "mean_sqrt_len_tokens")
    with pytest.raises(ConfigError, match="pools by pooling_mode_mean_sqrt_len_tokens"):
        read_encoder_folder(there)
    modules = json.loads((there / "modules.json").read_text())
    modules.append({"path": "3_Dense", "type": "sentence_transformers.models.Dense"})
    (there / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ConfigError, match="Dense; expected Transformer and Pooling"):
        read_encoder_folder(there)


def test_another_folder_is_refused(tmp_path):
    """It says what was expected."""
    with pytest.raises(ConfigError, match="expected the folder of a transformers or"):
        read_encoder_folder(tmp_path)
