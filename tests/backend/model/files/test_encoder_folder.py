import json
import math

import pytest

from builders.checkpoints import LABELS, as_sentence_encoder, write_checkpoint
from ge_backend.errors import ConfigError
from ge_backend.model.files.encoder_folder import (
    default_prompt,
    encoder_files,
    is_encoder,
    read_encoder_folder,
)


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
    ("mode", "pooling"),
    [("mean_tokens", "mean"), ("cls_token", "cls"), ("max_tokens", "max"), ("lasttoken", "last")],
)
def test_a_folder_of_sentence_transformers_pools_as_it_says(folder, mode, pooling):
    """To unit length where it has that module; texts are as long as it was trained on."""
    there = folder(architectures=["BertModel"], max_position_embeddings=512)
    found = read_encoder_folder(as_sentence_encoder(there, mode, max_seq_length=256))
    assert (found.output, found.pooling, found.normalised) == ("sentence_embedding", pooling, True)
    assert found.max_length == 256


def test_no_text_is_longer_than_there_are_positions(folder):
    """Whatever the folder says: sentence-transformers takes it at its word, and torch fails."""
    there = folder(architectures=["BertModel"], max_position_embeddings=512)
    found = read_encoder_folder(as_sentence_encoder(there, "mean_tokens", max_seq_length=1000))
    assert found.max_length == 512


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
    for mode, pooling in (("cls", "cls"), ("lasttoken", "last")):
        (there / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": mode}))
        assert read_encoder_folder(there).pooling == pooling


@pytest.mark.parametrize(
    ("file", "said", "reason"),
    [
        ("config.json", {"max_position_embeddings": "x"}, "max_position_embeddings is 'x', exp"),
        ("config.json", {"max_position_embeddings": -1}, "max_position_embeddings is -1, expected"),
        ("config.json", {"max_position_embeddings": math.nan}, "max_position_embeddings is nan, e"),
        ("config.json", {"id2label": ["a"]}, r"id2label is \['a'\], expected an object"),
        ("config.json", {"id2label": {"a": "b"}}, r"id2label is \{'a': 'b'\}, expected an object"),
        ("config.json", [1], r"cannot be read \(it holds \[1\]\); expected an object"),
        (
            "tokenizer_config.json",
            {"model_max_length": "512"},
            "model_max_length is '512', expected",
        ),
        ("tokenizer_config.json", None, r"cannot be read \(it holds None\); expected an object"),
        ("sentence_bert_config.json", {"max_seq_length": [9]}, r"max_seq_length is \[9\], expect"),
        ("sentence_bert_config.json", 7, r"cannot be read \(it holds 7\); expected an object"),
        ("1_Pooling/config.json", {"pooling_mode": 7}, "pools by 7; expected mean, cls, max"),
        ("1_Pooling/config.json", [], r"cannot be read \(it holds \[\]\); expected an object"),
        ("config_sentence_transformers.json", [1], r"cannot be read \(it holds \[1\]\); expected"),
    ],
)
def test_a_setting_of_another_kind_is_named(folder, file, said, reason):
    """With its file, what it is, and what was expected."""
    architecture = "BertForSequenceClassification" if "id2label" in str(said) else "BertModel"
    there = folder(architectures=[architecture])
    if architecture == "BertModel":
        as_sentence_encoder(there)
    base = {"architectures": [architecture]} if file == "config.json" else {}
    (there / file).write_text(json.dumps(base | said if isinstance(said, dict) else said))
    with pytest.raises(ConfigError, match=reason):
        read_encoder_folder(there)


def test_positions_that_are_null_bound_nothing(folder):
    """As some write it whose encoders have no table of them."""
    there = folder(architectures=["BertModel"], max_position_embeddings=None)
    assert read_encoder_folder(there).max_length == 512


def test_prompts_that_are_no_object_are_refused(folder):
    """By name; there is one to each name."""
    there = folder(architectures=["BertModel"])
    (there / "config_sentence_transformers.json").write_text('{"prompts": ["query: "]}')
    with pytest.raises(ConfigError, match=r"prompts is \['query: '\], expected an object"):
        default_prompt(there)


@pytest.mark.parametrize(("mode", "named"), [(["max"], ""), (["cls", "mean"], "by cls, mean;")])
def test_the_pooling_may_be_a_list(folder, mode, named):
    """As sentence-transformers 6 writes it where vectors of several poolings are put together."""
    there = as_sentence_encoder(folder(architectures=["BertModel"]))
    (there / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": mode}))
    if not named:
        assert read_encoder_folder(there).pooling == "max"
        return
    with pytest.raises(ConfigError, match=f"pools {named} expected mean, cls, max"):
        read_encoder_folder(there)


def write_modules(there, *modules):
    """Write a `modules.json` of pairs of kind and path."""
    said = [{"type": f"sentence_transformers.{kind}", "path": path} for kind, path in modules]
    (there / "modules.json").write_text(json.dumps(said))


def test_the_files_are_those_that_its_modules_name(folder):
    """Wherever the pooling lies; a file that nothing names is none of them."""
    there = as_sentence_encoder(folder(architectures=["BertModel"]))
    (there / "1_Pooling").rename(there / "pool")
    (there / "2_Pooling").mkdir()
    (there / "2_Pooling" / "config.json").write_text("{}")
    write_modules(there, ("Transformer", ""), ("Pooling", "pool"))
    assert read_encoder_folder(there).pooling == "mean"
    names = ["config.json", "modules.json", "pool/config.json"]
    assert [str(file.relative_to(there)) for file in encoder_files(there)] == names


@pytest.mark.parametrize("outside", ["../pool", "1_Pooling/../../pool", "/"])
def test_a_module_outside_the_folder_is_refused(folder, outside):
    """Its files would be copied to a place outside the model's folder, too."""
    there = as_sentence_encoder(folder(architectures=["BertModel"]))
    write_modules(there, ("Transformer", ""), ("Pooling", outside))
    with pytest.raises(ConfigError, match=rf"modules\.json names {outside}, .* outside"):
        read_encoder_folder(there)
    assert [file.name for file in encoder_files(there)] == ["config.json", "modules.json"]


@pytest.mark.parametrize("said", ["[1]", '[{"path": ""}]', '{"path": ""}', "nothing"])
def test_modules_that_cannot_be_read_are_refused(folder, said):
    """By what reads the folder; its files are what they are, and so is whether they changed."""
    there = folder(architectures=["BertModel"])
    (there / "modules.json").write_text(said)
    assert [file.name for file in encoder_files(there)] == ["config.json", "modules.json"]
    with pytest.raises(ConfigError, match=r"modules\.json cannot be read"):
        read_encoder_folder(there)


def test_a_transformer_in_a_folder_of_its_own_is_refused(folder):
    """As sentence-transformers 0 saved it."""
    there = as_sentence_encoder(folder(architectures=["BertModel"]))
    write_modules(there, ("Transformer", "0_BERT"), ("Pooling", "1_Pooling"))
    with pytest.raises(ConfigError, match=r"Transformer lies in .*0_BERT"):
        read_encoder_folder(there)


@pytest.mark.parametrize("kind", ["StaticEmbedding", "Router"])
def test_a_folder_without_a_transformer_is_refused_by_its_modules(folder, kind):
    """They are named, not the config.json that such a folder does not have."""
    there = folder()
    (there / "config.json").unlink()
    write_modules(there, (kind, ""))
    with pytest.raises(ConfigError, match=f"has the modules {kind}; expected Transformer and"):
        read_encoder_folder(there)


@pytest.mark.parametrize("lower_case", [False, True])
def test_a_ranker_of_sentence_transformers_is_a_classifier(folder, lower_case):
    """Since 6 it is saved with a `modules.json`, of one module; an encoder so lacks its pooling."""
    labels = {"0": "LABEL_0"}
    there = folder(architectures=["BertForSequenceClassification"], id2label=labels)
    write_modules(there, ("base.modules.transformer.Transformer", ""))
    said = {"transformer_task": "sequence-classification", "do_lower_case": lower_case}
    (there / "sentence_bert_config.json").write_text(json.dumps(said))
    found = read_encoder_folder(there)
    assert (found.output, found.pooling, found.labels) == ("scores", "", ("LABEL_0",))
    assert found.lower_case is lower_case
    folder(architectures=["BertModel"])
    with pytest.raises(ConfigError, match="has the modules Transformer; expected Transformer and"):
        read_encoder_folder(there)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_a_ranker_is_read_as_it_is_saved(tmp_path, monkeypatch):
    """By the release of sentence-transformers that is installed."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    theirs = pytest.importorskip("sentence_transformers", minversion="5.4")
    torch = pytest.importorskip("torch")
    whole = str(write_checkpoint(tmp_path, classifier=True))
    for activation in (torch.nn.Sigmoid(), torch.nn.Identity()):
        model = theirs.CrossEncoder(whole, device="cpu", activation_fn=activation)
        model.save_pretrained(str(tmp_path / "saved"))
        found = read_encoder_folder(tmp_path / "saved")
        assert (found.output, found.labels) == ("scores", LABELS)
        assert found.logits is isinstance(activation, torch.nn.Sigmoid)


@pytest.mark.parametrize(
    ("said", "logits"),
    [
        ({}, True),
        ({"sentence_transformers": None}, True),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, True),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, False),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, False),
    ],
)
def test_a_rankers_scores_go_through_a_sigmoid_unless_its_folder_names_another(
    folder, said, logits
):
    """By both names that sentence-transformers has had for it in config.json."""
    there = folder(architectures=["BertForSequenceClassification"], **said)
    assert read_encoder_folder(there).logits is logits


@pytest.mark.parametrize(("named", "logits"), [("Sigmoid", True), ("Identity", False)])
def test_what_a_rankers_scores_go_through_is_in_a_file_of_its_own(folder, named, logits):
    """That file goes before config.json, as in sentence-transformers."""
    older = {"activation_fn": f"torch.nn.{'Identity' if logits else 'Sigmoid'}"}
    there = folder(architectures=["BertForSequenceClassification"], sentence_transformers=older)
    said = {"activation_fn": f"torch.nn.modules.activation.{named}"}
    (there / "config_sentence_transformers.json").write_text(json.dumps(said))
    assert read_encoder_folder(there).logits is logits


def test_a_classifier_without_names_has_no_labels(folder):
    """Its scores are what they are."""
    there = folder(architectures=["BertForSequenceClassification"], id2label=None)
    assert (read_encoder_folder(there).output, read_encoder_folder(there).labels) == ("scores", ())


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


@pytest.mark.parametrize(
    "name",
    ["BertForQuestionAnswering", "HF_ColBERT", "CLIPTextModelWithProjection", "DPRReader"],
)
def test_a_head_that_would_be_left_out_is_refused(folder, name):
    """One that the checkpoint was only trained with is not."""
    with pytest.raises(ConfigError, match=f"{name}, whose head would be left out; expected a name"):
        read_encoder_folder(folder(architectures=[name]))
    for fine in ("BertModel", "DPRContextEncoder", "BertForMaskedLM", "BertForPreTraining"):
        assert read_encoder_folder(folder(architectures=[fine])).output == "token_embeddings"


def test_half_of_a_model_with_a_decoder_is_refused(folder):
    """It would be read as the whole one, whose decoder is not there."""
    with pytest.raises(ConfigError, match=r"T5EncoderModel.*serve it as a model\.onnx"):
        read_encoder_folder(folder(architectures=["T5EncoderModel"]))


def test_a_prompt_that_does_not_count_is_refused(folder):
    """What of a text is a prompt no client says; where all of it counts nothing is lost."""
    there = as_sentence_encoder(folder(architectures=["BertModel"]))
    file = there / "1_Pooling" / "config.json"
    said = json.loads(file.read_text())
    file.write_text(json.dumps({**said, "include_prompt": True}))
    assert read_encoder_folder(there).pooling == "mean"
    file.write_text(json.dumps({**said, "include_prompt": False}))
    with pytest.raises(
        ConfigError, match=r"1_Pooling/config\.json leaves .* include_prompt to true"
    ):
        read_encoder_folder(there)


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


def test_a_decoder_whose_states_are_pooled_writes_no_text(folder):
    """Its body is saved under the name of the whole; without pooling, or unreadable, it writes."""
    there = folder(architectures=["Qwen3ForCausalLM"], model_type="qwen3")
    assert not is_encoder(there)
    write_modules(there, ("Transformer", ""))
    assert not is_encoder(there)
    (there / "modules.json").write_text("nothing")
    assert not is_encoder(there)
    as_sentence_encoder(there, "lasttoken")
    assert is_encoder(there)
    found = read_encoder_folder(there)
    assert (found.output, found.pooling, found.normalised) == ("sentence_embedding", "last", True)


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


def test_embeddings_that_would_not_be_cut_are_refused(folder):
    """As sentence-transformers cuts them by default, where the folder says so."""
    there = as_sentence_encoder(folder(architectures=["BertModel"]))
    file = there / "config_sentence_transformers.json"
    file.write_text('{"truncate_dim": 4}')
    with pytest.raises(ConfigError, match=r"to 4 numbers, .* set truncate_dim to null"):
        read_encoder_folder(there)
    file.write_text('{"truncate_dim": null}')
    assert read_encoder_folder(there).pooling == "mean"


def test_another_folder_is_refused(tmp_path):
    """It says what was expected."""
    with pytest.raises(ConfigError, match="expected the folder of a transformers or"):
        read_encoder_folder(tmp_path)
