import json
from pathlib import Path

import numpy as np
import pytest

from builders.checkpoints import LENGTH, as_sentence_encoder, write_checkpoint, write_words
from ge_backend.device.base import GraphSource
from ge_backend.device.machine.threads import Cores
from ge_backend.engines.preprocess.tokenizer import TokenizerGraph
from ge_backend.engines.torch.encoder_export import Exported
from ge_backend.errors import ModelError
from ge_backend.model.config.model_folder import read_document
from ge_tools import importing


@pytest.fixture
def folder(tmp_path):
    """A folder of sentence-transformers without weights."""
    there = tmp_path / "all-Mini LM"
    there.mkdir()
    (there / "config.json").write_text('{"architectures": ["BertModel"]}')
    write_words(there)
    return as_sentence_encoder(there)


def test_a_folder_that_is_not_there_is_not_fetched(tmp_path, ge_backend):
    """A name on the Hub is none; the command that fetches it is told."""
    code, _, err = ge_backend("import", tmp_path / "all-MiniLM-L6-v2")
    assert code == 2
    assert (
        "all-MiniLM-L6-v2 is not a folder; nothing is downloaded: get it first, such as with hf"
        in err
    )
    assert "download OWNER/all-MiniLM-L6-v2 --local-dir all-MiniLM-L6-v2" in err


@pytest.fixture
def exporting(monkeypatch):
    """What the export writes, without a model; an error where one is set."""
    pytest.importorskip("transformers")  # makes the tokenizer
    state = {"error": None}

    def export(checkpoint, path):
        path.write_text(checkpoint.output)
        if state["error"] is not None:
            raise state["error"]
        return Exported(width=16, difference=3e-7)

    monkeypatch.setattr(importing, "export_onnx", export)
    return state


def test_three_models_are_written_and_named(folder, exporting, ge_backend, tmp_path):
    """The ensemble has the name of the folder, as a model may be called."""
    code, out, _ = ge_backend("import", folder, "--into", tmp_path / "models")

    assert code == 0
    first, second = out.splitlines()
    assert first.startswith("all_Mini_LM: texts in, sentence_embedding out; its steps are ")
    assert first.endswith(" all_Mini_LM_tokenizer and all_Mini_LM_encoder")
    assert second == "largest difference from transformers: 3.0e-07"
    written = {str(p.relative_to(tmp_path / "models")) for p in (tmp_path / "models").rglob("*")}
    assert {f"all_Mini_LM{end}/config.pbtxt" for end in ("", "_encoder", "_tokenizer")} <= written
    assert {"all_Mini_LM_encoder/1/model.onnx", "all_Mini_LM/1"} <= written
    assert not [path for path in written if path.startswith(".")]


def test_nothing_is_left_of_what_cannot_be_exported(folder, exporting, ge_backend, tmp_path):
    """A server that polls the repository sees whole models only."""
    exporting["error"] = ModelError("it differs")
    code, _, err = ge_backend("import", folder, "--into", tmp_path / "models")
    assert code == 2
    assert "it differs" in err
    assert list((tmp_path / "models").iterdir()) == []


def test_a_draft_is_not_in_the_repository(folder, exporting, ge_backend, tmp_path, monkeypatch):
    """A server takes each folder there for a model, also one that a killed import has left."""
    seen = []
    export = importing.export_onnx

    def look(checkpoint, path):
        seen.append([one.name for one in (tmp_path / "models").iterdir()])
        return export(checkpoint, path)

    monkeypatch.setattr(importing, "export_onnx", look)
    assert ge_backend("import", folder, "--into", tmp_path / "models")[0] == 0
    assert seen == [[]]
    assert {one.name for one in tmp_path.iterdir()} == {folder.name, "models"}


def test_a_draft_is_in_a_repository_that_stands_alone(
    folder, exporting, ge_backend, tmp_path, monkeypatch
):
    """As one that is mounted: nothing can be written beside it, or moved from there."""
    monkeypatch.setattr(importing.os, "access", lambda *_: False)
    assert ge_backend("import", folder, "--into", tmp_path / "models")[0] == 0
    names = {one.name for one in (tmp_path / "models").iterdir()}
    assert names == {f"all_Mini_LM{end}" for end in ("", "_encoder", "_tokenizer")}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("lower_case", [False, True])
def test_texts_have_the_tokens_of_sentence_transformers(
    exporting, ge_backend, tmp_path, monkeypatch, lower_case
):
    """White space and capitals count as they do there; special tokens in a text are kept."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("sentence_transformers", minversion="5.4")
    import transformers

    folder = write_checkpoint(tmp_path / "weather")
    as_sentence_encoder(folder, max_seq_length=LENGTH, do_lower_case=lower_case)
    write_words(folder, exact=True)
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "sep_token": "[SEP]"}
    file = str(folder / "tokenizer.json")
    transformers.PreTrainedTokenizerFast(tokenizer_file=file, **special).save_pretrained(folder)
    same_tokens(
        ge_backend,
        folder,
        ("rain snow", " rain", "rain ", "Rain SNOW", "rain [SEP] snow", " \tRAIN\n"),
    )


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "said",
    [{"truncation_side": "left"}, {"do_lower_case": False}, {"tokenize_chinese_chars": False}],
)
def test_the_configuration_of_a_tokenizer_goes_before_its_file(
    exporting, ge_backend, tmp_path, monkeypatch, said
):
    """As it does in transformers and sentence-transformers."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("sentence_transformers", minversion="5.4")
    folder = as_sentence_encoder(write_checkpoint(tmp_path / "weather"), max_seq_length=LENGTH)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | said))
    same_tokens(ge_backend, folder, ("Rain snow", "rain " * LENGTH + "goal", "\u4e2d\u6587 rain"))


