"""A checkpoint is run by our decoder where that covers it, else by transformers' modules."""

import subprocess
import sys

import pytest
import safetensors

from builders.language import CPU, generated, make, opened, run, texts_for
from ge_backend.errors import DeviceUnavailable, ModelError
from ge_backend.model.files.checkpoint import read_checkpoint
from ge_text.torch.decoder import TransformersDecoder
from ge_text.torch.llama import LlamaDecoder
from ge_text.torch.loading import load_decoder


@pytest.mark.parametrize(("name", "form"), [("llama", LlamaDecoder), ("gpt2", TransformersDecoder)])
def test_the_form_is_chosen_by_what_is_covered(tmp_path, name, form):
    """Nobody has to know the two forms."""
    make(tmp_path, name)
    assert isinstance(load_decoder(read_checkpoint(tmp_path), dtype="FP32", device=CPU), form)


def test_our_decoder_needs_no_transformers(tmp_path):
    """Its import alone takes longer than loading a small model."""
    make(tmp_path, "llama")
    code = (
        "import sys, pathlib, torch\n"
        "from ge_backend.model.files.checkpoint import read_checkpoint\n"
        "from ge_text.torch.loading import load_decoder\n"
        f"found = read_checkpoint(pathlib.Path({str(tmp_path)!r}))\n"
        "load_decoder(found, dtype='FP32', device=torch.device('cpu'))\n"
        "sys.exit('transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_weights_in_several_files_are_one_model(tmp_path):
    """Every tensor is read from the file that has it."""
    reference = make(tmp_path, "llama")
    whole = tmp_path / "model.safetensors"
    whole.unlink()
    reference.save_pretrained(tmp_path, max_shard_size="20kB")
    assert len(read_checkpoint(tmp_path).weights) > 1
    import numpy as np

    rng = np.random.default_rng(1)
    prompt = rng.integers(1, 90, 9)
    texts, blocks = texts_for([prompt], rng, 4, 20)
    run(opened(tmp_path, blocks=blocks), texts, 8, rng)
    assert texts[0].output == generated(reference, prompt, 8)


def test_a_file_that_the_library_refuses_is_named(tmp_path, monkeypatch):
    """It may find what the header alone does not show."""
    make(tmp_path, "llama")

    def refuse(*_, **__):
        raise safetensors.SafetensorError("no")

    monkeypatch.setattr(safetensors, "safe_open", refuse)
    with pytest.raises(ModelError, match=r"model\.safetensors: cannot be read: no"):
        load_decoder(read_checkpoint(tmp_path), dtype="FP32", device=CPU)


@pytest.mark.parametrize(("name", "module"), [("llama", "safetensors"), ("gpt2", "transformers")])
def test_a_missing_library_is_named_with_its_extra(tmp_path, monkeypatch, name, module):
    """The message is what to type."""
    make(tmp_path, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DeviceUnavailable, match=rf"{module}; pip install .*\[generation\]"):
        load_decoder(read_checkpoint(tmp_path), dtype="FP32", device=CPU)
