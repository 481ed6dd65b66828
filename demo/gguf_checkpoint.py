"""Turns a GGUF file into a checkpoint folder: safetensors, tokenizer, chat template.

Imports torch and transformers; `demo.chat_model` does so only when its cache is empty.
"""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

__all__ = ["convert"]


def convert(source: Path, folder: Path) -> None:
    """Write the model of a GGUF file, in BF16, and its tokenizer into a folder."""
    with _quiet():
        given = {"pretrained_model_name_or_path": source.parent, "gguf_file": source.name}
        loaded = transformers.AutoModelForCausalLM.from_pretrained(**given, dtype=torch.float32)
        settings = loaded.config.to_dict()
        # A model that came out of a quantised file is not saved as one; its numbers are.
        settings.pop("quantization_config", None)
        config = type(loaded.config).from_dict({**settings, "dtype": "bfloat16"})
        plain = type(loaded)(config).to(torch.bfloat16)
        plain.load_state_dict(loaded.state_dict())
        tokenizer = transformers.AutoTokenizer.from_pretrained(**given)
        plain.generation_config = transformers.GenerationConfig(
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        plain.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hold back what transformers tells its own developers, bars of progress among it."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
