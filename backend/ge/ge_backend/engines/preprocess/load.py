"""The library's tokenizer of a `tokenizer.json` and of what lies beside it."""

from __future__ import annotations

import logging
from pathlib import Path

from tokenizers import Tokenizer

from ge_backend.device.failures import reason
from ge_backend.errors import ModelError
from ge_backend.model.files.tokenizer_file import read_tokenizer

__all__ = ["load_tokenizer"]

log = logging.getLogger(__name__)


def load_tokenizer(path: Path) -> Tokenizer:
    """Return a tokenizer as its files say; what they say in vain is in the log.

    Raises:
        ModelError: they cannot be read, or the library reads no tokenizer in them.
    """
    file = read_tokenizer(path)
    for warning in file.warnings:
        log.warning("%s", warning)
    try:
        return Tokenizer.from_str(file.text)
    except Exception as error:  # the library raises nothing more particular
        raise ModelError(f"{path}: not a tokenizer of Hugging Face: {reason(error)}") from error
