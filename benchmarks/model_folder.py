"""The folder of a model, as the benchmarks write it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["parameter_lines", "write_model"]

RIVALS = Path(__file__).parent / "rivals"
NO_PARAMETERS: Mapping[str, str] = {}


def write_model(
    folder: Path,
    config: str,
    parameters: Mapping[str, str | int] = NO_PARAMETERS,
    *,
    code: Sequence[str] = (),
    graph: Mapping[str, object] | None = None,
) -> Path:
    """Write a model's configuration and what it runs; return its version folder.

    Args:
        folder: new.
        config: the text of config.pbtxt without the parameters.
        parameters: of the model.
        code: of a Python model, files of `rivals`; the first becomes `model.py`.
        graph: of the null device, as its `model.null` has it.
    """
    version = folder / "1"
    version.mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config + parameter_lines(parameters))
    for number, name in enumerate(code):
        shutil.copy(RIVALS / f"{name}.py", version / (f"{name}.py" if number else "model.py"))
    if graph is not None:
        (version / "model.null").write_text(json.dumps(graph))
    return version


def parameter_lines(values: Mapping[str, str | int]) -> str:
    """Return a line for each of a model's parameters."""
    return "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in values.items()
    )
