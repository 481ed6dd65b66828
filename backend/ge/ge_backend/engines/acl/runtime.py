"""`acl` and `acl.rt`, as far as they are used: typed, and every return code checked at once.

pyACL parses its arguments in C: positional only, pointers and sizes as `int` and nothing else, and
a result comes before the return code. The text of an error belongs to the thread that caused it and
is gone once read, so it is fetched in the call that failed. What gives memory or handles back never
raises: it runs where an error is on its way already, and logs instead.
Source: the open pyACL source (cann/runtime, python/pyACL).
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from ge_backend.device.base import MemoryInfo
from ge_backend.device.health import Health
from ge_backend.device.imports import importing
from ge_backend.engines.acl.codes import (
    ALIGNMENT,
    COPY_ON_DEVICE,
    COPY_TO_DEVICE,
    COPY_TO_HOST,
    DDR_MEMORY,
    HBM_MEMORY,
    HUGE_PAGES_FIRST,
    REPEAT_INITIALISE,
    failure,
)
from ge_backend.errors import DeviceFault, DeviceUnavailable, GraphFailed

__all__ = ["AclRuntime", "chip_name"]

log = logging.getLogger(__name__)

UNITS = ("cube", "vector", "aicpu")
NORMAL = 0  # of `rt.query_device_status`
OF_THREAD = 0  # `level` of `rt.get_last_error`


class AclRuntime:
    """The process-wide part of ACL, and devices, contexts, streams, memory and copies.

    Every method may raise `OutOfMemory`, `DeviceFault` or, for all other codes, `GraphFailed`;
    `close_…`, `free…`, `abandon_stream`, `return_to_context` and `finalise` do not.

    Args:
        acl: the module, or what behaves like it.
    """

    def __init__(self, acl: Any) -> None:
        self._acl = acl
        self._rt = acl.rt
        self._asked_with = 0, 0
        self._last_error = None if hasattr(acl.rt, "get_last_error") else _last_error()

    def check(self, call: str, code: int, *, cause: bool = False) -> None:
        """Raise what a return code says, unless it is 0; in the thread that made the call.

        `cause`: the thread's last error was taken before the call, so that it now is the call's.
        """
        if code:
            below = self.take_last_error() if cause else 0
            raise failure(call, int(code), self._acl.get_recent_err_msg(), below)

    def take_last_error(self) -> int:
        """Return and forget the code of this thread's last failure in CANN's runtime; 0 for none.

        Success does not reset it, and other layers take it for their own: RuntimeV2 drops it, and
        torch_npu puts it into what it says of any error. Always 0 where CANN lacks the call, as
        versions before 8.5 may; torch_npu has none to say then, either.
        Source: CANN runtime, aclrtGetLastError; torch_npu, NPUException.h (NPU_CHECK_ERROR),
        AclInterface.cpp (AclrtPeekAtLastError).
        """
        if self._last_error is None:
            return int(self._rt.get_last_error(OF_THREAD))
        return self._last_error(OF_THREAD)

    def note(self, call: str, code: int) -> None:
        """Log what a return code says, unless it is 0."""
        if code:
            log.error("%s", failure(call, int(code), self._acl.get_recent_err_msg()))

    def initialise(self, config: str = "") -> bool:
        """Begin; return whether it is ours to end, or another library's of this process.

        `config` is a JSON file of ACL's for dumps, profiling and so on; "" for none.
        """
        code = self._acl.init(config) if config else self._acl.init()
        if code == REPEAT_INITIALISE:
            self._acl.get_recent_err_msg()  # it would be taken for the next error's
            if config:
                log.warning("%s has no effect: ACL was initialised before in this process", config)
            return False
        self.check("init", code)
        return True

    def finalise(self) -> None:
        """End what `initialise` began."""
        self.note("finalize", self._acl.finalize())

    def chip(self) -> str:
        """Return the chip's name, as `atc --soc_version` takes it; "" if it is not known."""
        return str(self._acl.get_soc_name() or "")

    def device_count(self) -> int:
        """Return how many devices this process may open."""
        count, code = self._rt.get_device_count()
        self.check("rt.get_device_count", code)
        return int(count)

    def open_device(self, index: int) -> None:
        """Take a device; pair with `close_device`."""
        self.check("rt.set_device", self._rt.set_device(int(index)))

    def close_device(self, index: int) -> None:
        """Give a device back, with whatever this process still holds there."""
        self.note("rt.reset_device", self._rt.reset_device(int(index)))

    def current_context(self) -> int:
        """Return this thread's context: of the device that it opened last, the primary one.

        That is the one which torch_npu uses, too; a context of our own would take its place in
        this thread without torch_npu noticing (csrc/core/npu/NPUFunctions.cpp, SetDevice).
        """
        context, code = self._rt.get_context()
        self.check("rt.get_context", code)
        return int(context)

    def use_context(self, context: int) -> None:
        """Make a context this thread's current one."""
        self.check("rt.set_context", self._rt.set_context(int(context)))

    def return_to_context(self, context: int) -> None:
        """Do the same to give back what is in a context: go on where it cannot be done."""
        self.note("rt.set_context", self._rt.set_context(int(context)))

    def create_stream(self) -> int:
        """Return a stream of the current context."""
        stream, code = self._rt.create_stream()
        self.check("rt.create_stream", code)
        return int(stream)

    def close_stream(self, stream: int) -> None:
        """Destroy a stream on which nothing is in flight."""
        self.note("rt.destroy_stream", self._rt.destroy_stream(int(stream)))

    def abandon_stream(self, stream: int) -> None:
        """Destroy a stream with whatever is in flight on it: its device has failed."""
        self.note("rt.destroy_stream_force", self._rt.destroy_stream_force(int(stream)))

    def synchronise(self, stream: int, timeout_ms: int) -> None:
        """Wait until a stream has done its work, and learn how that went.

        Raises:
            DeviceFault: it failed, or was not done in time and still goes on.
        """
        code = self._rt.synchronize_stream_with_timeout(int(stream), int(timeout_ms))
        self.check("rt.synchronize_stream_with_timeout", code)

    @contextlib.contextmanager
    def ready_to_ask(self) -> Iterator[None]:
        """Hold what `answers` gives the device to do: when it is asked it may have none left."""
        with contextlib.ExitStack() as taken:
            address = self.allocate(ALIGNMENT)
            taken.callback(self.free, address)
            stream = self.create_stream()
            taken.callback(self.abandon_stream, stream)  # first, so that nothing is in flight
            self._asked_with = address, stream
            yield

    def answers(self, timeout_ms: int) -> bool:
        """Whether the device still works: it is given a little to do.

        Used within `ready_to_ask`.

        Raises:
            OutOfMemory: it lacks memory for that, so whether it answers is not known.
        """
        address, stream = self._asked_with
        try:
            self.fill(address, 0, ALIGNMENT, stream)
            self.synchronise(stream, timeout_ms)
        except (DeviceFault, GraphFailed):
            return False
        return True

    def allocate(self, nbytes: int) -> int:
        """Return the address of device memory, at a 64-byte boundary, its content arbitrary."""
        address, code = self._rt.malloc(int(nbytes), HUGE_PAGES_FIRST)
        self.check("rt.malloc", code)
        return int(address)

    def free(self, address: int) -> None:
        """Free device memory at once: nothing in flight may use it."""
        self.note("rt.free", self._rt.free(int(address)))

    def allocate_host(self, nbytes: int) -> int:
        """Return the address of pinned host memory, which alone is copied asynchronously."""
        address, code = self._rt.malloc_host(int(nbytes))
        self.check("rt.malloc_host", code)
        return int(address)

    def free_host(self, address: int) -> None:
        """Free pinned host memory at once."""
        self.note("rt.free_host", self._rt.free_host(int(address)))

    def upload(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Queue a copy from pinned host memory to the device."""
        self._copy(target, source, nbytes, COPY_TO_DEVICE, stream)

    def download(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Queue a copy from the device to pinned host memory."""
        self._copy(target, source, nbytes, COPY_TO_HOST, stream)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Queue a copy on the device, from and to 64-byte boundaries."""
        self._copy(target, source, nbytes, COPY_ON_DEVICE, stream)

    def fill(self, address: int, byte: int, nbytes: int, stream: int) -> None:
        """Queue the writing of one byte, over and over."""
        code = self._rt.memset_async(int(address), int(nbytes), int(byte), int(nbytes), int(stream))
        self.check("rt.memset_async", code)

    def health(self, index: int) -> Health:
        """Return how a device is; -1 for what it, or this version of CANN, does not say.

        On a vNPU, and while profiling, its figures mean nothing.
        Source: CANN runtime, aclrtGetDeviceUtilizationRate, aclrtQueryDeviceStatus.
        """
        units, status = {}, -1
        if hasattr(self._rt, "get_device_utilization_rate"):
            busy, code = self._rt.get_device_utilization_rate(int(index))
            if not code:
                units = {name: int(busy.get(f"{name}_utilization", -1)) for name in UNITS}
        if hasattr(self._rt, "query_device_status"):
            found, code = self._rt.query_device_status(int(index))
            status = -1 if code else int(found != NORMAL)
        self._acl.get_recent_err_msg()  # a refusal's text must not be taken for a later error's
        return Health(abnormal=status, **units)

    def memory(self) -> MemoryInfo:
        """Return what the current context's device has free and in all."""
        for kind in (HBM_MEMORY, DDR_MEMORY):
            free, total, code = self._rt.get_mem_info(kind)
            if total and not code:
                break
        self.check("rt.get_mem_info", code)
        return MemoryInfo(free_bytes=int(free), total_bytes=int(total))

    def _copy(self, target: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        code = self._rt.memcpy_async(
            int(target), int(nbytes), int(source), int(nbytes), kind, int(stream)
        )
        self.check("rt.memcpy_async", code)


def _last_error() -> Callable[[int], int]:
    """Return the call by the library below pyACL, whose own name for it is younger.

    It keeps the interpreter's lock: it only reads.
    """
    try:
        found: Callable[[int], int] = ctypes.PyDLL("libascendcl.so").aclrtGetLastError
    except (OSError, AttributeError):
        return _none
    return found


def _none(level: int) -> int:
    del level
    return 0


def chip_name() -> str:
    """Return this machine's chip, as `atc --soc_version` takes it, without using it: `Ascend910B3`.

    Raises:
        DeviceUnavailable: there is no NPU, or CANN's Python module is not there.
    """
    try:
        with importing():
            acl = importlib.import_module("acl")
    except ImportError as error:
        raise _unknown(str(error)) from error
    runtime = AclRuntime(acl)
    ours = runtime.initialise()
    try:
        name = runtime.chip()
    finally:
        if ours:
            runtime.finalise()
    if not name:
        raise _unknown("ACL sees no chip")
    return name


def _unknown(reason: str) -> DeviceUnavailable:
    return DeviceUnavailable(
        f"which chip to compile for is not known here ({reason}); give --soc-version: on the "
        "machine that will serve, the Name of 'npu-smi info' with 'Ascend' before it (Ascend910B3, "
        "Ascend310P3); on Atlas A3 and Ascend 950 the Chip Name and the NPU Name of "
        "'npu-smi info -t board -i <id> -c <chip>' with '_' between (Ascend910_9382)"
    )
