"""What is kept of live sequences between their steps, and how each of them begins."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ge_backend.errors import InvalidRequest, ModelError
from ge_backend.model.config.sequence_batching import State
from ge_backend.tensors import Array, decode_bytes

__all__ = ["StateLayout", "initial_value", "row_bytes"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLayout:
    """What is kept, and for how many.

    Attributes:
        states: what a sequence carries from step to step.
        count: how many sequences live at most.
        batched: tensors begin with a batch dimension; else a run has one sequence.
        hidden: outputs that no client gets: those that are only states, and what is not declared.
    """

    states: tuple[State, ...]
    count: int
    batched: bool
    hidden: frozenset[str] = frozenset()


def initial_value(state: State) -> Array:
    """Return one row of a state as a sequence begins with it.

    A file that holds no texts for a state of texts is loaded, as by the host, whose own tests have
    one: sequences begin with empty texts then. Source: core r24.10, sequence_batch_scheduler.cc,
    kDataFile; server r24.10 qa/L0_sequence_batcher/test.sh, input_state_data.

    Raises:
        ModelError: its file is missing, or one of numbers has another size.
    """
    shape, dtype = state.initial_dims, state.dtype
    nothing = np.full(shape, b"" if dtype.name == "BYTES" else 0, dtype=dtype.numpy)
    if not state.initial_file:
        return nothing
    what = f"initial value of state {state.input!r}, {state.initial_file}, is not {dtype.name}"
    try:
        content = Path(state.initial_file).read_bytes()
        if dtype.name == "BYTES":
            return decode_bytes(content, shape)
        return np.frombuffer(content, dtype.numpy).reshape(shape)
    except InvalidRequest as error:
        log.warning("the %s %s: sequences begin with empty texts (%s)", what, list(shape), error)
        return nothing
    except (OSError, ValueError) as error:
        raise ModelError(f"the {what} {list(shape)}: {error}") from error


def row_bytes(state: State) -> int:
    """Return the bytes of a state's row; 0 where they change from step to step, or are texts."""
    if -1 in state.dims or state.dtype.name == "BYTES":
        return 0
    return math.prod(state.dims) * state.dtype.numpy.itemsize
