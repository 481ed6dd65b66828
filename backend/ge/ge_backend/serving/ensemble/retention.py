"""Which tensors between the steps of an ensemble stay on the device. Pure.

A tensor stays where the step that writes it and one that reads it run in the same memory, and its
rows can be copied there byte by byte: only their first dimension may vary, and what lies behind it
is as the device's copies want it. What another step reads, or a client, goes to the host as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ge_backend.executor.protocol.messages import TensorMemory
from ge_backend.model.config.model import TensorConfig
from ge_backend.model.layout.layout import InputLayout, Layout, OutputLayout
from ge_backend.serving.batching.device_tensor import fill_byte
from ge_backend.serving.ensemble.dag import Dag, Step

__all__ = ["NOTHING", "Place", "StepRetention", "step_retentions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One step, and where it runs.

    Attributes:
        inputs: what its configuration declares, by name.
        outputs: the same.
        memory: where its executor retains tensors; None where it retains none.
    """

    step: Step
    layout: Layout
    inputs: Mapping[str, TensorConfig]
    outputs: Mapping[str, TensorConfig]
    memory: TensorMemory | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRetention:
    """What of one step stays on the device.

    Attributes:
        inputs: its inputs that are taken from there.
        outputs: its outputs that are left there, and whether they go to the host as well.
        unrequested: its outputs that no step takes, where they need not come to the host.
        frees: it forgets the tensors of all steps in its memory. The first one that leaves any
            there does, so that their memory is free again when the next batch needs it.
    """

    inputs: frozenset[str] = frozenset()
    outputs: Mapping[str, bool] = field(default_factory=dict)
    unrequested: frozenset[str] = frozenset()
    frees: bool = False

    def hides(self, output: str) -> bool:
        """Whether an output may be missing on the host."""
        return output in self.outputs or output in self.unrequested


NOTHING = StepRetention()


def step_retentions(dag: Dag, places: Sequence[Place]) -> list[StepRetention]:
    """Return what stays of each step, in their order.

    Args:
        dag: the ensemble; its outputs go to clients.
        places: its steps.
    """
    taken: list[set[str]] = [set() for _ in places]
    left: list[dict[str, bool]] = [{} for _ in places]
    for at, writer in enumerate(places):
        for output, tensor in writer.step.outputs.items():
            readers = [
                (index, name)
                for index, place in enumerate(places)
                for name, source in place.step.inputs.items()
                if source == tensor
            ]
            staying = [
                (index, name)
                for index, name in readers
                if _stays(writer, output, places[index], name)
            ]
            for index, name in staying:
                taken[index].add(name)
            if staying:
                left[at][output] = tensor in dag.outputs or len(staying) < len(readers)
    firsts = _firsts(places, left)
    return [
        StepRetention(
            inputs=frozenset(inputs),
            outputs=outputs,
            unrequested=_unrequested(dag, place),
            frees=at in firsts,
        )
        for at, (place, inputs, outputs) in enumerate(zip(places, taken, left, strict=True))
    ]


def _unrequested(dag: Dag, place: Place) -> frozenset[str]:
    """Return the outputs that no step takes, no client, and none for the sizes of another."""
    if place.memory is None or not place.memory.name:
        return frozenset()
    wanted = set(dag.outputs).union(*(step.inputs.values() for step in dag.steps))
    lengths_outputs = {name for output in place.layout.outputs for name in output.lengths}
    return frozenset(
        output.name
        for output in place.layout.outputs
        if place.step.outputs.get(output.name) not in wanted and output.name not in lengths_outputs
    )


def _firsts(places: Sequence[Place], left: Sequence[Mapping[str, bool]]) -> set[int]:
    """Return for each memory the first step that leaves something there."""
    firsts: dict[str, int] = {}
    for at, (place, outputs) in enumerate(zip(places, left, strict=True)):
        if outputs and place.memory is not None:
            firsts.setdefault(place.memory.name, at)
    return set(firsts.values())


def _stays(writer: Place, output: str, reader: Place, name: str) -> bool:
    """Whether one step's input can be made of another one's output on the device."""
    given = next((item for item in writer.layout.outputs if item.name == output), None)
    taken = next((item for item in reader.layout.inputs if item.name == name), None)
    if given is None or taken is None or writer.memory is None or reader.memory is None:
        return False
    return (
        "" != writer.memory.name == reader.memory.name
        and writer.layout.batched
        and reader.layout.batched
        and not _reshaped(writer.outputs.get(output))
        and not _reshaped(reader.inputs.get(name))
        and _by_rows(given, writer.layout)
        and not taken.source
        and taken.common is None
        and given.dtype == taken.dtype
        and _fits(given, taken, reader.memory.alignment)
    )


def _reshaped(declared: TensorConfig | None) -> bool:
    return declared is not None and declared.dims != declared.graph_dims


def _by_rows(given: OutputLayout, layout: Layout) -> bool:
    """Whether an output is cut row by row, to sizes that are known beforehand."""
    known = all(dim >= 0 or axis >= 0 for dim, axis in zip(given.dims, given.axes, strict=True))
    return (
        known
        and given.dtype.name != "BYTES"
        and not (given.source or given.lengths or layout.concatenated)
    )


def _fits(given: OutputLayout, taken: InputLayout, alignment: int) -> bool:
    """Whether rows differ in their first dimension only, and copies begin where they may."""
    inner = given.dims[1:]
    if inner != taken.dims[1:] or -1 in inner or len(given.dims) != len(taken.dims):
        return False
    varies = -1 in (*given.dims[:1], *taken.dims[:1])
    unit = math.prod(inner if varies else given.dims) * given.dtype.itemsize
    return unit % alignment == 0 and (not varies or fill_byte(taken) >= 0)
