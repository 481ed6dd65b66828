"""Encoders of random weights as ONNX files, compared with what transformers computes."""

import builtins
import dataclasses
import io
import json
import sys

import numpy as np
import onnxruntime
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from builders.checkpoints import (
    LABELS,
    LENGTH,
    SPECIAL,
    WIDTH,
    WORDS,
    as_sentence_encoder,
    write_checkpoint,
)
from ge_backend.engines.torch import encoder_export
from ge_backend.engines.torch.encoder_export import (
    Exported,
    copy_checkpoint,
    export_onnx,
    write_tokenizer,
)
from ge_backend.errors import ConfigError, DeviceUnavailable, ModelError
from ge_backend.model.files.encoder_folder import read_encoder_folder

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]


def answer(path, ids):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    return session.run(None, feed)[0]


def test_a_classifier_answers_as_transformers_does(tmp_path):
    """Its logits, at lengths up to its longest text."""
    folder = write_checkpoint(tmp_path / "model", classifier=True)
    exported = export_onnx(read_encoder_folder(folder), tmp_path / "model.onnx")

    assert exported.width == len(LABELS)
    assert exported.difference < 1e-5
    ids = np.arange(5, 5 + LENGTH)[np.newaxis]
    whole = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        expected = whole(input_ids=torch.from_numpy(ids)).logits.numpy()
    np.testing.assert_allclose(answer(tmp_path / "model.onnx", ids), expected, atol=1e-5)


def test_a_classifier_of_tokens_answers_as_transformers_does(tmp_path):
    """Its logits, for each token."""
    torch.manual_seed(7)
    folder = write_checkpoint(tmp_path / "model")
    config = transformers.BertConfig.from_pretrained(folder, num_labels=5)
    whole = transformers.BertForTokenClassification(config).eval()
    whole.save_pretrained(folder)
    assert export_onnx(read_encoder_folder(folder), tmp_path / "model.onnx").width == 5

    ids = np.arange(5, 5 + LENGTH)[np.newaxis]
    with torch.inference_mode():
        expected = whole(input_ids=torch.from_numpy(ids)).logits.numpy()
    np.testing.assert_allclose(answer(tmp_path / "model.onnx", ids), expected, atol=1e-5)


def test_of_pairs_the_second_text_is_told(tmp_path):
    """By an encoder that has types of tokens, as a file or as a copy."""
    folder = write_checkpoint(tmp_path / "model", classifier=True)
    pairs = dataclasses.replace(read_encoder_folder(folder), pairs=True)
    exported = export_onnx(pairs, tmp_path / "model.onnx")
    assert exported.inputs == ("input_ids", "attention_mask", "token_type_ids")

    ids, types = np.array([[2, 7, 3, 9, 10, 3]]), np.array([[0, 0, 0, 1, 1, 1]])
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": types}
    found = session.run(None, feed)[0]
    whole = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        expected = whole(torch.from_numpy(ids), token_type_ids=torch.from_numpy(types)).logits
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)
    assert copy_checkpoint(pairs, tmp_path).inputs == exported.inputs


def test_a_copy_has_its_pooling_wherever_that_lies(tmp_path):
    """It is read as the original is."""
    folder = as_sentence_encoder(write_checkpoint(tmp_path / "model"))
    (folder / "a").mkdir()
    (folder / "1_Pooling").rename(folder / "a" / "pool")
    said = (folder / "modules.json").read_text()
    (folder / "modules.json").write_text(said.replace("1_Pooling", "a/pool"))
    original = read_encoder_folder(folder)
    copy_checkpoint(original, tmp_path)
    assert read_encoder_folder(tmp_path) == dataclasses.replace(original, folder=tmp_path)


