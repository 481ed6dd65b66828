"""The chat templates of the models of some repositories, read as they are now."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ge_backend.config.model_folder import read_folder
from ge_backend.device.files.model_file import stamp_of
from ge_backend.errors import GeError
from ge_backend.openai.api_error import ApiError
from ge_backend.openai.chat_template import ChatTemplate, template_files
from ge_backend.openai.folders import find_folder

__all__ = ["Templates"]


class Templates:
    """Templates by model.

    Args:
        repositories: model repositories; the checkpoint is a model's version folder.
    """

    def __init__(self, repositories: Sequence[Path]) -> None:
        self._repositories = repositories
        self._read: dict[str, tuple[tuple[Path, str], ChatTemplate]] = {}

    def of(self, model: str) -> ChatTemplate:
        """Return a model's template as it is now.

        Args:
            model: a name that the server knows.

        Raises:
            ApiError: its checkpoint is not here, or has no template.
        """
        folder = self._checkpoint(model)
        state = folder, _stamp(folder)
        known = self._read.get(model)
        if known is None or known[0] != state:
            known = self._read[model] = state, ChatTemplate(folder)
        return known[1]

    def _checkpoint(self, model: str) -> Path:
        folder = find_folder(self._repositories, model)
        if folder is None:
            raise ApiError(
                f"the chat template of {model!r} is not known here, as none of the API's model "
                "repositories has the model; use /v1/completions, or name its --model-repository"
            )
        try:
            return read_folder(folder).directory
        except GeError as error:
            raise ApiError(f"the model's folder cannot be read: {error}") from error


def _stamp(checkpoint: Path) -> str:
    try:
        return stamp_of(template_files(checkpoint))
    except OSError as error:  # one has just gone
        raise ApiError(f"the model's chat template cannot be read: {error}") from error
