"""The streams of one accelerator, and the memory that its captured graphs share."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from ge_backend.engines.torch.vendor import CapturedGraph, Stream, Vendor

__all__ = ["WARM_UPS", "Streams"]

# Runs before a capture. The first ones make the libraries' handles and plans, which a capture may
# not. Source: PyTorch documentation, "CUDA Graphs": a few warm-up iterations on a side stream.
WARM_UPS = 3


class Streams:
    """What all torch graphs of a device use together.

    Everything is computed in one stream, one run after the other: captured graphs share one pool
    of scratch memory, so no two may run at once. Copies to and from the host have streams of
    their own and overlap it.

    Attributes:
        pool: for the scratch memory of captured graphs; as large as the largest one's. After a
            capture that failed it is another one, and graphs captured before keep theirs.
    """

    def __init__(self, vendor: Vendor) -> None:
        self.vendor = vendor
        self.compute = vendor.new_stream()
        self.uploads = vendor.new_stream()
        self.downloads = vendor.new_stream()
        self.pool = vendor.new_pool()
        self._order = threading.Lock()
        self._copies = threading.Lock()
        self._capturing = threading.Lock()  # taken by who has the order already, or has no need

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Be the only thread that queues work in the compute stream, which is current meanwhile."""
        with self._order, self.vendor.on(self.compute):
            yield

    @contextlib.contextmanager
    def copying(self, stream: Stream) -> Iterator[None]:
        """Queue copies in a stream of theirs, which is current meanwhile."""
        with self._copies, self.vendor.on(stream):
            yield

    @contextlib.contextmanager
    def uncaptured(self) -> Iterator[None]:
        """Let nothing be captured meanwhile: for libraries that wait for the whole device.

        A wait for the device, by whichever thread, breaks a capture, and fails itself.
        Source: CUDA C++ Programming Guide, "Prohibited and Unhandled Operations"; CANN 9.0,
        single-stream capture.
        """
        with self._capturing:
            yield

    def settle(self) -> None:
        """Wait for all of the device's streams: weights, say, are brought by another one."""
        with self.computing():
            self.vendor.synchronize()

    def finish(self) -> None:
        """Wait for what is queued in the compute stream; the caller is the one who computes."""
        done = self.vendor.new_event()
        done.record(self.compute)
        done.synchronize()

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Have nothing in flight, and let no thread queue anything meanwhile."""
        with self._order, self._copies:
            self.vendor.synchronize()
            yield

    def capture(self, work: Callable[[], None]) -> CapturedGraph:
        """Record what `work` queues in the compute stream; the caller is the one who computes.

        Raises:
            RuntimeError: as `Vendor.capture`.
        """
        with self._capturing:
            try:
                return self.vendor.capture(work, pool=self.pool, stream=self.compute)
            except BaseException:
                self.pool = self.vendor.new_pool()
                raise
