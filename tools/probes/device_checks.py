"""What a torch graph must do on an accelerator, as checks that need neither pytest nor a network.

The contract tests say more, and run on every device; these are the ones without which figures of a
device mean nothing. `python -m tools.probes.gpu` runs them on a GPU, the unit tests on a device
that is not there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from benchmarks.rivals.forward import Rows, pad

from ge_backend.device.base import Graph, GraphSource, MemoryInfo
from ge_backend.engines.torch.accelerator import AcceleratorGraph
from ge_backend.engines.torch.streams import Streams
from ge_backend.tensors import Array

from .encoder_program import INPUTS, OUTPUT, Encoder, Size, export

__all__ = ["CHECKS", "Check", "CheckFailed", "Subject", "prepare"]

SIZE = Size(layers=2, width=64, heads=4, vocabulary=1000, longest=64)
# Rows and tokens, largest first, as warm-up prepares them.
SHAPES = ((16, 64), (8, 32), (4, 16), (1, 8))
TOLERANCE = 1e-4
LOW_TOLERANCE = 5e-2

Inputs = dict[str, Array]


class CheckFailed(Exception):
    """The device does not do what it must; the text says what came instead."""


class TorchDevice(Protocol):
    """A device that runs torch programs on streams of its own."""

    name: str

    @property
    def streams(self) -> Streams:
        """What its programs use together."""

    def load(self, source: GraphSource) -> Graph:
        """Load a program."""

    def memory(self) -> MemoryInfo:
        """Return the free and total memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A device, and files for it.

    Attributes:
        encoder: of which `model` is the export.
        data_dependent: a program whose output has a size that only the run tells.
    """

    device: TorchDevice
    encoder: Encoder
    model: Path
    data_dependent: Path

    def load(self, precision: str = "origin") -> AcceleratorGraph:
        """Load the encoder."""
        return _loaded(self.device, GraphSource.of(self.model, precision=precision))

    def captured(self) -> AcceleratorGraph:
        """Load the encoder and capture every shape."""
        graph = self.load()
        for shape in SHAPES:
            graph.prepare(inputs(shape))
        _expect("captured shapes", graph.counts.captured, len(SHAPES))
        return graph

    def truth(self, given: Inputs) -> Rows:
        """Return what the encoder gives on the CPU."""
        with torch.inference_mode():
            rows: Rows = self.encoder(*(torch.from_numpy(given[name]) for name in INPUTS)).numpy()
        return rows


class _Positive(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the elements above 0."""
        return x[x > 0]


def prepare(device: TorchDevice, folder: Path) -> Subject:
    """Write the files that the checks need."""
    encoder = Encoder(SIZE, seed=1)
    export(encoder, SIZE, folder / "encoder.pt2")
    free = ({0: torch.export.Dim("n", min=2, max=1024)},)
    program = torch.export.export(_Positive(), (torch.ones(4),), dynamic_shapes=free)
    torch.export.save(program, str(folder / "positive.pt2"))
    return Subject(
        device=device,
        encoder=encoder,
        model=folder / "encoder.pt2",
        data_dependent=folder / "positive.pt2",
    )


def inputs(shape: tuple[int, int], seed: int = 0) -> Inputs:
    """Return rows of different lengths, padded to the shape."""
    generator = np.random.default_rng(seed)
    rows, length = shape
    lengths = [length, *generator.integers(1, length, rows - 1, endpoint=True)]
    texts = [generator.integers(0, SIZE.vocabulary, size) for size in lengths]
    return dict(zip(INPUTS, pad(texts), strict=True))


def replays_compute_what_the_cpu_does(subject: Subject) -> None:
    """Every captured shape, again and again, in any order."""
    graph = subject.captured()
    for seed in range(3):
        for shape in (*SHAPES, *reversed(SHAPES)):
            given = inputs(shape, seed)
            _close(_run(graph, given), subject.truth(given), TOLERANCE)
    _expect("eager runs", graph.counts.eager, 0)
    graph.close()


def runs_allocate_nothing(subject: Subject) -> None:
    """After the first replay of each shape torch's allocator is asked for nothing more."""
    graph = subject.captured()
    batches = [inputs(shape) for shape in SHAPES]
    for given in batches:
        _run(graph, given)
    before = _allocations(subject.device.name)
    for given in batches * 3:
        _run(graph, given)
    _expect("allocations by twelve runs", _allocations(subject.device.name) - before, 0)
    graph.close()