@pytest.mark.parametrize(
    ("kind", "pooling"),
    [("Bert", "cls_token"), ("Bert", "max_tokens"), ("Bert", "lasttoken"), ("Qwen3", "lasttoken")],
)
def test_padding_is_not_pooled(tmp_path, kind, pooling):
    """The vector of a padded row is the one that it has alone."""
    folder = as_sentence_encoder(write_checkpoint(tmp_path / "model", kind=kind), pooling)
    path = tmp_path / "model.onnx"
    assert export_onnx(read_encoder_folder(folder), path).width == WIDTH

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    ids = np.array([[7, 8, 9, 0, 0]])
    mask = np.array([[1, 1, 1, 0, 0]])
    padded = session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
    np.testing.assert_allclose(padded, answer(path, ids[:, :3]), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(padded), 1.0, atol=1e-5)


@pytest.mark.parametrize("classifier", [False, True])
def test_an_encoder_that_looks_at_padding_is_refused(tmp_path, classifier):
    """Such as convolutions do: a text would be answered otherwise beside longer ones."""
    sizes = {"embedding_size": WIDTH, "head_ratio": 1, "initializer_range": 0.2}
    folder = other_kind(tmp_path / "model", "ConvBert", classifier, **sizes)
    with pytest.raises(ModelError, match="a padded row differs from the same row alone by"):
        export_onnx(read_encoder_folder(folder), tmp_path / "model.onnx")


def test_an_encoder_that_looks_at_padding_and_finds_nothing_is_exported(tmp_path):
    """MobileBERT sees the next token, and the vector of padding is 0, as it is behind the end."""
    sizes = {"embedding_size": WIDTH, "intra_bottleneck_size": WIDTH, "true_hidden_size": WIDTH}
    folder = other_kind(tmp_path / "model", "MobileBert", False, **sizes)
    assert export_onnx(read_encoder_folder(folder), tmp_path / "model.onnx").width == WIDTH


def other_kind(folder, kind, classifier, **more):
    """Write an encoder of another kind, of random weights."""
    sizes = {"vocab_size": 200, "hidden_size": WIDTH, "intermediate_size": 32}
    sizes |= {"num_attention_heads": 2, "num_hidden_layers": 2}
    config = getattr(transformers, f"{kind}Config")(**sizes, **more)
    whole = f"{kind}ForSequenceClassification" if classifier else f"{kind}Model"
    torch.manual_seed(7)
    getattr(transformers, whole)(config).save_pretrained(folder)
    return folder


def test_a_small_vocabulary_is_enough(tmp_path):
    """The example's tokens are within it."""
    folder = write_checkpoint(tmp_path / "model", vocabulary=13)
    assert export_onnx(read_encoder_folder(folder), tmp_path / "model.onnx").width == WIDTH


def test_a_file_that_answers_otherwise_is_refused(tmp_path, monkeypatch):
    """The error has the difference and the bound."""
    monkeypatch.setattr(encoder_export, "TOLERANCE", -1.0)
    monkeypatch.setattr(encoder_export, "_check_padding", lambda *_: None)
    folder = write_checkpoint(tmp_path / "model")
    with pytest.raises(ModelError, match="differs from the transformers model by"):
        export_onnx(read_encoder_folder(folder), tmp_path / "model.onnx")


def test_weights_that_cannot_be_read_are_a_model_error(tmp_path):
    """It names the folder and what transformers says."""
    folder = write_checkpoint(tmp_path / "model")
    (folder / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ModelError, match="model cannot be exported"):
        export_onnx(read_encoder_folder(folder), tmp_path / "model.onnx")


@pytest.mark.parametrize("lost", ["layer.1", "classifier", "pooler"])
@pytest.mark.parametrize("pickled", [False, True])
def test_weights_that_are_missing_are_not_made_up(tmp_path, lost, pickled):
    """A classifier looks at what the pooler makes; a folder of pickles is no other."""
    folder = write_checkpoint(tmp_path / "model", classifier=True)
    weights = load_file(folder / "model.safetensors")
    kept = {name: each for name, each in weights.items() if lost not in name}
    if pickled:
        (folder / "model.safetensors").unlink()
        torch.save(kept, folder / "pytorch_model.bin")
    else:
        save_file(kept, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=f"cannot be exported: missing keys: .*{lost}"):
        export_onnx(read_encoder_folder(folder), tmp_path / "model.onnx")


