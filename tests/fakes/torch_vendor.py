"""An accelerator for torch that is not there: it computes on the CPU, as late as it may.

Nothing that is queued in a stream happens before someone waits for it, and then only what has to:
a forgotten wait gives wrong results here each time, not now and then. Device and pinned memory
begin as garbage, and device memory may still be in use by the stream in which it was asked for: the
allocator gives it out again as soon as the tensor that had it is gone. A capture refuses what a real one refuses because it would have to wait.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import Counter, deque

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ge_backend.device.base import MemoryInfo
from ge_backend.engines.torch import cuda

GARBAGE = 0xAB
# What torch ends every error of CUDA with.
# Source: pytorch 2.11, c10/cuda/CUDAException.cpp and CUDADeviceAssertionHost.cpp.
ADVICE = """
Search for `cudaErrorX' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
NOT_PERMITTED = f"CUDA error: operation not permitted when stream is capturing{ADVICE}"


class Stream:
    def __init__(self, vendor, name):
        self.vendor = vendor
        self.name = name
        self.work = deque()
        self.behind = set()  # streams that this one has waited for

    def queue(self, step):
        with self.vendor.lock:
            self.work.append(step)

    def wait_event(self, event):
        mark = event.mark
        self.behind.add(mark.stream)
        self.queue(lambda: self.vendor.reach(mark))


class Mark:
    """One recording of an event; recording it again leaves those alone who wait for this one."""

    def __init__(self, stream):
        self.stream = stream
        self.done = False

    def happen(self):
        self.done = True


class Event:
    def __init__(self, vendor):
        self.vendor = vendor
        self.mark = None

    def record(self, stream):
        self.mark = Mark(stream)
        stream.queue(self.mark.happen)

    def synchronize(self):
        self.vendor.before_wait()
        self.vendor.reach(self.mark)


class Graph:
    def __init__(self, vendor, work, pool):
        self.vendor = vendor
        self.work = work
        self.pool = pool

    def replay(self):
        stream = self.vendor.current()
        self.vendor.count("replay", stream)
        self.vendor.pool_streams.setdefault(id(self.pool), set()).add(stream)
        assert len(self.vendor.pool_streams[id(self.pool)]) == 1, "one pool, two streams"
        stream.queue(self.work)


class NoWaiting(TorchDispatchMode):
    """Refuses operators whose result the host must see before it can go on."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        indices = args[1] if func is torch.ops.aten.index.Tensor else ()
        if func in {
            torch.ops.aten.nonzero.default,
            torch.ops.aten._local_scalar_dense.default,
        } or any(index is not None and index.dtype == torch.bool for index in indices):
            raise RuntimeError(NOT_PERMITTED)
        return func(*args, **(kwargs or {}))


class FakeVendor:
    """A `Vendor`.

    A capture that breaks leaves its pool with the allocator of host memory, as torch 2.11 and 2.12
    do: nothing more can be captured in that pool. Source: pytorch, CachingHostAllocator.h.

    Whoever waits for the whole device while another thread captures is refused, as is the capture.
    Source: CUDA C++ Programming Guide, "Prohibited and Unhandled Operations".

    Attributes:
        puts_rows: as `Vendor` has it.
        counts: (what, stream or "") -> how often: allocate, capture, copy, give_back, replay,
            and of tensors, not of rows' numbers (INT64), whatever the stream: upload, download.
        copied_bytes: of all copies.
        reserved_bytes: what the driver counts as taken: freed blocks too, until they are given back.
        capture_errors, replay_errors: raised by the next captures, and when replays are due.
        before_wait: called by who waits for an event, before.
        scratch_bytes: what every run seems to need.
    """

    device = "cpu"

    def __init__(self, *, total_bytes=1 << 30, scratch_bytes=4096):
        self.total_bytes = total_bytes
        self.scratch_bytes = scratch_bytes
        self.counts = Counter()
        self.copied_bytes = 0
        self.capture_errors = []
        self.replay_errors = []
        self.compiled = []
        self.pool_streams = {}
        self.broken_pools = []
        self.capturing = None
        self.puts_rows = True
        self.before_wait = lambda: None
        self.lock = threading.RLock()
        self.streams = []
        self.used_bytes = self.reserved_bytes = 0
        self._local = threading.local()
        self._pinned = set()  # addresses of blocks of host memory
        self._given = {}  # address of a block -> where its stream was when it was given out

    def enter(self):
        self._local.entered = True

    def count(self, what, stream=None):
        with self.lock:
            self.counts[what, stream.name if stream else ""] += 1

    def current(self):
        stream = getattr(self._local, "stream", None)
        assert stream is not None, "no stream is current"
        return stream

    def reach(self, mark):
        """Run the mark's stream up to the mark."""
        with self.lock:
            while not mark.done:
                assert mark.stream.work, "waits for what was never queued"
                mark.stream.work.popleft()()

    def new_stream(self):
        name = ("compute", "uploads", "downloads")[len(self.streams) % 3]
        self.streams.append(Stream(self, name))
        return self.streams[-1]

    def new_event(self):
        return Event(self)

    def new_pool(self):
        return object()

    @contextlib.contextmanager
    def on(self, stream):
        self.enter()
        former, self._local.stream = getattr(self._local, "stream", None), stream
        try:
            yield
        finally:
            self._local.stream = former

    def capture(self, work, *, pool, stream):
        assert self.current() is stream, "the stream that captures is not current"
        self.synchronize()
        self.count("capture", stream)
        if any(pool is broken for broken in self.broken_pools):
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        try:
            if self.capture_errors:
                raise self.capture_errors.pop(0)
            self.capturing = threading.get_ident()
            with NoWaiting():
                work()
            assert self.capturing is not None, "another thread waited for the device"
        except BaseException:
            self.broken_pools.append(pool)
            raise
        finally:
            self.capturing = None
        return Graph(self, lambda: self._replay(work), pool)

    def _replay(self, work):
        if self.replay_errors:
            raise self.replay_errors.pop(0)
        work()

    def empty(self, nbytes):
        if self.used_bytes + nbytes > self.total_bytes:
            raise RuntimeError(f"fake out of memory: tried to allocate {nbytes}")
        self.count("allocate")
        block = torch.full((nbytes,), GARBAGE, dtype=torch.uint8)
        self._pinned.discard(block.data_ptr())
        self.used_bytes += nbytes
        self.reserved_bytes = max(self.reserved_bytes, self.used_bytes)
        weakref.finalize(block, self._free, nbytes, block.data_ptr())
        if (stream := getattr(self._local, "stream", None)) is not None:
            self._given[block.data_ptr()] = mark = Mark(stream)
            stream.queue(mark.happen)
        return block

    def _free(self, nbytes, address):
        self.used_bytes -= nbytes
        self._given.pop(address, None)

    def pinned(self, nbytes):
        self.count("allocate")
        block = torch.full((nbytes,), GARBAGE, dtype=torch.uint8)
        self._pinned.add(block.data_ptr())
        return block

    def copy(self, target, source):
        stream = self.current()
        self.count("copy", stream)
        self.copied_bytes += target.nbytes
        if target.dtype == torch.uint8 and self._on_host(target) != self._on_host(source):
            self.count("upload" if self._on_host(source) else "download")
        for tensor in (target, source):
            mark = self._given.get(tensor.untyped_storage().data_ptr())
            ready = mark is None or mark.done or mark.stream in {stream, *stream.behind}
            assert ready, "the memory's last user may not be done with it"
        stream.queue(lambda: target.copy_(source))

    def _on_host(self, tensor):
        return tensor.untyped_storage().data_ptr() in self._pinned

    def pick(self, target, source, index):
        self.count("pick", self.current())
        self.current().queue(lambda: torch.index_select(source, 0, index, out=target))

    def put(self, target, index, source):
        assert self.puts_rows, "the chip has no such operator"
        self.count("put", self.current())
        self.current().queue(lambda: target.index_copy_(0, index, source))

    def fill(self, target, value):
        self.count("fill", self.current())
        self.current().queue(lambda: target.fill_(value))

    def synchronize(self):
        if self.capturing not in {None, threading.get_ident()}:
            self.capturing = None
            raise RuntimeError("operation not permitted when stream is capturing")
        with self.lock:
            for stream in self.streams:
                while stream.work:
                    stream.work.popleft()()

    def chip(self):
        return "a fake GPU"

    def memory(self):
        return MemoryInfo(
            free_bytes=self.total_bytes - self.reserved_bytes, total_bytes=self.total_bytes
        )

    def allocated_bytes(self):
        return self.used_bytes

    def begin_peak(self):
        pass

    def peak_bytes(self):
        return self.used_bytes + self.scratch_bytes

    def give_back(self):
        self.count("give_back")
        self.reserved_bytes = self.used_bytes

    def compile(self, module):
        self.compiled.append(module)

    def is_out_of_memory(self, error):
        return "fake out of memory" in str(error)

    def is_fault(self, error):
        return "fake fault" in str(error) or bool(cuda._FAULT.search(str(error)))


class PreparedDevice:
    """A device whose graphs prepare whatever they are asked to run, so that all of it is captured.

    The contract's tests mostly run what was not prepared; so they see the other way, too.
    """

    def __init__(self, device):
        self._device = device

    def __getattr__(self, name):
        return getattr(self._device, name)

    def load(self, source):
        return PreparedGraph(self._device.load(source))


class PreparedGraph:
    def __init__(self, graph):
        self._graph = graph

    def __getattr__(self, name):
        return getattr(self._graph, name)

    def run(self, inputs, outputs, *, exclusive):
        self._graph.prepare(inputs)
        return self._graph.run(inputs, outputs, exclusive=exclusive)
