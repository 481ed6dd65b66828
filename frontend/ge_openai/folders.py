"""What the folder of a model says, in the repositories that this API sees.

The formats are the field's own: Triton's `config.pbtxt` and version folders, checkpoints of Hugging
Face and its cache of downloads, and what Triton's vLLM backend has in a version folder beside or in
place of a checkpoint.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

__all__ = [
    "TOKENIZER",
    "adapter_names",
    "checkpoint_folder",
    "find_folder",
    "read_config",
    "state_of",
    "tokenizer_files",
    "version_folder",
]

TOKENIZER = "tokenizer.json"
_CONFIG = "config.pbtxt"
# What transformers opens a tokenizer with beside its file.
_BESIDE = (
    *("tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "config.json"),
)
_LISTED = "multi_lora.json"
# Arguments of vLLM's engine. Source: triton-inference-server/vllm_backend@8de0c14, src/model.py.
_ARGUMENTS = "model.json"
# Other folders Triton ignores. Source: core r24.10,
# src/model_repository_manager/model_lifecycle.cc, `VersionsToLoad`.
_VERSION = re.compile("0|[1-9][0-9]{0,17}")

# Of files: what changes when one changes, another takes its place, or one more comes.
FilesState = tuple[tuple[object, ...], ...]


def find_folder(repositories: Sequence[Path], model: str) -> Path | None:
    """Return the folder of a model that the server knows; None where no repository has it.

    It has a configuration, or versions alone, of which the server completes one.

    Raises:
        OSError: who serves the API may not look there.
    """
    for repository in repositories:
        folder = repository / model
        if folder.parent == repository and ((folder / _CONFIG).is_file() or _versions(folder)):
            return folder
    return None


def read_config(folder: Path) -> Any:
    """Return Triton's message of a model's `config.pbtxt`; an empty one where there is none.

    Raises:
        OSError: who serves the API may not read it.
        ValueError: Triton would not read it either.
    """
    file = folder / _CONFIG
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        raise ValueError(f"{file}, line and column {error}") from error


def version_folder(folder: Path, config: Any) -> Path:
    """Return the folder of the version that the server has, of several the latest.

    Raises:
        OSError: who serves the API may not look there.
        ValueError: there is none.
    """
    found = _versions(folder)
    if config.version_policy.HasField("specific"):
        served = set(map(str, config.version_policy.specific.versions))
        found = [name for name in found if name in served]
    if not found:
        raise ValueError(f"{folder} has no version folder that the server would take")
    return folder / max(found, key=int)


def checkpoint_folder(version: Path) -> Path:
    """Return where the checkpoint of a version folder lies: there, or where vLLM's arguments say.

    A model that is named there, not placed, is one of the Hugging Face Hub's, as downloaded here.

    Raises:
        OSError: who serves the API may not look there.
        ValueError: it is not here.
    """
    file = version / _ARGUMENTS
    if not file.is_file():
        return version
    given = json.loads(file.read_text(encoding="utf-8"))
    name = (given.get("tokenizer") or given.get("model")) if isinstance(given, dict) else None
    if not isinstance(name, str) or not name:
        raise ValueError(f"{file} names no model")
    folder = Path(name)
    if not folder.is_absolute():
        folder = _downloaded(name, given.get("tokenizer_revision") or given.get("revision"))
    if not folder.is_dir():
        raise ValueError(f"{file} names {name!r}, and {folder} is no folder here")
    return folder


def _downloaded(name: str, revision: str | None) -> Path:
    """Return the folder of a model in the cache of downloads.

    Source: huggingface_hub 1.1, `constants.py`, and its docs, "Understand caching".
    """
    home = os.environ.get("HF_HOME") or Path("~/.cache/huggingface").expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub"))
    model = hub / f"models--{name.replace('/', '--')}"
    named = model / "refs" / (revision or "main")
    commit = named.read_text(encoding="utf-8").strip() if named.is_file() else revision or "main"
    return model / "snapshots" / commit


def _versions(folder: Path) -> list[str]:
    """Return the names of the version folders of a model; none where it has no folder."""
    names = [each.name for each in folder.iterdir() if each.is_dir()] if folder.is_dir() else []
    return [name for name in names if _VERSION.fullmatch(name)]


def tokenizer_files(checkpoint: Path) -> tuple[Path, ...]:
    """Return the files in a version folder that its tokenizer is opened with."""
    files = (checkpoint / name for name in (TOKENIZER, *_BESIDE))
    return tuple(file for file in files if file.is_file())


def state_of(files: Sequence[Path]) -> FilesState:
    """Return the state of files, for comparison.

    Layers of container images give all files one modification time, so where they lie counts, too.

    Raises:
        OSError: one has just gone.
    """
    found = [(file, file.stat()) for file in files]
    return tuple((file, s.st_mtime_ns, s.st_size, s.st_dev, s.st_ino) for file, s in found)


def adapter_names(repositories: Sequence[Path], model: str) -> list[str]:
    """Return the LoRA adapters that a model of Triton's vLLM backend lists; none if not here."""
    try:
        folder = find_folder(repositories, model)
        if folder is None:
            return []
        file = version_folder(folder, read_config(folder)) / _LISTED
        read = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # the server tells those who ask for one
        return []
    return sorted(read) if isinstance(read, dict) else []
