"""Chat templates in folders that are named for models which do not say theirs over Triton's API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ge_openai.api_error import ApiError
from ge_openai.chat_template import CONFIG, OTHERS, SPECIAL, TEMPLATE, ChatTemplate
from ge_openai.options import TOKENIZER, ReadTokenizer, as_written

__all__ = ["Templates", "template_files", "template_in"]

# What transformers opens a tokenizer with beside its file.
_BESIDE = (
    *("tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "config.json"),
)
# Of files: what changes when one changes, another takes its place, or one more comes.
_FilesState = tuple[tuple[object, ...], ...]


def template_files(folder: Path) -> list[Path]:
    """Return the files of a checkpoint's folder that its chat template is read from."""
    tokenizer = (folder / name for name in (TOKENIZER, *_BESIDE))
    return list(dict.fromkeys((*_own_files(folder), *filter(Path.is_file, tokenizer))))


def template_in(folder: Path, read: ReadTokenizer = as_written) -> ChatTemplate:
    """Return the template of a checkpoint's folder; `read` is for its tokenizer.

    Raises:
        ApiError: it has no template, or none that can be read.
        OSError: a file cannot be read.
        ValueError: a file is no text.
    """
    paths = _own_files(folder)
    files = {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in paths}
    tokenizer = folder / TOKENIZER
    return ChatTemplate(files, lambda: read(tokenizer) if tokenizer.is_file() else "")


def _own_files(folder: Path) -> list[Path]:
    """Return the files of a template, and of variants, which transformers writes beside it."""
    paths = (folder / name for name in (CONFIG, SPECIAL, TEMPLATE))
    return [*filter(Path.is_file, paths), *sorted((folder / OTHERS).glob("*.jinja"))]


class Templates:
    """The chat templates of folders as they are now, by the models that they are named for.

    For any thread.
    """

    def __init__(self, folders: Mapping[str, Path], read: ReadTokenizer = as_written) -> None:
        self._folders = folders
        self._read = read
        self._known: dict[str, tuple[object, ChatTemplate]] = {}

    def of(self, model: str) -> ChatTemplate:
        """Return the template of a model.

        Raises:
            ApiError: no folder is named for it, or that has no template.
        """
        if model not in self._folders:
            raise ApiError(
                f"the chat template of {model!r} is not known here, as the model does not say it; "
                "use /v1/completions, or name the API a folder that has its tokenizer: "
                f"--tokenizer {model}=FOLDER"
            )
        folder = self._folders[model]
        try:
            state = _state_of(template_files(folder))
            known = self._known.get(model)
            if known is None or known[0] != state:
                known = self._known[model] = state, template_in(folder, self._read)
            return known[1]
        except (OSError, ValueError) as error:  # one has just gone, or is no text
            raise ApiError(f"the model's chat template cannot be read: {error}") from error


def _state_of(files: Sequence[Path]) -> _FilesState:
    """Return the state of files, for comparison.

    Layers of container images give all files one modification time, so where they lie counts, too.

    Raises:
        OSError: one has just gone.
    """
    found = [(file, file.stat()) for file in files]
    return tuple((file, s.st_mtime_ns, s.st_size, s.st_dev, s.st_ino) for file, s in found)
