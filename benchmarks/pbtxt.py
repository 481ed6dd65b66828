"""Lines of `config.pbtxt` that several benchmarks write."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["parameter_lines"]


def parameter_lines(values: Mapping[str, str | int]) -> str:
    """Return a line for each of a model's parameters."""
    return "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in values.items()
    )
