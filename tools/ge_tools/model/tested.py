"""What is tested of the models of a repository before they are served, without a server."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ge_backend.errors import GeError
from ge_backend.kinds import FUSED, TEXT, kind_of
from ge_backend.model.config.model_folder import read_folder
from ge_backend.serving.warmup.verdict import COLUMNS, Verdict
from ge_tools.model.offline import open_offline
from ge_tools.model.repository import is_ours, model_folders
from ge_tools.report.table import table

__all__ = ["tested_models", "verdict_lines"]

# What has no graph of its own: nothing is tested of it as a whole.
OTHERS = (FUSED, TEXT)


def tested_models(repository: Path) -> Iterator[tuple[str, tuple[Verdict, ...], str]]:
    """Yield each graph of this backend, the verdicts on it, and why it cannot be loaded, or "".

    Raises:
        ConfigError: there is no such repository, or it is empty.
    """
    for folder in model_folders(repository):
        try:
            if not is_ours(folder) or kind_of(read_folder(folder).config(os.environ)) in OTHERS:
                continue
            with open_offline(folder) as model:
                yield folder.name, model.verdicts, ""
        except GeError as error:
            yield folder.name, (), str(error)


def verdict_lines(model: str, verdicts: Sequence[Verdict]) -> list[str]:
    """Return a table of a model's verdicts, under a line that names the model."""
    rows = [each.cells for each in verdicts]
    return [f"tested of {model} (docs/tested.md):", *table(COLUMNS, rows, names=len(COLUMNS))]
