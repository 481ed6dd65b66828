"""One opened NPU: its context and streams, for whichever thread comes.

ACL's current context is a thread's own, and another library of this process may have changed it
since: every use begins by setting ours. Ours is the device's primary context, as torch_npu's is,
which does not look again whether it still is the thread's. A stream is lent for one use and comes
back with nothing in flight on it.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ge_backend.device.base import MemoryInfo
from ge_backend.engines.acl.models import AclModels
from ge_backend.engines.acl.runtime import AclRuntime
from ge_backend.errors import DeviceFault, DeviceUnavailable, GraphFailed, OutOfMemory

__all__ = ["AclDevice"]


class AclDevice:
    """A device of this process, taken until `close`.

    Args:
        acl: the module, or what behaves like it.
        index: which device.
        streams: how many uses there may be at once.
        config: a JSON file for ACL; "" for none.

    Attributes:
        runtime, models: the calls.
        name: `npu:0`.
        chip: as `atc --soc_version` takes it.

    Raises:
        DeviceUnavailable: there is no such device, or it cannot be taken.
    """

    def __init__(self, acl: Any, index: int, *, streams: int, config: str = "") -> None:
        self.runtime = AclRuntime(acl)
        self.models = AclModels(acl, self.runtime)
        self.name = f"npu:{index}"
        self._fault: DeviceFault | None = None
        self._failed: set[int] = set()  # streams, and those of them that are destroyed
        self._abandoned: set[int] = set()
        self._idle: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._streams = streams
        self._lock = threading.Lock()
        self._hush = threading.Lock()  # two that wait for all streams would wait for each other
        with contextlib.ExitStack() as opened:
            try:
                self._context = self._take(index, config, opened)
                opened.enter_context(self.runtime.ready_to_ask())
                for _ in range(streams):
                    stream = self.runtime.create_stream()
                    opened.callback(self._close_stream, stream)
                    self._idle.put(stream)
            except (DeviceFault, GraphFailed, OutOfMemory) as error:
                raise DeviceUnavailable(
                    f"{self.name} cannot be taken: {error}; 'npu-smi info' shows whether it is "
                    "healthy and which processes use it"
                ) from error
            self.chip = self.runtime.chip()
            self._opened = opened.pop_all()

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Use the device in this thread, without a stream.

        Raises:
            DeviceFault: it fails, or has failed before: only another process can use it again.
        """
        if self._fault is not None:
            raise DeviceFault(f"{self.name} failed and is not used again: {self._fault}")
        self.runtime.use_context(self._context)
        try:
            yield
        except DeviceFault as fault:
            self._fault = fault
            raise

    def enter(self) -> None:
        """Make the device this thread's, for another library's calls, also after a fault.

        What failed in this thread before is forgotten: torch_npu would tell it as the reason of any
        later error, a lack of memory that it found room for, say.
        """
        self.runtime.use_context(self._context)
        self.runtime.take_last_error()

    @contextlib.contextmanager
    def stream(self, timeout_ms: int) -> Iterator[int]:
        """Lend a stream; where its use ends in an error, wait until nothing is in flight on it.

        That wait may take `timeout_ms`. A use that ends well has waited for its work itself.

        Raises:
            DeviceFault: as `entered`; or what is in flight cannot be waited for, whatever the
                reason: stream and memory would be used again below it.
        """
        with self._hush:  # a thread that wants quiet gets it, however many want to run
            stream = self._idle.get()
        try:
            with self.entered():
                try:
                    yield stream
                except DeviceFault:
                    raise
                except BaseException:
                    self._wait(stream, timeout_ms)
                    raise
        except DeviceFault:
            with self._lock:
                self._failed.add(stream)
            raise
        finally:
            self._idle.put(stream)

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Lend no stream meanwhile, so that nothing is in flight; waits for those that are lent.

        A process must not be forked while copies are in flight.
        Source: CANN, pyACL, restrictions (fork, system, posix_spawn).
        """
        with self._hush:
            streams = [self._idle.get() for _ in range(self._streams)]
            try:
                yield
            finally:
                for stream in streams:
                    self._idle.put(stream)

    def settle(self) -> None:
        """See that nothing is in flight, also after a fault, so that memory can be given back.

        The calling thread uses the device afterwards.
        """
        self.runtime.return_to_context(self._context)
        with self._lock:
            failed = self._failed - self._abandoned
            self._abandoned |= failed
        for stream in failed:
            self.runtime.abandon_stream(stream)

    def memory(self) -> MemoryInfo:
        """Return the device's free and total memory, also after a fault."""
        self.runtime.use_context(self._context)
        return self.runtime.memory()

    def close(self) -> None:
        """Give the device back."""
        self.settle()
        self._opened.close()

    def _take(self, index: int, config: str, opened: contextlib.ExitStack) -> int:
        """Take the device and return its primary context, which is this thread's from now on."""
        runtime = self.runtime
        if runtime.initialise(config):
            opened.callback(_unless_torch_npu, runtime.finalise)
        count = runtime.device_count()
        if index >= count:
            raise DeviceUnavailable(
                f"there is no {self.name}: this process sees {count} NPU(s), from npu:0 on; "
                "ASCEND_RT_VISIBLE_DEVICES and the container's /dev/davinci* decide which"
            )
        runtime.open_device(index)
        opened.callback(_unless_torch_npu, lambda: runtime.close_device(index))
        return runtime.current_context()

    def _wait(self, stream: int, timeout_ms: int) -> None:
        try:
            self.runtime.synchronise(stream, timeout_ms)
        except (GraphFailed, OutOfMemory) as refusal:
            raise DeviceFault(f"{refusal}; what a failed run has left goes on") from refusal

    def _close_stream(self, stream: int) -> None:
        if stream not in self._abandoned:
            self.runtime.close_stream(stream)


def _unless_torch_npu(end: Callable[[], None]) -> None:
    """Leave what the whole process has of ACL to torch_npu, once that is there.

    One `finalize` ends ACL for everyone, and torch_npu still uses it as the process ends.
    Source: CANN runtime docs, initialisation; torch_npu, csrc/core/npu/sys_ctrl/npu_sys_ctrl.cpp.
    """
    if "torch_npu" not in sys.modules:
        end()
