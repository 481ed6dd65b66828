"""Which inputs are indices, such as tokens' ids, and of how many rows.

Of a row that a table does not have OpenVINO gives zeros, where other engines fail.
Source: OpenVINO's operation set, Gather-8; its older ones do not count from the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["index_ranges"]


def index_ranges(model: Any) -> dict[int, tuple[int, int]]:
    """Return the least and the largest value that inputs may have, by place, where a table says."""
    ranges: dict[int, tuple[int, int]] = {}
    for place, port in enumerate(model.inputs):
        for least, most in _ranges(port):
            known = ranges.get(place, (least, most))
            ranges[place] = max(least, known[0]), min(most, known[1])
    return ranges


def _ranges(port: Any) -> Iterator[tuple[int, int]]:
    """Give the range of each Gather that a tensor is an index of, also in another type."""
    for reader in port.get_target_inputs():
        operator = reader.get_node()
        if operator.get_type_name() == "Convert":
            yield from _ranges(operator.output(0))
        elif operator.get_type_name() == "Gather" and reader.get_index() == 1:
            table, axis = operator.input_value(0), operator.input_value(2).get_node()
            if table.get_partial_shape().is_static and axis.get_type_name() == "Constant":
                rows = table.get_shape()[int(axis.get_data())]
                counted = operator.get_type_info().version_id == "opset8"
                yield -rows if counted else 0, rows - 1
