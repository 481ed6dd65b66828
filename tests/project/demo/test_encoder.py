from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from demo import encoder
from demo.encoder import INPUTS, OUTPUT, load_tokenizer, prepare, tokenise
from rich.console import Console


@pytest.fixture(scope="module")
def prepared() -> encoder.Encoder:
    """The real encoder, in the cache folder that the demo uses."""
    cache = Path(encoder.__file__).resolve().parent.parent / ".cache" / "encoder"
    return prepare(cache, Console(file=io.StringIO()))


def test_tokens_begin_and_end_as_the_model_expects():
    """[CLS] is 101, [SEP] is 102; nothing is padded."""
    short, longer = tokenise(["Saturn has rings.", "The train is late again."], load_tokenizer())

    assert short.dtype == np.int64
    assert (short[0], short[-1]) == (101, 102)
    assert len(short) < len(longer)


def test_long_texts_are_cut():
    """The model was trained on 256 tokens at most."""
    (ids,) = tokenise(["word " * 1000], load_tokenizer())

    assert len(ids) == 256


def test_what_is_in_the_cache_is_taken_as_it_is(tmp_path, monkeypatch):
    """A second run exports nothing."""
    monkeypatch.setattr(encoder, "_export_into", lambda *_: pytest.fail("exported again"))
    folder = tmp_path / encoder._key()
    folder.mkdir()
    (folder / "differences.json").write_text('{"ONNX": 1e-7}')

    found = prepare(tmp_path, Console(file=io.StringIO()))

    assert found.onnx == folder / "model.onnx"
    assert found.differences == {"ONNX": 1e-7}


def test_another_version_of_a_library_is_another_export(monkeypatch):
    """The key covers everything that decides the files' content."""
    before = encoder._key()
    monkeypatch.setattr(encoder.importlib.metadata, "version", lambda _: "0.0")

    assert encoder._key() != before


def test_a_failed_export_leaves_nothing_behind(tmp_path, monkeypatch):
    """The cache never has half an encoder."""
    from demo import export

    monkeypatch.setattr(export, "load", lambda _: None)
    monkeypatch.setattr(export, "to_onnx", lambda _module, path, *_: path.write_text("half"))

    def fail(*_):
        raise ValueError("no space")

    monkeypatch.setattr(export, "to_program", fail)
    with pytest.raises(ValueError, match="no space"):
        prepare(tmp_path / "cache", Console(file=io.StringIO()))

    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (1, 2), (5, 33)])
def test_the_onnx_file_takes_any_batch_and_length(prepared, shape):
    """Every row is a unit vector; one row and one token are no special case."""
    session = onnxruntime.InferenceSession(str(prepared.onnx))
    ids = np.full(shape, 2000)

    (found,) = session.run([OUTPUT], {INPUTS[0]: ids, INPUTS[1]: np.ones_like(ids)})

    assert found.shape == (shape[0], 384)
    assert np.allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-5)


@pytest.mark.long
def test_padding_does_not_change_an_embedding(prepared):
    """Pooling counts real tokens only, so a masked tail is nothing."""
    session = onnxruntime.InferenceSession(str(prepared.onnx))
    ids = np.array([[101, 2000, 2001, 102]])
    alone = session.run(None, {INPUTS[0]: ids, INPUTS[1]: np.ones_like(ids)})[0]
    padded = np.pad(ids, ((0, 0), (0, 60)))
    mask = (np.arange(64) < 4).astype(np.int64)[np.newaxis]

    found = session.run(None, {INPUTS[0]: padded, INPUTS[1]: mask})[0]

    assert np.abs(found - alone).max() < 1e-5


@pytest.mark.long
def test_the_program_carries_its_names(prepared):
    """torch.export keeps no output names and calls axes s43: the extra file has them."""
    import torch

    files = {"ge_names.json": ""}
    program = torch.export.load(str(prepared.program), extra_files=files)
    names = json.loads(files["ge_names.json"])

    assert names["inputs"] == list(INPUTS)
    assert names["outputs"] == [OUTPUT]
    assert sorted(names["axes"].values()) == ["batch", "sequence"]
    ranges = {str(symbol): bounds.upper for symbol, bounds in program.range_constraints.items()}
    limits = {names["axes"][symbol]: upper for symbol, upper in ranges.items()}
    assert limits == {"batch": 256, "sequence": 512}


@pytest.mark.long
def test_both_exports_were_compared_with_the_original(prepared):
    """The differences are known and tiny."""
    assert set(prepared.differences) == {"ONNX", "torch.export"}
    assert max(prepared.differences.values()) < 1e-5
