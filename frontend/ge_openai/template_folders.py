"""Chat templates in folders, for models that do not say theirs over Triton's API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from ge_openai.api_error import ApiError
from ge_openai.chat_template import CONFIG, OTHERS, SPECIAL, TEMPLATE, ChatTemplate
from ge_openai.folders import (
    TOKENIZER,
    checkpoint_folder,
    find_folder,
    read_config,
    state_of,
    tokenizer_files,
    version_folder,
)
from ge_openai.options import ReadTokenizer, as_written

__all__ = ["Templates", "template_files", "template_in"]


def template_files(folder: Path) -> list[Path]:
    """Return the files of a checkpoint's folder that its chat template is read from."""
    return list(dict.fromkeys((*_own_files(folder), *tokenizer_files(folder))))


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
    """The chat templates of the models of some repositories, by their version folders as of now.

    For any thread.

    Args:
        named: folders of models that need not be in a repository, by name; they go before.
    """

    def __init__(
        self,
        repositories: Sequence[Path],
        read: ReadTokenizer = as_written,
        named: Mapping[str, Path] = MappingProxyType({}),
    ) -> None:
        self._repositories = repositories
        self._read = read
        self._named = named
        self._known: dict[str, tuple[object, ChatTemplate]] = {}

    def of(self, model: str) -> ChatTemplate:
        """Return the template, as it is now, of a model that the server knows.

        Raises:
            ApiError: its checkpoint is not here, or has no template.
        """
        folder = self._checkpoint(model)
        try:
            state = folder, state_of(template_files(folder))
            known = self._known.get(model)
            if known is None or known[0] != state:
                known = self._known[model] = state, template_in(folder, self._read)
            return known[1]
        except (OSError, ValueError) as error:  # one has just gone, or is no text
            raise ApiError(f"the model's chat template cannot be read: {error}") from error

    def _checkpoint(self, model: str) -> Path:
        if model in self._named:
            return self._named[model]
        try:
            folder = find_folder(self._repositories, model)
            if folder is not None:
                return checkpoint_folder(version_folder(folder, read_config(folder)))
        except (OSError, ValueError) as error:
            raise ApiError(
                f"the model's folder cannot be read: {error}; the API may be given another that "
                f"has its tokenizer: --tokenizer {model}=FOLDER"
            ) from error
        raise ApiError(
            f"the chat template of {model!r} is not known here, as none of the API's model "
            "repositories has the model; use /v1/completions, or name its --model-repository or a "
            f"folder that has its tokenizer: --tokenizer {model}=FOLDER"
        )
