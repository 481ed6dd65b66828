"""What the fields of messages may hold, checked once, where a message is decoded.

A whole number is at least 0 and at most `MAX_NUMBER`; a text has no NUL and can be a file's name;
every other rule stands in `RULES`. So whatever a stranger sends, the code behind `wire.decode` sees
only numbers that it can add, multiply and index with. What a run's slots may be depends on what its
connection keeps, so `check_slots` is called where that is known.
"""

from __future__ import annotations

import types
from collections.abc import Mapping

from ge_backend.device.base import GraphSource
from ge_backend.errors import ProtocolError
from ge_backend.executor.protocol import messages
from ge_backend.executor.protocol.codec import MAX_ELEMENTS, Rule
from ge_backend.model.config.sequence_batching import State
from ge_backend.model.config.settings import MAX_THREADS
from ge_backend.tensors import DATA_TYPES, SHAPE_POLICIES, ShapePolicy, TensorSpec

__all__ = ["RULES", "USUAL", "check_slots"]

# Slots and rows cost memory each, before anything is computed.
MAX_ROWS = 2**20

USUAL = Rule()
_SHAPE = Rule(most=MAX_ELEMENTS, shape=True)
_DIMS = Rule(least=-1, most=MAX_ELEMENTS, shape=True)
_ROWS = Rule(most=MAX_ROWS)
_DTYPE = Rule(choices=tuple(DATA_TYPES))

RULES: Mapping[tuple[type, str], Rule] = types.MappingProxyType(
    {
        (messages.Compile, "shapes"): _SHAPE,
        (messages.Done, "states"): _SHAPE,
        (messages.Failed, "message"): Rule(words=True),
        (messages.KeepStates, "count"): _ROWS,
        (messages.Report, "defects"): Rule(words=True),
        (messages.Run, "starting"): _ROWS,
        (messages.Run, "priority"): Rule(least=1, most=3),
        (messages.Run, "rows"): _ROWS,
        (messages.Run, "slots"): _ROWS,
        (GraphSource, "threads"): Rule(most=MAX_THREADS),
        (messages.GatherInput, "dtype"): _DTYPE,
        (messages.GatherInput, "fill"): Rule(least=-1, most=255),  # a byte; -1: there is none
        (messages.GatherInput, "shape"): _SHAPE,
        (messages.RetainOutput, "dtype"): _DTYPE,
        (messages.RetainOutput, "shape"): _SHAPE,
        (messages.PrepareInput, "dtype"): _DTYPE,
        (messages.PrepareInput, "shape"): _SHAPE,
        (ShapePolicy, "fixed"): _SHAPE,
        (ShapePolicy, "runs"): Rule(choices=SHAPE_POLICIES),
        (State, "dims"): _DIMS,
        (State, "initial_dims"): _SHAPE,
        (TensorSpec, "dims"): _DIMS,
        # A reference's type and place are checked against the arena: `Segment.view`.
        (messages.TensorRef, "shape"): _SHAPE,
    }
)


def check_slots(run: messages.Run, count: int) -> None:
    """See that a run's rows lie in slots of the `count` that are kept, no two in one.

    Raises:
        ProtocolError: they do not.
    """
    slots = frozenset(run.slots)
    if any(slot >= count for slot in slots):
        raise ProtocolError(f"slots {list(run.slots)} of the {count} that are kept")
    if len(slots) < len(run.slots) or not slots.issuperset(run.starting):
        raise ProtocolError(
            f"slots {list(run.slots)}, {list(run.starting)} of them starting: each may come once"
        )
    if len(slots) > run.rows:
        raise ProtocolError(f"{len(slots)} slots, and a batch of {run.rows} rows")
