"""Two batches of one instance under way: the next one begins when the device has a lane free.

Where `execute` returned a batch's answers, the host would give the next batch only once the last
run of this one has ended, and until then lanes that are done would have nothing. So a batch goes to
a thread that sends each answer, and `execute` returns as soon as another one would find a lane
free. Until then it does not: what waits in the host is batched there, by its rules.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from ge_backend.batching.pipeline import Pipeline
from ge_backend.host.arrival import Arrival

__all__ = ["Overlap"]

# Batches under way, of which each has a fleet of sessions.
BATCHES = 2


class Overlap:
    """The threads of batches that are under way beside each other; used by one thread.

    Args:
        pipeline: runs them.
        serve: answers a batch, each request through its sender; it calls what it is given once the
            batch's runs count among those that are under way.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        serve: Callable[[Sequence[Arrival], Callable[[], None]], None],
    ) -> None:
        self._pipeline = pipeline
        self._serve = serve
        self._threads = ThreadPoolExecutor(BATCHES, thread_name_prefix="batch")
        self._widening: Future[None] | None = None

    def wants(self, count: int) -> bool:
        """Whether a batch of so many requests is to go on beside the next one.

        Not a request that comes alone: its answer is returned sooner than it is sent. The first
        batch that would only has a second fleet of sessions opened, beside it.
        """
        pipeline = self._pipeline
        if not pipeline.overlaps or not (count > 1 or pipeline.busy):
            return False
        if not pipeline.wide and (self._widening is None or self._widening.done()):
            self._widening = self._threads.submit(pipeline.widen)
        return pipeline.wide

    def serve(self, arrivals: Sequence[Arrival]) -> None:
        """Have a batch answered; return when another one could begin at once."""
        begun = threading.Event()
        if self._pipeline.busy:
            self._pipeline.recorder.add("ge_overlapped_batches_total")
        self._threads.submit(self._work, arrivals, begun)
        begun.wait()
        self._pipeline.wait_for_lane()

    def close(self) -> None:
        """Wait until what is under way has been answered."""
        self._threads.shutdown()

    def _work(self, arrivals: Sequence[Arrival], begun: threading.Event) -> None:
        try:
            self._serve(arrivals, begun.set)
        finally:
            begun.set()
