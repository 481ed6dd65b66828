"""The steps of an ensemble and the tensors between them, checked and put in order. Pure.

Source for what the host accepts: triton-inference-server/core src/ensemble_utils.cc: every tensor
is written once, by a step or by the client, and the order of the steps in the file means nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ge_backend.errors import ConfigError
from ge_backend.model.config.required import required
from ge_backend.tensors import DataType, Shape, agree

__all__ = ["Dag", "Port", "Step", "check_ports", "read_dag", "shape_text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One model of an ensemble.

    Attributes:
        version: the version that the ensemble names; -1 is the latest.
        inputs: the model's input -> the ensemble's tensor.
        outputs: the model's output -> the ensemble's tensor.
    """

    model: str
    version: int
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """What one side says of a tensor: a step's model, or the ensemble itself.

    Attributes:
        owner: who says it, for messages.
        dims: without the batch dimension; -1 is free.
        batched: whether it has a batch dimension in front of them.
    """

    owner: str
    name: str
    dtype: DataType
    dims: Shape
    batched: bool

    @property
    def all_dims(self) -> Shape:
        """The dims with the batch dimension."""
        return (-1, *self.dims) if self.batched else self.dims

    def describe(self) -> str:
        """Return `output 'y' of 'encoder' (FP32 [batch, -1, 32])`."""
        shown = shape_text(self.dims, batched=self.batched)
        return f"{self.name!r} of {self.owner} ({self.dtype.name} {shown})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dag:
    """An ensemble.

    Attributes:
        steps: in an order in which every step comes after those whose outputs it takes.
        inputs: tensors that clients send.
        outputs: tensors that clients get.
        max_inflight: how many requests may be at a step at once; 0 is no limit.
    """

    name: str
    steps: tuple[Step, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    max_inflight: int = 0

    def needed(self, wanted: Collection[str]) -> frozenset[int]:
        """Return the places of the steps that run for who gets these of the outputs.

        Those that lead to no output at all run for everybody, as in the host.
        Source: triton-inference-server/core src/ensemble_scheduler/ensemble_scheduler.cc,
        `EnsembleContext`, which prunes only what leads to outputs that are not asked for.
        """
        idle = set(range(len(self.steps))) - self._leading_to(self.outputs)
        spare = [tensor for place in idle for tensor in self.steps[place].outputs.values()]
        return frozenset(self._leading_to([*wanted, *spare]) | idle)

    def _leading_to(self, wanted: Iterable[str]) -> set[int]:
        found: set[int] = set()
        tensors = set(wanted)
        for place in range(len(self.steps) - 1, -1, -1):
            step = self.steps[place]
            if not tensors.isdisjoint(step.outputs.values()):
                found.add(place)
                tensors.update(step.inputs.values())
        return found


def read_dag(config: Mapping[str, Any]) -> Dag:
    """Return the ensemble that a model configuration (as the host's JSON gives it) describes.

    Raises:
        ConfigError: it is no ensemble, something has no name, a tensor is missing or written twice,
            or steps form a cycle.
    """
    name = str(config["name"])
    block = config.get("ensemble_scheduling")
    if not block or not block.get("step"):
        raise ConfigError(f"model {name!r} is no ensemble: its config.pbtxt has no step")
    steps = tuple(_step(name, given) for given in block["step"])
    inputs = _names(config.get("input", []), f"an input of ensemble {name!r}")
    outputs = _names(config.get("output", []), f"an output of ensemble {name!r}")
    _check_written(name, steps, inputs, outputs)
    return Dag(
        name=name,
        steps=_ordered(name, steps, inputs),
        inputs=inputs,
        outputs=outputs,
        max_inflight=int(block.get("max_inflight_requests", 0)),
    )


def check_ports(pairs: Iterable[tuple[Port, Port]]) -> None:
    """See that both ends of every tensor agree: (who writes it, who reads it).

    As the host has it (`ValidateTensorConsistency`), dims agree with their batch dimensions or
    without them: one side may have batches and the other none.

    Raises:
        ConfigError: type or dims differ; both ends are named.
    """
    for writer, reader in pairs:
        fits = agree(writer.dims, reader.dims) or agree(writer.all_dims, reader.all_dims)
        if writer.dtype.name != reader.dtype.name or not fits:
            raise ConfigError(f"{writer.describe()} does not fit {reader.describe()}")


def shape_text(dims: Shape, *, batched: bool) -> str:
    """Return `[batch, -1, 32]`, or without a batch dimension `[-1, 32]`."""
    return f"[{', '.join([*(['batch'] if batched else []), *map(str, dims)])}]"


def _names(tensors: Iterable[Mapping[str, Any]], what: str) -> tuple[str, ...]:
    return tuple(required(tensor, "name", what) for tensor in tensors)


def _step(ensemble: str, given: Mapping[str, Any]) -> Step:
    return Step(
        model=required(given, "model_name", f"a step of ensemble {ensemble!r}"),
        version=int(given.get("model_version", -1)),
        inputs={str(key): str(value) for key, value in given.get("input_map", {}).items()},
        outputs={str(key): str(value) for key, value in given.get("output_map", {}).items()},
    )


def _check_written(
    name: str, steps: Sequence[Step], inputs: Sequence[str], outputs: Sequence[str]
) -> None:
    """See that every tensor that is taken is written exactly once."""
    writers = dict.fromkeys(inputs, "the client")
    for step in steps:
        for output, tensor in step.outputs.items():
            if tensor in writers:
                raise ConfigError(
                    f"ensemble {name!r}: tensor {tensor!r} is written by {writers[tensor]} and by "
                    f"output {output!r} of step {step.model!r}; give one of them another name"
                )
            writers[tensor] = f"output {output!r} of step {step.model!r}"
    readers = [(f"input {i!r} of step {s.model!r}", t) for s in steps for i, t in s.inputs.items()]
    readers += [("the ensemble's output", tensor) for tensor in outputs]
    for reader, tensor in readers:
        if tensor not in writers:
            raise ConfigError(
                f"ensemble {name!r}: {reader} takes tensor {tensor!r}, which nobody writes; there "
                f"are {', '.join(sorted(writers))}"
            )


def _ordered(name: str, steps: Sequence[Step], inputs: Sequence[str]) -> tuple[Step, ...]:
    """Return the steps so that each comes after those it needs; in the file's order otherwise."""
    known, waiting, ordered = set(inputs), list(steps), []
    while waiting:
        ready = next((step for step in waiting if known.issuperset(step.inputs.values())), None)
        if ready is None:
            stuck = ", ".join(repr(step.model) for step in waiting)
            raise ConfigError(
                f"ensemble {name!r}: the steps {stuck} wait for each other's outputs; an ensemble "
                "has no cycles"
            )
        waiting.remove(ready)
        ordered.append(ready)
        known.update(ready.outputs.values())
    return tuple(ordered)
