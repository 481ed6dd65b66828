"""What an accelerator must offer so that torch programs run on it: streams, graphs, memory.

`torch.cuda` and `torch.npu` give the same things the same names; `cuda.py` and `npu.py` say what
differs. Tests have another on the CPU, whose streams run later. What is done with it is in
`accelerator.py`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from ge_backend.device.base import MemoryInfo
from ge_backend.errors import DeviceUnavailable

__all__ = ["CapturedGraph", "Event", "Stream", "Vendor", "renamed"]


class Stream(Protocol):
    """A queue of work on the device; what is in it runs in order, and later."""

    def wait_event(self, event: Event) -> None:
        """Let what is queued from now on wait until the event has happened."""


class Event(Protocol):
    """A point in a stream."""

    def record(self, stream: Stream) -> None:
        """Let it happen when all that is queued in the stream so far is done."""

    def synchronize(self) -> None:
        """Wait until it has happened; other Python threads run meanwhile.

        Raises:
            RuntimeError: something that was queued before has failed.
        """


class CapturedGraph(Protocol):
    """Work that was recorded once, with its addresses, and is queued again as one."""

    def replay(self) -> None:
        """Queue it in the current stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """One opened device, through one of torch's own modules. Any thread may call its methods.

    Attributes:
        device: as torch calls it: `cuda:0`, `npu:1`.
        enter: makes it the calling thread's. A thread begins on device 0, and whatever asks torch
            there for a stream opens that one, too, and takes some of its memory for ever.
            Source: pytorch, THCPModule_setStream_wrap; torch_npu, NPUFunctions.cpp, GetDevice.
        module: `torch.cuda` or `torch.npu`; their parameters are given by keyword, for they come in
            another order.
        graph: its class of captured graphs.
        end_pool: ends what a capture has begun in the allocator, by the device's index and the
            pool.
        compile: lets the vendor's compiler make a program of its own for each shape that comes;
            raises Unsupported where it has none, DeviceUnavailable where that is not installed.
        no_memory, fault: found in the messages of errors that say so.
        puts_rows: whether it has the operator that `put` is.
        captures: whether it has captured graphs.
        abandoned: graphs whose capture failed.
    """

    device: str
    enter: Callable[[], object]
    module: Any
    graph: Callable[[], CapturedGraph]
    end_pool: Callable[[int, object], None]
    compile: Callable[[torch.nn.Module], None]
    no_memory: re.Pattern[str]
    fault: re.Pattern[str]
    puts_rows: bool = True
    captures: bool = True
    abandoned: list[CapturedGraph] = field(default_factory=list)

    @property
    def api(self) -> Any:
        """`module`, for a thread that has entered the device."""
        self.enter()
        return self.module

    def new_stream(self) -> Stream:
        """Return a stream that does not wait for the default one."""
        stream: Stream = self.api.Stream(device=self.device)
        return stream

    def new_event(self) -> Event:
        """Return an event that only orders work; it measures no time."""
        event: Event = self.api.Event()
        return event

    def new_pool(self) -> object:
        """Return a handle for the memory that captured graphs share."""
        pool: object = self.api.graph_pool_handle()
        return pool

    def on(self, stream: Stream) -> AbstractContextManager[object]:
        """Make a stream, and its device, the thread's current one."""
        context: AbstractContextManager[object] = self.api.stream(stream)
        return context

    def capture(self, work: Callable[[], None], *, pool: object, stream: Stream) -> CapturedGraph:
        """Record what `work` queues, in a stream that is current and empty.

        Its scratch memory comes from the pool. One capture at a time per process; other threads
        may go on using the device.

        Raises:
            RuntimeError: it captures none; or `work` does what cannot be recorded, such as waiting
                for a result, or the device has no streams or events left for another graph. Others
                can be captured, in another pool: this one may be unusable for captures from now on.
        """
        if not self.captures:
            raise RuntimeError(f"{self.device} captures no graphs")
        graph = self.graph()
        context = self.api.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local")
        try:
            with context:
                work()
        except BaseException:
            self._abandon(graph, pool)
            raise
        return graph

    def _abandon(self, graph: CapturedGraph, pool: object) -> None:
        """Undo what a capture that failed leaves behind.

        The allocator believes that it goes on, and would refuse to free anything from then on, and
        with it every later capture; and it keeps a pointer to the graph, which must not dangle.
        The allocator of host memory believes so too, in torch 2.11 and 2.12 and the torch_npu for
        them, and cannot be told: only another pool helps (`Streams.capture`).
        Source: pytorch 2.11, CUDAGraph::capture_end, which returns early; CUDACachingAllocator,
        captures_underway; CachingHostAllocator.h (pytorch #167507, mended by #180395).
        """
        self.abandoned.append(graph)
        with contextlib.suppress(RuntimeError):  # the capture was ended properly after all
            self.end_pool(torch.device(self.device).index, pool)

    def empty(self, nbytes: int) -> torch.Tensor:
        """Return device memory, UINT8 `[nbytes]`, its content undefined."""
        self.enter()
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Return host memory that the device reads and writes by itself, UINT8 `[nbytes]`."""
        self.enter()
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy in the current stream; leave both alone until it has run."""
        target.copy_(source, non_blocking=True)

    def pick(self, target: torch.Tensor, source: torch.Tensor, index: torch.Tensor) -> None:
        """Queue a copy of the source's rows of these numbers, INT64 `[rows]` on the device."""
        torch.index_select(source, 0, index, out=target)

    def put(self, target: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy of the source's rows into the target's rows of these numbers."""
        target.index_copy_(0, index, source)

    def fill(self, target: torch.Tensor, value: int) -> None:
        """Queue the writing of one value, over and over."""
        target.fill_(value)

    def synchronize(self) -> None:
        """Wait for everything that is queued on the device."""
        self.api.synchronize(self.device)

    def chip(self) -> str:
        """Return what the driver calls the kind of device: `NVIDIA H100 80GB HBM3`."""
        return str(self.api.get_device_name(self.device))

    def memory(self) -> MemoryInfo:
        """Return the device's memory now; what torch keeps for later tensors counts as used."""
        free, total = self.api.mem_get_info(self.device)
        return MemoryInfo(free_bytes=free, total_bytes=total)

    def allocated_bytes(self) -> int:
        """Return the bytes that tensors of this process have now."""
        return int(self.api.memory_allocated(self.device))

    def begin_peak(self) -> None:
        """Begin to watch for the largest value of `allocated_bytes`."""
        self.api.reset_peak_memory_stats(self.device)

    def peak_bytes(self) -> int:
        """Return the largest value since then."""
        return int(self.api.max_memory_allocated(self.device))

    def give_back(self) -> None:
        """Return memory that torch keeps for later tensors to the device."""
        self.api.empty_cache()

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether the error says that device memory is used up."""
        found = self.no_memory.search(str(error))
        return isinstance(error, torch.OutOfMemoryError) or bool(found)

    def is_fault(self, error: BaseException) -> bool:
        """Whether the error says that the device, or this process's hold of it, is broken."""
        return bool(self.fault.search(str(error)))


def renamed(bindings: Any, names: Sequence[str], library: str) -> Any:
    """Return what a library's private bindings have under one of the names that it had over time.

    Raises:
        DeviceUnavailable: under none of them: it is a version that was not tried.
    """
    for name in names:
        if hasattr(bindings, name):
            return getattr(bindings, name)
    raise DeviceUnavailable(
        f"{library} has none of {', '.join(names)}, without which no graph can be captured; "
        "docs/devices.md lists the versions that are known to fit"
    )
