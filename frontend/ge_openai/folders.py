"""What the folder of a model says, in the repositories that this API sees.

The formats are the field's own: Triton's `config.pbtxt` and version folders, checkpoints of Hugging
Face, and LoRA adapters as peft saves them and as Triton's vLLM backend lists them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

__all__ = [
    "TOKENIZER",
    "adapter_names",
    "find_folder",
    "read_config",
    "state_of",
    "tokenizer_files",
    "version_folder",
]

TOKENIZER = "tokenizer.json"
# What transformers opens a tokenizer with beside its file.
_BESIDE = (
    *("tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "config.json"),
)
_ADAPTERS = "adapters/*/adapter_config.json"
_LISTED = "multi_lora.json"
# Other folders Triton ignores. Source: core r24.10,
# src/model_repository_manager/model_lifecycle.cc, `VersionsToLoad`.
_VERSION = re.compile("0|[1-9][0-9]{0,17}")

# Of files: what changes when one changes, another takes its place, or one more comes.
FilesState = tuple[tuple[object, ...], ...]


def find_folder(repositories: Sequence[Path], model: str) -> Path | None:
    """Return the folder of a model that the server knows; None where no repository has it.

    Raises:
        OSError: who serves the API may not look there.
    """
    for repository in repositories:
        folder = repository / model
        if folder.parent == repository and (folder / "config.pbtxt").is_file():
            return folder
    return None


def read_config(folder: Path) -> Any:
    """Return Triton's message of a model's `config.pbtxt`.

    Raises:
        OSError: who serves the API may not read it.
        ValueError: Triton would not read it either.
    """
    file = folder / "config.pbtxt"
    try:
        return text_format.Parse(file.read_text(encoding="utf-8"), model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        raise ValueError(f"{file}, line and column {error}") from error


def version_folder(folder: Path, config: Any) -> Path:
    """Return the folder of the version that the server has, of several the latest.

    Raises:
        OSError: who serves the API may not look there.
        ValueError: there is none.
    """
    names = [each.name for each in folder.iterdir() if each.is_dir()]
    found = [name for name in names if _VERSION.fullmatch(name)]
    if config.version_policy.HasField("specific"):
        served = set(map(str, config.version_policy.specific.versions))
        found = [name for name in found if name in served]
    if not found:
        raise ValueError(f"{folder} has no version folder that the server would take")
    return folder / max(found, key=int)


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
    """Return the LoRA adapters beside a model's checkpoint; none where its folder is not here."""
    try:
        folder = find_folder(repositories, model)
        if folder is None:
            return []
        checkpoint = version_folder(folder, read_config(folder))
        beside = {file.parent.name for file in checkpoint.glob(_ADAPTERS) if file.is_file()}
        return sorted({*beside, *_listed(checkpoint / _LISTED)})
    except (OSError, ValueError):  # the server tells those who ask for one
        return []


def _listed(file: Path) -> Collection[str]:
    """Return the names in a list; none where it cannot be read, which the server tells."""
    try:
        read = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ()
    return read if isinstance(read, dict) else ()
