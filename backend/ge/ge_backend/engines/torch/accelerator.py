"""torch programs on an accelerator: captured once per bucket, replayed; eager where that fails."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from ge_backend.device.base import Graph, GraphSource
from ge_backend.device.failures import reason
from ge_backend.device.resident.buffers import NOTHING_BOUND, Bound, BufferMemory
from ge_backend.engines.torch.buffers import BoundCopies, TorchMemory, places
from ge_backend.engines.torch.capture import CapturedShape
from ge_backend.engines.torch.capture_check import CaptureCheck
from ge_backend.engines.torch.codec import TorchCodec
from ge_backend.engines.torch.device_errors import ENGINE_ERRORS, device_errors, meaning
from ge_backend.engines.torch.packing import Packing
from ge_backend.engines.torch.program import Program, load_program
from ge_backend.engines.torch.streams import WARM_UPS, Streams
from ge_backend.errors import ConfigError
from ge_backend.tensors import ANY_SHAPE, PREPARED, Array, Shape

__all__ = ["MODE", "AcceleratorGraph", "CaptureCounts"]

log = logging.getLogger(__name__)

# The options of `GraphSource` that begin so are ours.
OPTIONS = "torch."
MODE = "torch.mode"
MODES = ("graphs", "eager", "torchair")

Tensors = Mapping[str, torch.Tensor]
Key = tuple[tuple[str, Shape, str], ...]


@dataclass(slots=True)
class CaptureCounts:
    """What happened in one graph.

    Attributes:
        captured, refused: sets of shapes that were captured, and that could not be.
        replays: runs of captured shapes.
        eager: other runs, operator by operator: slower, above all for small inputs.
    """

    captured: int = 0
    refused: int = 0
    replays: int = 0
    eager: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, **changes: int) -> None:
        """Add to some counts at once."""
        with self.lock:
            for name, change in changes.items():
                setattr(self, name, getattr(self, name) + change)


class AcceleratorGraph(Graph):
    """One torch program on one device; see `Graph`.

    With the option `torch.mode`:

    `graphs` (the default): each prepared set of shapes is captured as a device graph with fixed
    buffers. Shapes that were not prepared, or that could not be captured, run eagerly, with a
    warning in the log and counted in `counts`.
    `eager`: nothing is captured, and rows need no padding to a bucket.
    `torchair`, NPUs only: Ascend's compiler makes a program for each prepared set of shapes.

    In `bf16` and `fp16` the weights are converted once, and the program runs under autocast;
    inputs and outputs keep their declared types, on the way to the device too.

    Args:
        source: what is loaded.
        streams: the device's own, shared by all its graphs.
        program: on the device already; None loads it from the source's file.
    """

    def __init__(
        self, source: GraphSource, streams: Streams, *, program: Program | None = None
    ) -> None:
        self._mode = _mode(source)
        self._streams, self._vendor = streams, streams.vendor
        self._path = source.path
        with device_errors(source.path, self._vendor):
            self._program = program or load_program(
                source.path, self._vendor.device, source.declared
            )
            self._codec = TorchCodec(self._program, source.path, source.precision)
            streams.settle()  # what has brought and converted the weights is another stream
        if self._mode == "torchair":
            self._vendor.compile(self._program.module)
        self.signature = self._program.signature
        self.shape_policy = ANY_SHAPE if self._mode == "eager" else PREPARED
        self.counts = CaptureCounts()
        self._capturing = self._mode == "graphs"
        self._captured: dict[Key, CapturedShape] = {}
        self._peaks: dict[Key, int] = {}  # of everything that was prepared
        self._warned = False

    def prepare(self, inputs: Mapping[str, Array]) -> None:
        """Run a few times and measure, then capture; see `Graph.prepare`.

        Of several sets of shapes the largest comes first, so that the others find
        room in the memory that it has taken for the pool.
        """
        if _key(inputs) in self._captured:
            return
        self._codec.check(inputs)
        with self._streams.computing():
            with self._errors():
                outputs = self._warm_up(inputs)
            if self._capturing:
                self._capture(inputs, outputs)

    def workspace_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return the peak of a run with these shapes, beside weights and inputs; see `Graph`.

        The captured graphs of a device share it: together they need as much as the largest one.
        """
        wanted = sorted(shapes.items())
        known = (peak for key, peak in self._peaks.items() if [(n, s) for n, s, _ in key] == wanted)
        return max(known, default=0)

    def run(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], *, exclusive: bool
    ) -> dict[str, Array]:
        """Run once; see `Graph.run`."""
        del exclusive  # one run computes at a time, and it has the device
        return self.run_bound(inputs, outputs, NOTHING_BOUND)

    def device_memory(self) -> BufferMemory:
        """Return the accelerator's; see `BoundGraph`."""
        return TorchMemory(self._streams, self._errors)

    def run_bound(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], bound: Bound
    ) -> dict[str, Array]:
        """Run once; see `BoundGraph`."""
        return self._run(inputs, outputs, bound, None)

    def first_rows(self, inputs: Mapping[str, Array], rows: int) -> dict[str, Array]:
        """Run once, and return the first rows of each output; the others do not cross the bus."""
        return self._run(inputs, {}, NOTHING_BOUND, rows)

    def _run(
        self,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
        bound: Bound,
        rows: int | None,
    ) -> dict[str, Array]:
        all_inputs = {**inputs, **_stand_ins(bound)}
        captured = self._captured.get(_key(all_inputs))
        with self._errors():
            if captured is not None:
                self.counts.add(replays=1)
                return captured.run(inputs, outputs, bound, rows)
            self._codec.check(all_inputs)
            self._count_eager(all_inputs)
            with self._streams.computing():
                results = self._run_eagerly(inputs, bound)
                return {
                    name: self._codec.array(name, _first(result, rows).cpu(), outputs.get(name))
                    for name, result in results.items()
                    if name not in bound.hidden
                }

    def close(self) -> None:
        """Free weights, buffers and graphs."""
        if self._mode == "graphs" and self.counts.eager:
            log.info("%s: %s", self._path, self.counts)
        with self._streams.computing():
            self._vendor.synchronize()
            self._captured.clear()
            del self._program
            self._vendor.give_back()

    def _warm_up(self, inputs: Mapping[str, Array]) -> Packing:
        """Run until nothing is new any more; note the last run's peak, and return its outputs."""
        results: Tensors = {}
        for _ in range(WARM_UPS):
            given = self._uploaded(inputs)
            self._vendor.begin_peak()
            before = self._vendor.allocated_bytes()
            results = self._call(given)
            self._peaks[_key(inputs)] = self._vendor.peak_bytes() - before
        return Packing(
            {
                name: (getattr(torch, self._codec.output_type(name, result).torch), result.shape)
                for name, result in results.items()
            }
        )

    def _capture(self, inputs: Mapping[str, Array], outputs: Packing) -> None:
        tensors = self._uploaded(inputs)
        kinds = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
        try:
            self._check_capture(tensors)
            captured = CapturedShape(
                self._streams, Packing(kinds), outputs, self._call_cloned, inputs
            )
        except ENGINE_ERRORS as error:
            self._refuse(inputs, error)
        else:
            self._captured[_key(inputs)] = captured
            self.counts.add(captured=1)

    def _check_capture(self, tensors: Tensors) -> None:
        with torch.no_grad(), CaptureCheck() as check:
            self._compute(tensors)
        if check.obstacles:
            raise RuntimeError(check.obstacles[0])

    def _refuse(self, inputs: Mapping[str, Array], error: Exception) -> None:
        """Go on without a graph for these shapes, and unless memory was short, for all later ones.

        What a program does that cannot be captured, it does in every shape; and streams that are
        used up do not come back.
        """
        if self._vendor.is_fault(error):
            raise meaning(error, self._path, self._vendor) from error
        self.counts.add(refused=1)
        self._capturing = self._vendor.is_out_of_memory(error)
        self._vendor.give_back()
        log.warning(
            "%s: %s cannot be captured, and %s eagerly, which is slower: %s",
            self._path,
            _described(inputs),
            "runs" if self._capturing else "runs, like all that is prepared from now on,",
            reason(error),
        )

    def _uploaded(self, inputs: Mapping[str, Array]) -> Tensors:
        return {
            name: self._codec.tensor(name, array).to(self._vendor.device)
            for name, array in inputs.items()
        }

    def _run_eagerly(self, inputs: Mapping[str, Array], bound: Bound) -> Tensors:
        """Return the outputs; what is queued is waited for, since the program is not queued."""
        if not bound.inputs and not bound.outputs:
            return self._call(self._uploaded(inputs))
        copies = BoundCopies.alone(self._vendor, bound)
        given = places(self._vendor, bound.inputs)
        copies.gather(given)
        self._streams.finish()
        results = self._call({**self._uploaded(inputs), **given})
        copies.scatter(results)
        self._streams.finish()
        return results

    def _call(self, tensors: Tensors) -> Tensors:
        """Run the program on device tensors, which it may write to."""
        with torch.inference_mode():
            return self._compute(tensors)

    def _compute(self, tensors: Tensors) -> Tensors:
        # A cache of converted weights would be freed after a capture that refers to it.
        kind = self._vendor.device.partition(":")[0]
        with self._codec.autocast(kind, cached=False):
            given = {name: self._codec.lowered(tensor) for name, tensor in tensors.items()}
            return self._program.call(given)

    def _call_cloned(self, tensors: Tensors) -> Tensors:
        """Run the program on device tensors that must stay as they are."""
        if self._program.writes_in_place:
            tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        return self._call(tensors)

    def _count_eager(self, inputs: Mapping[str, Array]) -> None:
        self.counts.add(eager=1)
        if self._mode == "graphs" and not self._warned and _key(inputs) not in self._peaks:
            self._warned = True
            log.warning(
                "%s: %s was not prepared and runs eagerly, which is slower; further such runs are "
                "only counted",
                self._path,
                _described(inputs),
            )

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except ENGINE_ERRORS as error:
            raise meaning(error, self._path, self._vendor) from error


def _mode(source: GraphSource) -> str:
    """Return how the program runs, from its options; those of other engines are left to them."""
    ours = {key: value for key, value in source.options if key.startswith(OPTIONS)}
    mode = ours.pop(MODE, MODES[0])
    if ours:
        raise ConfigError(f"parameters {', '.join(ours)} are unknown; torch models know {MODE}")
    if mode not in MODES:
        raise ConfigError(f"parameter {MODE!r} is {mode!r}; expected one of {', '.join(MODES)}")
    return mode


def _key(inputs: Mapping[str, Array]) -> Key:
    return tuple(sorted((name, array.shape, array.dtype.str) for name, array in inputs.items()))


def _stand_ins(bound: Bound) -> dict[str, Array]:
    """Return arrays of the bound inputs' shapes and types, whose values mean nothing."""
    return {
        name: np.broadcast_to(np.zeros((), item.dtype.numpy), item.shape)
        for name, item in bound.inputs.items()
    }


def _first(result: torch.Tensor, rows: int | None) -> torch.Tensor:
    return result if rows is None else result[:rows]


def _described(inputs: Mapping[str, Array]) -> str:
    return ", ".join(f"{name} {array.shape}" for name, array in inputs.items())
