"""A batch's way through an ensemble: step by step, each with its own plan, none through the host.

Between two steps tensors stay where the first one left them, on the device or in an arena: the next
step plans its own sub-batches over all rows that have come so far, in its own buckets. Of a tensor
on the device only the shape and the place are known here. If it is lost with its executor, or there
is no room for it, its requests go through all steps once more, and this time through the arenas.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ge_backend.errors import GeError, InvalidRequest, OutOfMemory, TensorsLost
from ge_backend.metrics import Recorder
from ge_backend.model.config.model import TensorConfig
from ge_backend.model.layout.layout import Layout
from ge_backend.serving.batching.device_tensor import BatchRetention, DeviceTensor
from ge_backend.serving.batching.pipeline import Pipeline
from ge_backend.serving.batching.progress import Reply, RunNote
from ge_backend.serving.batching.request import Request, check_request
from ge_backend.serving.ensemble.dag import Dag, Step
from ge_backend.serving.ensemble.retention import NOTHING, StepRetention
from ge_backend.serving.ensemble.shapes import as_read, for_graph, from_graph
from ge_backend.tensors import Array, Shape

__all__ = ["EnsembleRunner", "EnsembleStep"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleStep:
    """One step and what runs it.

    Attributes:
        inputs, outputs: what its configuration declares, by name.
        retention: what of it stays on the device.
    """

    node: Step
    pipeline: Pipeline
    inputs: Mapping[str, TensorConfig]
    outputs: Mapping[str, TensorConfig]
    retention: StepRetention = NOTHING


@dataclass(slots=True)
class _Known:
    """The tensors of one request that have come so far, by the ensemble's names.

    Attributes:
        wanted: those that its client gets.
        needed: the places of the steps that these depend on.
        runs: of each step so far, where that is asked for.
    """

    wanted: tuple[str, ...]
    needed: frozenset[int]
    arrays: dict[str, Array]
    on_device: dict[str, DeviceTensor] = field(default_factory=dict)
    runs: list[RunNote] = field(default_factory=list)


class EnsembleRunner:
    """Runs batches of an ensemble, one batch at a time, behind the face of a model's `Pipeline`.

    Args:
        dag: the ensemble.
        steps: its steps, in the same order; what runs them becomes the runner's.
        layout: what clients send and get.
        recorder: counts what comes, and the time of each step.
        most: how many requests go through the steps together; 0: all of a batch.
    """

    def __init__(
        self,
        dag: Dag,
        steps: Sequence[EnsembleStep],
        layout: Layout,
        recorder: Recorder,
        *,
        most: int = 0,
    ) -> None:
        self.steps = steps
        self.layout = layout
        self.recorder = recorder
        self.most = most
        self._dag = dag
        self._dims = {output.name: output.dims for output in layout.outputs}
        self._begin_with_rows = dict.fromkeys(dag.inputs, layout.batched)
        for step in steps:
            tensors = step.node.outputs.values()
            self._begin_with_rows |= dict.fromkeys(tensors, step.pipeline.layout.batched)
        self._numbers = itertools.count(1)
        self._through_host = [replace(step, retention=NOTHING) for step in steps]
        retains = any(step.retention.outputs for step in steps)
        self._repeated = (TensorsLost, OutOfMemory) if retains else ()

    def run(self, requests: Sequence[Request]) -> Iterator[Reply]:
        """Yield one reply per request; a request that a step refuses fails alone, and names it."""
        self.recorder.add("ge_batches_total")
        self.recorder.add("ge_requests_total", len(requests))
        self.recorder.add("ge_rows_total", sum([request.rows for request in requests]))
        everyone, most = range(len(requests)), self.most or max(1, len(requests))
        for start in range(0, len(requests), most):
            again: dict[int, GeError] = {}
            for reply in self._pass(everyone[start : start + most], requests, self.steps):
                if isinstance(reply.error, self._repeated):
                    again[reply.request] = reply.error
                elif again:  # what it shows is written over when the others are repeated
                    copies = {name: array.copy() for name, array in reply.outputs.items()}
                    yield replace(reply, outputs=copies)
                else:
                    yield reply
            if again:
                why = next(iter(again.values()))
                log.warning("%d requests go through all steps again: %s", len(again), why)
                yield from self._pass(list(again), requests, self._through_host)

    @property
    def stacks(self) -> bool:
        """Whether requests that are alike may come as one: each goes its own way."""
        return False

    @property
    def ready(self) -> bool:
        """Whether every step has a device that can be used."""
        return all(step.pipeline.ready for step in self.steps)

    @property
    def free_at_ns(self) -> float:
        """When the step that began last was expected to end; CLOCK_MONOTONIC."""
        return max(step.pipeline.free_at_ns for step in self.steps)

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of all devices that steps run on."""
        return tuple(dict.fromkeys(name for step in self.steps for name in step.pipeline.devices))

    def look_for_losses(self) -> None:
        """Give up the executors that have died since the last batch."""
        for step in self.steps:
            step.pipeline.look_for_losses()

    def sample_devices(self) -> None:
        """Record how the devices are now; may be called from any thread."""
        for step in self.steps:
            step.pipeline.sample_devices()

    def close(self) -> None:
        """Leave the executors."""
        for step in self.steps:
            step.pipeline.close()

    def _pass(
        self, positions: Sequence[int], requests: Sequence[Request], steps: Sequence[EnsembleStep]
    ) -> Iterator[Reply]:
        """Take these requests through the steps that each needs.

        Nothing of them is on the device afterwards.
        """
        known = self._begin(positions, requests)
        keys: list[int] = []
        with contextlib.ExitStack() as done:
            for place, step in enumerate(steps):
                started = time.perf_counter()
                own, retention = step.retention, None
                if own.outputs or own.unrequested:
                    retention = BatchRetention(own.outputs, self._numbers, keys, own.unrequested)
                if own.frees:
                    done.callback(step.pipeline.free_tensors, keys)
                takes = [at for at, tensors in known.items() if place in tensors.needed]
                if takes:
                    yield from self._run_step(step, takes, requests, known, retention)
                passed = time.perf_counter() - started
                self.recorder.add("ge_step_seconds_total", passed, step=step.node.model)
        for position, tensors in known.items():
            batched = self.layout.batched
            shown = {
                name: self._read(tensors.arrays, name, self._dims[name], batched=batched)
                for name in tensors.wanted
            }
            yield Reply(request=position, outputs=shown, runs=tensors.runs)

    def _begin(self, positions: Sequence[int], requests: Sequence[Request]) -> dict[int, _Known]:
        """Return what is known of each request before the first step."""
        asked = {requests[position].wanted for position in positions}
        wanted = {
            names: tuple(name for name in self._dag.outputs if name in names or not names)
            for names in asked
        }
        needed = {names: self._dag.needed(wanted[names]) for names in asked}
        return {
            position: _Known(
                wanted=wanted[request.wanted],
                needed=needed[request.wanted],
                arrays=dict(request.tensors),
            )
            for position in positions
            for request in (requests[position],)
        }

    def _run_step(
        self,
        step: EnsembleStep,
        positions: Sequence[int],
        requests: Sequence[Request],
        known: dict[int, _Known],
        retention: BatchRetention | None,
    ) -> Iterator[Reply]:
        """Add the step's outputs to the tensors of these requests; yield and drop what fails."""
        taken: list[Request] = []
        for position in positions:
            try:
                request, on_device = requests[position], self._on_device(step, known[position])
                taken.append(
                    check_request(
                        position,
                        self._given(step, known[position].arrays, on_device),
                        step.pipeline.layout,
                        deadline_ns=request.deadline_ns,
                        cancelled=request.cancelled,
                        on_device=on_device,
                    )
                )
            except GeError as error:
                del known[position]
                yield _failed(position, step, error)
        for reply in step.pipeline.run(taken, retention):
            position = taken[reply.request].index
            refusal = reply.error or self._add(step, reply, known[position])
            if refusal is not None:
                del known[position]
                yield _failed(position, step, refusal, reply.remaining_ns)

    def _add(self, step: EnsembleStep, reply: Reply, known: _Known) -> GeError | None:
        """Add what a step wrote to the tensors of its request; return why it cannot be."""
        try:
            known.arrays |= self._written(step, reply.outputs)
        except InvalidRequest as error:
            return error
        if reply.runs:
            known.runs += [replace(run, step=step.node.model) for run in reply.runs]
        for name, tensor in reply.on_device.items():
            known.on_device[step.node.outputs[name]] = tensor
        return None

    def _on_device(self, step: EnsembleStep, known: _Known) -> dict[str, DeviceTensor]:
        """Return the step's inputs that are on the device, by its own names."""
        return {
            name: known.on_device[tensor]
            for name, tensor in step.node.inputs.items()
            if name in step.retention.inputs and tensor in known.on_device
        }

    def _given(
        self, step: EnsembleStep, known: Mapping[str, Array], on_device: Container[str]
    ) -> dict[str, Array]:
        """Return a step's other inputs by its own names; optional ones may be missing."""
        batched = step.pipeline.layout.batched
        given = {}
        for name, tensor in step.node.inputs.items():
            if tensor in known and name not in on_device:
                declared = step.inputs[name]
                array = self._read(known, tensor, declared.dims, batched=batched)
                given[name] = for_graph(array, declared, batched=batched)
        return given

    def _read(
        self, known: Mapping[str, Array], tensor: str, dims: Shape, *, batched: bool
    ) -> Array:
        """Return a tensor as it is read by who has batches, or has none."""
        return as_read(known[tensor], dims, written=self._begin_with_rows[tensor], read=batched)

    def _written(self, step: EnsembleStep, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return a step's outputs by the ensemble's names; those that only stay are not there."""
        batched = step.pipeline.layout.batched
        return {
            tensor: from_graph(outputs[name], step.outputs[name], batched=batched)
            for name, tensor in step.node.outputs.items()
            if name in outputs or not step.retention.hides(name)
        }


def _failed(position: int, step: EnsembleStep, error: GeError, remaining_ns: float = 0.0) -> Reply:
    named = type(error)(f"step {step.node.model!r}: {error}")
    return Reply(request=position, outputs={}, error=named, remaining_ns=remaining_ns)
