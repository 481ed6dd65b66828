"""A checkpoint opened with vLLM: its own tokenizer and defaults beside it."""

import json
import sys

import pytest

from builders.writer import make_writer
from ge_backend.errors import DeviceUnavailable, ModelError
from ge_text.models.open import OpenScheduled, open_scheduled


def asked(folder, **options):
    return OpenScheduled(
        folder=folder,
        precision="origin",
        served_as="writer",
        options=options,
        on_death=lambda: None,
    )


def test_a_checkpoint_is_opened_with_what_stands_beside_it(tmp_path, async_llm):
    """The engine gets the folder; tokens, ends and the tokenizer are the checkpoint's."""
    writer = make_writer(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "awq"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    opened = open_scheduled(asked(tmp_path))
    assert async_llm.last.arguments.model == str(tmp_path)
    assert opened.model.vocabulary == config["vocab_size"]
    assert opened.tokenizer.encode("once").tolist() == writer.encode("once")
    opened.model.close()


def test_a_folder_without_a_checkpoint_is_none(tmp_path, async_llm):
    """It is refused before vLLM is started."""
    with pytest.raises(ModelError, match=r"no config\.json"):
        open_scheduled(asked(tmp_path))


@pytest.mark.parametrize("error", [ImportError("No module named 'vllm'"), RuntimeError("nms")])
def test_a_python_without_vllm_says_what_to_install(tmp_path, monkeypatch, error):
    """Missing, or beside a library that does not load: the interpreter and the reason are named."""

    def refuse(_):
        raise error

    monkeypatch.setattr("importlib.import_module", refuse)
    with pytest.raises(DeviceUnavailable, match="pip install vllm") as raised:
        open_scheduled(asked(tmp_path))
    assert sys.executable in str(raised.value)
    assert str(error) in str(raised.value)
