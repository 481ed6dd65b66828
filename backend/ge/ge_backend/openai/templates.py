"""The chat templates of the models of some repositories, each read when it is first needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ge_backend.config.model_folder import read_folder
from ge_backend.errors import GeError
from ge_backend.openai.api_error import ApiError
from ge_backend.openai.chat_template import ChatTemplate
from ge_backend.openai.folders import find_folder

__all__ = ["Templates"]


class Templates:
    """Templates by model.

    Args:
        repositories: model repositories; the checkpoint is a model's version folder.
    """

    def __init__(self, repositories: Sequence[Path]) -> None:
        self._repositories = repositories
        self._read: dict[str, ChatTemplate] = {}

    def of(self, model: str) -> ChatTemplate:
        """Return a model's template.

        Args:
            model: a name that the server knows.

        Raises:
            ApiError: its checkpoint is not here, or has no template.
        """
        if model not in self._read:
            self._read[model] = ChatTemplate(self._checkpoint(model))
        return self._read[model]

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
