"""A tokenizer is opened with what lies beside its file, and what is in vain is told."""

import json

import pytest
from tokenizers import Tokenizer, models

from ge_backend.engines.preprocess.load import load_tokenizer
from ge_backend.errors import ModelError


def write(folder, **settings):
    path = folder / "tokenizer.json"
    Tokenizer(models.WordLevel({"rain": 0, "<pad>": 1}, "<pad>")).save(str(path))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


def test_tokens_beside_the_file_are_added(tmp_path, caplog):
    """A word of the vocabulary becomes a token of its own, and nothing is told of it."""
    made = load_tokenizer(write(tmp_path, pad_token="<pad>"))
    assert made.encode("rain<pad>").ids == [0, 1]
    assert not caplog.records


def test_what_is_in_vain_is_in_the_log(tmp_path, caplog):
    """The file's name stands before it."""
    path = write(tmp_path, bos_token="<s>")
    assert load_tokenizer(path).get_vocab_size() == 2
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith(f"{path}: the token '<s>' would have number 2 and is left out")


@pytest.mark.parametrize("text", ["{", "{}", '{"model": {"vocab": 3}}', "\ud800"])
def test_what_is_no_tokenizer_is_refused(tmp_path, text):
    """By the file's name, whatever lies beside it."""
    path = write(tmp_path, bos_token="<s>")
    path.write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(ModelError, match=f"^{path}: "):
        load_tokenizer(path)
    with pytest.raises(ModelError, match=f"^{path}_: cannot be read"):
        load_tokenizer(tmp_path / "tokenizer.json_")