def threads_do_not_disturb_each_other(subject: Subject) -> None:
    """Four threads, each in a shape of its own and all in one, at the same time."""
    graph = subject.captured()
    wrong: list[str] = []

    def work(number: int) -> None:
        for seed in range(20):
            given = inputs(SHAPES[number if seed % 2 else 0], seed=100 * number + seed)
            try:
                _close(_run(graph, given), subject.truth(given), TOLERANCE)
            except Exception as error:  # noqa: BLE001 - a thread's errors are reported by the check
                wrong.append(f"thread {number}: {error}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(SHAPES))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _expect("wrong answers", wrong, [])
    graph.close()


def shapes_that_were_not_prepared_run_eagerly(subject: Subject) -> None:
    """They are right too, and counted; captured ones stay right between them."""
    graph = subject.captured()
    for shape in ((3, 11), SHAPES[1], (5, 40)):
        given = inputs(shape)
        _close(_run(graph, given), subject.truth(given), TOLERANCE)
    _expect("eager runs", graph.counts.eager, 2)
    graph.close()


def what_cannot_be_captured_runs_eagerly(subject: Subject) -> None:
    """A program that must wait for the device is found out, and others are captured after it."""
    before = subject.captured()
    graph = _loaded(subject.device, GraphSource.of(subject.data_dependent))
    values = np.array([1, -2, 3, -4], np.float32)
    graph.prepare({"x": values})
    _expect("refused captures", graph.counts.refused, 1)
    (result,) = graph.run({"x": values}, {}, exclusive=False).values()
    _expect("elements above 0", result.tolist(), [1.0, 3.0])
    after = subject.captured()
    for other in (before, after):
        given = inputs(SHAPES[0])
        _close(_run(other, given), subject.truth(given), TOLERANCE)
        other.close()
    graph.close()


def a_failed_capture_spoils_nothing(subject: Subject) -> None:
    """One that breaks half-way: memory can be freed afterwards, and the next capture works."""
    streams, vendor = subject.device.streams, subject.device.streams.vendor
    with streams.computing():
        values = vendor.empty(8)
        try:
            streams.capture(lambda: values.sum().item())
        except RuntimeError:
            vendor.give_back()
        else:
            raise CheckFailed("a capture that waits for the device did not fail")
    graph = subject.captured()
    given = inputs(SHAPES[0])
    _close(_run(graph, given), subject.truth(given), TOLERANCE)
    graph.close()


def lower_precision_stays_close(subject: Subject) -> None:
    """In bf16 and fp16, captured and eager."""
    for precision in ("bf16", "fp16"):
        graph = subject.load(precision)
        graph.prepare(inputs(SHAPES[0]))
        for shape in (SHAPES[0], (3, 11)):
            given = inputs(shape)
            _close(_run(graph, given), subject.truth(given), LOW_TOLERANCE)
        _expect("replays", graph.counts.replays, 1)
        graph.close()


def closing_frees_the_memory(subject: Subject) -> None:
    """A graph that is loaded, captured and closed again and again leaves no memory behind."""
    subject.captured().close()
    before = subject.device.memory().free_bytes
    for _ in range(3):
        subject.captured().close()
    lost = before - subject.device.memory().free_bytes
    _expect("megabytes lost by three loads", max(0, lost) >> 20, 0)


Check = Callable[[Subject], None]

CHECKS: tuple[Check, ...] = (
    replays_compute_what_the_cpu_does,
    runs_allocate_nothing,
    threads_do_not_disturb_each_other,
    shapes_that_were_not_prepared_run_eagerly,
    what_cannot_be_captured_runs_eagerly,
    a_failed_capture_spoils_nothing,
    lower_precision_stays_close,
    closing_frees_the_memory,
)


def _loaded(device: TorchDevice, source: GraphSource) -> AcceleratorGraph:
    graph = device.load(source)
    if not isinstance(graph, AcceleratorGraph):
        raise CheckFailed(f"{device.name} loads torch programs as {type(graph).__name__}")
    return graph


def _run(graph: AcceleratorGraph, given: Inputs) -> Rows:
    rows: Rows = graph.run(given, {}, exclusive=False)[OUTPUT]
    return rows


def _allocations(device: str) -> int:
    """Return how often torch's allocator was asked for memory of a GPU; 0 on other devices."""
    if not device.startswith("cuda"):
        return 0
    return int(torch.cuda.memory_stats(device)["allocation.all.allocated"])


def _close(found: Rows, truth: Rows, tolerance: float) -> None:
    worst = float(np.abs(found - truth).max())
    if not worst <= tolerance:
        raise CheckFailed(f"{found.shape} differs by {worst:.1e}, allowed is {tolerance:.0e}")


def _expect(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise CheckFailed(f"{what}: {found}, expected {expected}")
