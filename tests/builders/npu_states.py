"""A model with state for a simulated NPU, and what is kept of it."""

from __future__ import annotations

from dataclasses import replace

from acl_simulator import BatchGears
from ge_backend.device.resident.state_layout import StateLayout
from ge_backend.model.config.sequence_batching import State
from ge_backend.tensors import DATA_TYPES, Signature

WIDTH = 16  # 64 bytes of FP32: what may be copied on the device
# For `acl_simulator.Accumulate`: y and h_next are x + h, n counts.
GEARS = BatchGears({"x": (-1, WIDTH), "h": (-1, WIDTH), "n": (-1, 1)}, [(1,), (4,)])


def state(name: str, width: int, output: str = "", file: str = "") -> State:
    """Return a state that has the input `name` and, if none is given, the output `name`_next."""
    return State(
        input=name,
        output=output or f"{name}_next",
        dtype=DATA_TYPES["FP32"],
        dims=(width,),
        initial_dims=(width,),
        initial_file=file,
    )


def state_layout(
    signature: Signature, *states: State, count: int = 8, batched: bool = True
) -> StateLayout:
    """Return what is kept under a graph's own names of the outputs, all of it hidden."""
    names = {spec.name.rpartition(":")[2]: spec.name for spec in signature.outputs}
    wanted = states or (state("h", WIDTH), state("n", 1))
    renamed = tuple(replace(one, output=names[one.output]) for one in wanted)
    hidden = frozenset(one.output for one in renamed)
    return StateLayout(states=renamed, count=count, batched=batched, hidden=hidden)
