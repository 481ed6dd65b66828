"""A batch's way through an ensemble: step by step, each with its own plan, none through the host.

Between two steps tensors stay where the first one left them, in an arena, and unpadded: the next
step plans its own sub-batches over all rows that have come so far, in its own buckets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ge_backend.config import TensorConfig
from ge_backend.ensemble.dag import Dag, Step
from ge_backend.errors import GeError
from ge_backend.flow.layout import Layout
from ge_backend.flow.pipeline import Reply
from ge_backend.flow.request import Request, check_request
from ge_backend.metrics import Recorder
from ge_backend.tensors import Array

__all__ = ["Runner", "Stage"]


class Runs(Protocol):
    """What a step runs in; `Pipeline` is one."""

    @property
    def layout(self) -> Layout:
        """The step's tensors."""

    def run(self, requests: Sequence[Request]) -> Iterator[Reply]:
        """Yield one reply per request; outputs hold until the next batch."""

    def close(self) -> None:
        """Leave the executor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step and what runs it.

    Attributes:
        inputs, outputs: what its configuration declares, by name.
    """

    step: Step
    runs: Runs
    inputs: Mapping[str, TensorConfig]
    outputs: Mapping[str, TensorConfig]


class Runner:
    """Runs batches of an ensemble, one batch at a time.

    Args:
        dag: the ensemble.
        stages: its steps, in the same order.
        batched: tensors begin with a batch dimension.
        recorder: counts the time of each step.
    """

    def __init__(
        self, dag: Dag, stages: Sequence[Stage], recorder: Recorder, *, batched: bool
    ) -> None:
        self._dag = dag
        self._stages = stages
        self._recorder = recorder
        self._batched = batched

    def run(self, requests: Sequence[Request]) -> Iterator[Reply]:
        """Yield one reply per request; a request that a step refuses fails alone, and names it."""
        tensors = {position: dict(request.tensors) for position, request in enumerate(requests)}
        for stage in self._stages:
            started = time.perf_counter()
            yield from self._run_stage(stage, requests, tensors)
            passed = time.perf_counter() - started
            self._recorder.add("ge_step_seconds_total", passed, step=stage.step.model)
        for position, known in tensors.items():
            outputs = {name: known[name] for name in self._dag.outputs}
            yield Reply(request=position, outputs=outputs)

    def close(self) -> None:
        """Leave the executors."""
        for stage in self._stages:
            stage.runs.close()

    def _run_stage(
        self, stage: Stage, requests: Sequence[Request], tensors: dict[int, dict[str, Array]]
    ) -> Iterator[Reply]:
        """Add the step's outputs to the tensors of each request; yield and drop what fails."""
        taken: list[Request] = []
        for position in list(tensors):
            try:
                given = self._given(stage, tensors[position])
                request = requests[position]
                taken.append(
                    check_request(
                        position,
                        given,
                        stage.runs.layout,
                        deadline_ns=request.deadline_ns,
                        cancelled=request.cancelled,
                    )
                )
            except GeError as error:
                del tensors[position]
                yield _failed(position, stage, error)
        for reply in stage.runs.run(taken):
            position = taken[reply.request].index
            if reply.error is not None:
                del tensors[position]
                yield _failed(position, stage, reply.error)
            else:
                tensors[position] |= self._written(stage, reply.outputs)

    def _given(self, stage: Stage, known: Mapping[str, Array]) -> dict[str, Array]:
        """Return a step's inputs by their own names; optional ones may be missing."""
        return {
            name: self._shaped(known[tensor], stage.inputs.get(name), _graph_dims)
            for name, tensor in stage.step.inputs.items()
            if tensor in known
        }

    def _written(self, stage: Stage, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return a step's outputs by the ensemble's names."""
        return {
            tensor: self._shaped(outputs[name], stage.outputs.get(name), _dims)
            for name, tensor in stage.step.outputs.items()
        }

    def _shaped(
        self, array: Array, declared: TensorConfig | None, wanted: Callable[[TensorConfig], Dims]
    ) -> Array:
        """Return an array as the other side of a `reshape` sees it: the host is not there to."""
        if declared is None or declared.dims == declared.graph_dims:
            return array
        rows = array.shape[:1] if self._batched else ()
        return array.reshape(rows + wanted(declared))


Dims = tuple[int, ...]


def _dims(declared: TensorConfig) -> Dims:
    return declared.dims


def _graph_dims(declared: TensorConfig) -> Dims:
    return declared.graph_dims


def _failed(position: int, stage: Stage, error: GeError) -> Reply:
    named = type(error)(f"step {stage.step.model!r}: {error}")
    return Reply(request=position, outputs={}, error=named)