def same_tokens(ge_backend, folder, texts):
    """Import a folder, and compare the tokens of texts with those of sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    models = folder.parent / "models"
    assert ge_backend("import", folder, "--into", models)[0] == 0
    path = models / f"{folder.name}_tokenizer" / "1" / "tokenizer.json"
    document = read_document(path.parent.parent)
    parameters = {key: value["string_value"] for key, value in document["parameters"].items()}
    options = tuple((k, v) for k, v in parameters.items() if k.startswith("tokenizer."))
    graph = TokenizerGraph(GraphSource.of(path, options=options), Cores(1))
    model = SentenceTransformer(str(folder), device="cpu")
    for text in texts:
        column = np.array([[text.encode()]], object)
        found = graph.run({"text": column}, {}, exclusive=True)["input_ids"]
        assert found.tolist() == model.tokenize([text])["input_ids"].tolist(), text


def test_a_prompt_before_each_text_is_refused(folder, exporting, ge_backend, tmp_path):
    """Embeddings would be others than those of sentence-transformers; a prompt to choose is not."""
    said = {"prompts": {"query": "query: ", "document": ""}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(said))
    code, _, err = ge_backend("import", folder, "--into", tmp_path / "models")
    assert code == 2
    assert "puts 'query: ' before each text" in err
    assert not (tmp_path / "models").exists()
    for name in (None, "document"):
        said["default_prompt_name"] = name
        (folder / "config_sentence_transformers.json").write_text(json.dumps(said))
        assert ge_backend("import", folder, "--into", tmp_path / f"models{name}")[0] == 0


def test_pairs_are_for_what_was_trained_on_them(folder, exporting, ge_backend, tmp_path):
    """An embedding is of one text; a classifier may be of two, which its files do not say."""
    arguments = ("import", folder, "--into", tmp_path / "models", "--pairs")
    code, _, err = ge_backend(*arguments)
    assert code == 2
    assert "gives sentence_embedding; expected a checkpoint for sequence classification" in err
    (folder / "modules.json").unlink()
    (folder / "config.json").write_text('{"architectures": ["BertForSequenceClassification"]}')
    code, out, _ = ge_backend(*arguments)
    assert code == 0
    assert out.startswith("all_Mini_LM: pairs of texts in, scores out; ")


def test_a_model_that_is_there_is_not_replaced(folder, exporting, ge_backend, tmp_path):
    """Another name is another model."""
    arguments = ("import", folder, "--into", tmp_path / "models")
    assert ge_backend(*arguments)[0] == 0
    code, _, err = ge_backend(*arguments)
    assert code == 2
    assert "is there already; give another --name" in err
    assert ge_backend(*arguments, "--name", "other")[0] == 0


@pytest.mark.parametrize("name", ["x/y", "../x", "/x", ".", "..", ".x", 'a"b', "a\nb", "a" * 250])
def test_a_name_that_no_model_can_have_is_refused(folder, exporting, ge_backend, tmp_path, name):
    """Before anything is written, and so nothing is written elsewhere."""
    before = sorted(tmp_path.rglob("*"))
    code, _, err = ge_backend("import", folder, "--into", tmp_path / "models", "--name", name)
    assert code == 2
    assert "cannot be a model's name; give a --name" in err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_long_name_is_taken(folder, exporting, ge_backend, tmp_path):
    """As long as the names of its steps can be those of folders."""
    arguments = ("import", folder, "--into", tmp_path / "models", "--name", "a" * 240)
    assert ge_backend(*arguments)[0] == 0


def test_what_is_written_is_utf_8_in_any_locale(
    folder, exporting, ge_backend, tmp_path, monkeypatch
):
    """As protobuf and the host read it; here the locale's own encoding is ASCII."""
    write = Path.write_text
    monkeypatch.setattr(Path, "write_text", lambda p, t, encoding="ascii": write(p, t, encoding))
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "größe"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modules.json").unlink()
    models = tmp_path / "models"
    code, _, err = ge_backend("import", folder, "--into", models, "--name", "modèle")
    assert (code, err) == (0, "")
    assert read_document(models / "modèle")["name"] == "modèle"
    assert (models / "modèle" / "labels.txt").read_text(encoding="utf-8") == "größe\n"


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_file_is_no_place_for_models(folder, exporting, ge_backend, tmp_path, below):
    """One line says so."""
    file = tmp_path / "file"
    file.touch()
    code, _, err = ge_backend("import", folder, "--into", file / below)
    assert code == 2
    assert f"{file / below} cannot be written to" in err
    assert "see --into" in err