@pytest.mark.parametrize("path", ["1_Pooling", "pool", "further/pool"])
def test_a_copy_can_be_read_again(tmp_path, path):
    """Wherever the folder has its parts."""
    folder = as_sentence_encoder(write_checkpoint(tmp_path / "model"))
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"] = path
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / path).parent.mkdir(exist_ok=True)
    (folder / "1_Pooling").rename(folder / path)
    checkpoint = read_encoder_folder(folder)
    (tmp_path / "copy").mkdir()
    assert copy_checkpoint(checkpoint, tmp_path / "copy").width == WIDTH
    copied = dataclasses.replace(checkpoint, folder=tmp_path / "copy")
    assert read_encoder_folder(tmp_path / "copy") == copied


def test_a_copy_that_no_server_takes_for_an_encoder_is_not_made(tmp_path):
    """Before the weights are read; an ONNX file needs no such name."""
    folder = write_checkpoint(tmp_path / "model")
    said = json.loads((folder / "config.json").read_text())
    del said["architectures"]
    (folder / "config.json").write_text(json.dumps(said))
    with pytest.raises(ConfigError, match=r"config\.json names no 'architectures'.*--packed"):
        copy_checkpoint(read_encoder_folder(folder), tmp_path / "copy")


def test_pickles_of_weights_are_exported(tmp_path):
    """Older checkpoints have no others; one of embeddings may lack the pooler."""
    folder = write_checkpoint(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    kept = {name: each for name, each in weights.items() if "pooler" not in name}
    torch.save(kept, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert export_onnx(read_encoder_folder(folder), tmp_path / "model.onnx").width == WIDTH


def test_code_of_a_checkpoint_is_never_run(tmp_path, monkeypatch):
    """Nobody is asked whether it may be, and no answer makes it."""
    folder = write_checkpoint(tmp_path / "model")
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("\n".join((*SPECIAL, *WORDS)))
    own = {"AutoConfig": "own.Own", "AutoModel": "own.Own", "AutoTokenizer": ["own.Own", None]}
    for name, kind in (("config", "model_type"), ("tokenizer_config", "tokenizer_class")):
        said = json.loads((folder / f"{name}.json").read_text())
        (folder / f"{name}.json").write_text(json.dumps(said | {"auto_map": own, kind: "own"}))
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 9))
    with pytest.raises(ModelError, match=r"cannot be exported: .* contains custom code"):
        export_onnx(read_encoder_folder(folder), tmp_path / "model.onnx")
    with pytest.raises(ModelError, match=r"no tokenizer that can be served: .* custom code"):
        write_tokenizer(read_encoder_folder(folder), tmp_path / "tokenizer.json")
    assert not (tmp_path / "ran").exists()


def test_a_tokenizer_is_made_of_what_is_there_or_refused(tmp_path):
    """A folder without a vocabulary has none; one of an older form is made anew from it."""
    folder = write_checkpoint(tmp_path / "model")
    checkpoint = read_encoder_folder(folder)
    write_tokenizer(checkpoint, tmp_path / "one.json")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(ModelError, match="no tokenizer that can be served"):
        write_tokenizer(checkpoint, tmp_path / "another.json")
    (folder / "vocab.txt").write_text("\n".join((*SPECIAL, *WORDS)))
    write_tokenizer(checkpoint, tmp_path / "another.json")
    for name in ("one.json", "another.json"):
        made = Tokenizer.from_file(str(tmp_path / name))
        assert made.encode("rain and soup").ids == [2, 5, 1, 12, 3]


def test_a_missing_library_names_the_extra(tmp_path, monkeypatch):
    """Before a minute is spent on it."""
    there = builtins.__import__

    def without(name, *rest, **more):
        if name == "onnxscript":
            raise ImportError(f"No module named {name!r}")
        return there(name, *rest, **more)

    folder = write_checkpoint(tmp_path / "model")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DeviceUnavailable, match=r"triton-ge-backend\[import\]"):
        export_onnx(read_encoder_folder(folder), tmp_path / "model.onnx")


def test_what_was_exported_says_how_wide_it_is():
    """The last axis of the output, for the configuration."""
    assert Exported(width=3, difference=0.0).width == 3
