"""Recurrent operators that are told how long each row is.

In a model for free shapes OpenVINO computes all steps of a row, its padding too, whatever
`sequence_lengths` says; only where every size is known do lengths count (seen on 2026.4, for
LSTMSequence, GRUSequence and RNNSequence). So those operators are replaced by loops that say it
themselves: behind its last step a row's state stays as it is, and its output is 0.
Source: OpenVINO's operation set, LSTMSequence-5; ONNX's LSTM, GRU and RNN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino
from openvino import opset13
from openvino.op import tensor_iterator

from ge_backend.engines.ov.nodes import replace, whole
from ge_backend.errors import Unsupported
from ge_backend.tensors import Array

__all__ = ["STATES", "count_lengths"]

# Inputs of such an operator: rows [B, T, I], states [B, D, H], of an LSTM two of them, lengths [B],
# and weights [D, ...]. D is its directions, H the size of a state.
STATES = {"LSTMSequence": 2, "GRUSequence": 1, "RNNSequence": 1}
CELLS = {
    "LSTMSequence": opset13.lstm_cell,
    "GRUSequence": opset13.gru_cell,
    "RNNSequence": opset13.rnn_cell,
}
# Attributes that a cell has as the operator has them.
KEPT = ("hidden_size", "activations", "activations_alpha", "activations_beta", "clip")


def count_lengths(operator: Any) -> None:
    """Replace a recurrent operator by loops, where it is told how long rows are.

    Raises:
        Unsupported: its weights are computed by the graph.
    """
    if _has_lengths(operator):
        _replace(operator)


def _has_lengths(operator: Any) -> bool:
    """Whether lengths come from a tensor or from the file, and not from the shape of the rows."""
    lengths = operator.input_value(1 + STATES[operator.get_type_name()])
    sources = _sources(lengths)
    if sources:
        return "Parameter" in sources
    steps = operator.input_value(0).get_partial_shape()[1]
    (known,) = _constants(operator, [lengths])
    return not (steps.is_static and np.all(known >= steps.get_length()))


def _sources(port: Any) -> set[str]:
    """Return of what a tensor is computed: `Parameter` is a tensor, `ShapeOf` a shape."""
    found, seen, waiting = set[str](), set[str](), [port.get_node()]
    while waiting:
        operator = waiting.pop()
        if operator.get_name() in seen:
            continue
        seen.add(operator.get_name())
        if operator.get_type_name() in ("Parameter", "ShapeOf"):
            found.add(operator.get_type_name())
        else:
            waiting += [value.get_node() for value in operator.input_values()]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Direction:
    """What one direction of an operator computes: weights by place, and the way through time."""

    operator: Any
    weights: Sequence[Array]
    backwards: bool

    def outputs(self, rows: Any, states: Sequence[Any], lengths: Any) -> list[Any]:
        """Return all states [B, T, H], and the last ones [B, H]."""
        steps = opset13.gather(opset13.shape_of(rows, "i64"), whole(1), whole(0))
        made = tensor_iterator()
        at, step, still, *held = self._parameters(rows, len(states))
        present = opset13.less(at, still)  # [B, 1]
        given = opset13.squeeze(step, whole([1]))
        found = self._cell(given, held).outputs()
        new = [opset13.select(present, one, old) for one, old in zip(found, held, strict=True)]
        out = opset13.unsqueeze(
            opset13.select(present, found[0], opset13.constant(np.float32(0))), whole([1])
        )
        ends = [opset13.result(one) for one in (*new, out)]
        made.set_body(openvino.Model(ends, [at, step, still, *held]))
        first, stride, last = (-1, -1, 0) if self.backwards else (0, 1, -1)
        times = opset13.range(whole(0), steps, whole(1), "i64")
        made.set_sliced_input(at, times.output(0), first, stride, 1, last, 0)
        made.set_sliced_input(step, rows, first, stride, 1, last, 1)
        made.set_invariant_input(still, lengths)
        for old, one, result in zip(held, states, ends, strict=False):
            made.set_merged_input(old, one, result.input_value(0))
        *last_ones, out = (result.input_value(0) for result in ends)
        every = made.get_concatenated_slices(out, first, stride, 1, last, 1)
        found = [every, *(made.get_iter_value(one, -1) for one in last_ones)]
        made.validate_and_infer_types()
        return found

    def _parameters(self, rows: Any, states: int) -> list[Any]:
        kind, size = rows.get_element_type(), self.operator.get_attributes()["hidden_size"]
        width = rows.get_partial_shape()[2]
        return [
            opset13.parameter(openvino.PartialShape([1]), openvino.Type.i64),
            opset13.parameter(openvino.PartialShape([-1, 1, width]), kind),
            opset13.parameter(openvino.PartialShape([-1, 1]), openvino.Type.i64),
            *(opset13.parameter(openvino.PartialShape([-1, size]), kind) for _ in range(states)),
        ]

    def _cell(self, given: Any, held: Sequence[Any]) -> Any:
        attributes = self.operator.get_attributes()
        how = {name: attributes[name] for name in KEPT}
        if "linear_before_reset" in attributes:
            how["linear_before_reset"] = attributes["linear_before_reset"]
        weights = map(opset13.constant, self.weights)
        return CELLS[self.operator.get_type_name()](given, *held, *weights, **how)


def _replace(operator: Any) -> None:
    count = STATES[operator.get_type_name()]
    rows, *states = operator.input_values()[: 1 + count]
    lengths = opset13.unsqueeze(opset13.convert(operator.input_value(1 + count), "i64"), whole([1]))
    weights = _constants(operator, operator.input_values()[2 + count :])
    way = operator.get_attributes()["direction"]
    ways = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[way]
    found = [
        _Direction(
            operator=operator, weights=[one[at] for one in weights], backwards=backwards
        ).outputs(
            rows,
            [opset13.gather(state, whole(at), whole(1)).output(0) for state in states],
            lengths.output(0),
        )
        for at, backwards in enumerate(ways)
    ]
    replace(
        operator,
        [
            opset13.concat([opset13.unsqueeze(part, whole([1])) for part in parts], 1).output(0)
            for parts in zip(*found, strict=True)
        ],
    )


def _constants(operator: Any, ports: Sequence[Any]) -> list[Array]:
    """Return weights as numbers, which files may hold in parts or in another order."""
    try:
        made = openvino.Core().compile_model(
            openvino.Model([opset13.result(port) for port in ports], []),
            "CPU",
            {"INFERENCE_PRECISION_HINT": "f32"},
        )
    except RuntimeError as error:
        raise Unsupported(
            f"{operator.get_friendly_name()!r} is told how long rows are, and its weights are "
            "computed by the graph: OpenVINO would compute padding as data"
        ) from error
    results = made([])
    return [np.array(results[port]) for port in made.outputs]
