"""The host's `sequence_batching` block: controls, state, and how many sequences live at once.

The host schedules: it decides which requests of which sequences come together. What a model needs
to know of that is read here, once, and frozen.
Source: model_config.proto `ModelSequenceBatching`; what of it reaches a Python-based backend was
tested on tritonserver 2.51.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ge_backend.errors import ConfigError
from ge_backend.model.config.inside import inside
from ge_backend.model.config.required import required
from ge_backend.tensors import DataType, Shape, data_type

__all__ = ["Control", "SequenceBatching", "State"]

KINDS = ("START", "END", "READY", "CORRID")
# The host's own default, `max_sequence_idle_microseconds` of model_config.proto.
DEFAULT_IDLE_US = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One control input, which the host fills: `[1]` per request, a batch dimension in front.

    Attributes:
        kind: START, END, READY or CORRID.
    """

    name: str
    kind: str
    dtype: DataType


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One tensor that a sequence carries from step to step.

    Attributes:
        input: the graph's input that takes it.
        output: the graph's output that gives its next value.
        dims: without the batch dimension; -1 where its size may change from step to step.
        initial_dims: the same with every size known: the shape at START.
        initial_file: the first value, raw and in C order; "" is all zeros (BYTES: empty strings).
        axis: which dimension of the graph's tensors is the batch's, where they have one: an LSTM's
            `[2, batch, 128]` is `dims` [2, 128] and axis 1.
    """

    input: str
    output: str
    dtype: DataType
    dims: Shape
    initial_dims: Shape
    initial_file: str = ""
    axis: int = 0

    def of_rows(self, rows: int, dims: Shape) -> Shape:
        """Return the shape of this many rows of these sizes, as the graph has them."""
        return (*dims[: self.axis], rows, *dims[self.axis :])


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceBatching:
    """How a model takes part in sequences.

    Attributes:
        strategy: `direct` (a sequence owns a slot of the batch) or `oldest` (dynamic batches of
            the oldest requests).
        capacity: the most sequences that the host has alive in one instance at once.
        idle_s: seconds without a request after which the host gives a sequence up.
    """

    strategy: str
    capacity: int
    idle_s: float
    controls: tuple[Control, ...]
    states: tuple[State, ...]

    @property
    def slots(self) -> int:
        """How many sequences' states are kept.

        With `direct` the host says whose place a new sequence takes. With `oldest` it does not; so
        that no live one has to make room, as many may have vanished unsaid as live.
        """
        return self.capacity if self.strategy == "direct" else 2 * self.capacity

    @property
    def notes(self) -> tuple[str, ...]:
        """What in it is a danger, for the log.

        Where a CORRID control is a number, whatever its type and whether or not the graph has it,
        a text as the id can end a server before 2.54. Source: core eeb283a, in r25.01.
        """
        return tuple(
            f"control input {control.name!r} takes the correlation id as a number, with which a "
            "client that sends a text as its id can end a host before 2.54 (25.01); leave the "
            "control out if the graph does without, or let only numbers through"
            for control in self.controls
            if control.kind == "CORRID"
        )

    @classmethod
    def read(cls, config: Mapping[str, Any], *, directory: Path) -> SequenceBatching | None:
        """Read the block from the host's JSON; None where there is none.

        `initial_state/` lies beside the version folder, `directory`.

        Raises:
            ConfigError: something in it cannot be served; says what to write instead.
        """
        block = config.get("sequence_batching")
        if block is None:
            return None
        if block.get("iterative_sequence"):
            # Tested on 2.51: it refuses each step but a first one, and asks for no id.
            raise ConfigError(
                "sequence_batching says iterative_sequence, with which this host takes each "
                "request for a whole sequence that the model steps through by itself, and a graph "
                "runs once per request; remove it"
            )
        controls = tuple(
            _control(given, part)
            for given in block.get("control_input", [])
            for part in given.get("control", [])
        )
        idle_us = int(block.get("max_sequence_idle_microseconds", 0)) or DEFAULT_IDLE_US
        strategy = "oldest" if "oldest" in block else "direct"
        return cls(
            strategy=strategy,
            capacity=_capacity(config, block, strategy),
            idle_s=idle_us / 1e6,
            controls=controls,
            states=tuple(_state(given, directory) for given in block.get("state", [])),
        )


def _capacity(config: Mapping[str, Any], block: Mapping[str, Any], strategy: str) -> int:
    rows = max(1, int(config.get("max_batch_size", 0)))
    if strategy == "direct":
        return rows
    return int(block["oldest"].get("max_candidate_sequences", 0)) or rows


def _control(declared: Mapping[str, Any], part: Mapping[str, Any]) -> Control:
    name = required(declared, "name", "a control_input")
    kind = str(part.get("kind", "CONTROL_SEQUENCE_START")).removeprefix("CONTROL_SEQUENCE_")
    if kind not in KINDS:
        raise ConfigError(
            f"control input {name!r} has the kind {kind!r}; expected one of {', '.join(KINDS)}"
        )
    return Control(name=name, kind=kind, dtype=_control_type(name, kind, part))


def _control_type(name: str, kind: str, part: Mapping[str, Any]) -> DataType:
    if kind != "CORRID":
        flags = ("int32", "fp32", "bool")
        return data_type(next((t.upper() for t in flags if part.get(f"{t}_false_true")), "INT32"))
    dtype = data_type(str(part.get("data_type", "TYPE_UINT64")))
    if dtype.name == "BYTES":
        # Core pads the element to 132 bytes, and the Python backend then refuses every request.
        raise ConfigError(
            f"control input {name!r} takes the correlation id as TYPE_STRING, with which this "
            "host fails every request ('unexpected number of string elements'); leave the control "
            "out: string ids work without it"
        )
    return dtype


def _state(declared: Mapping[str, Any], directory: Path) -> State:
    dims = tuple(map(int, declared.get("dims", [])))
    initial: Mapping[str, Any] = next(iter(declared.get("initial_state", [])), {})
    # Triton's documentation: 1 for what varies, where nothing is said.
    initial_dims = tuple(map(int, initial.get("dims", []))) or tuple(abs(dim) for dim in dims)
    name = required(declared, "input_name", "a state")
    fits = len(initial_dims) == len(dims) and all(
        size == dim or (dim < 0 <= size) for dim, size in zip(dims, initial_dims, strict=False)
    )
    if not fits:
        raise ConfigError(
            f"state {name!r} has the dims {list(dims)} and begins with {list(initial_dims)}; give "
            "its initial_state the same number of dims, with a size for every -1"
        )
    dtype = data_type(required(declared, "data_type", "a state"))
    if dtype.name == "BYTES" and 0 in initial_dims:
        # The host counts one text where the state has none, and does not begin the sequence.
        raise ConfigError(
            f"state {name!r} holds texts and begins with {list(initial_dims)}, none at all, with "
            "which this host refuses every START ('expected 1 strings for inference input'); leave "
            "initial_state out to begin with one empty text, and pass over that in the graph"
        )
    file = str(initial.get("data_file", ""))
    return State(
        input=name,
        output=required(declared, "output_name", "a state"),
        dtype=dtype,
        dims=dims,
        initial_dims=initial_dims,
        initial_file=str(inside(directory.parent / "initial_state", file, "data_file"))
        if file
        else "",
    )
