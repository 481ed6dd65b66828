"""Whether an output begins with the rows of its run, which names in a file need not tell."""

from __future__ import annotations

from collections.abc import Mapping

from ge_backend.errors import ConfigError
from ge_backend.model.layout.layout import Layout, OutputLayout
from ge_backend.tensors import Shape

__all__ = ["check_output_rows", "lacks_rows"]


def check_output_rows(layout: Layout, rows: int, shapes: Mapping[str, Shape]) -> None:
    """See that outputs of a run had its rows first: else one request gets what is another's.

    Raises:
        ConfigError: one had not.
    """
    for output in layout.outputs if layout.batched else ():
        lack = lacks_rows(output, rows, shapes.get(output.name, (rows,)))
        if lack:
            raise ConfigError(lack)


def lacks_rows(output: OutputLayout, rows: int, shape: Shape) -> str:
    """Return what is to be changed where an output does not begin with its run's rows, else ""."""
    if output.source or shape[:1] == (rows,):
        return ""
    return (
        f"output {output.name!r} has the shape {list(shape)} in a run of {rows} "
        f"{'row' if rows == 1 else 'rows'}: its first dimension is not the rows of requests; "
        "transpose it in the graph, or set max_batch_size: 0"
    )
