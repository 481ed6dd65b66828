"""The executor: accepts stubs and owns what they share: the device, its lanes, its graphs."""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping

from ge_backend.device.base import Device
from ge_backend.device.health import Monitored
from ge_backend.device.workspace.pool import Pool
from ge_backend.executor.protocol.messages import Report
from ge_backend.executor.protocol.outstanding import Outstanding, PoolSample
from ge_backend.executor.protocol.peer import peer_uid
from ge_backend.executor.server.device_tensors import DeviceTensorStores
from ge_backend.executor.server.graphs import defects, loaded_graphs
from ge_backend.executor.server.heartbeat import IDLE_S as BEAT_S
from ge_backend.executor.server.heartbeat import Heartbeat
from ge_backend.executor.server.lanes import Lanes
from ge_backend.executor.server.memory import MemoryLimit, own_bytes
from ge_backend.executor.server.queue import OTHERS_IDLE_NS
from ge_backend.executor.server.services import GRAPH, SERVICES, Services
from ge_backend.executor.server.stub_handler import StubHandler
from ge_backend.executor.server.timeline import Timeline
from ge_backend.model.config.sizes import format_bytes

__all__ = ["Executor"]

log = logging.getLogger(__name__)

POLL_S = 0.2
IDLE_S = 1.0  # where stubs are there and nothing runs
UNSEEN_S = 5.0  # between two beats of an idle one that is inside its stub, which looks at none
HEALTH_S = 5.0  # between two questions how the device is
MEMORY_S = 1.0  # between two looks at the memory
# For the runs that have begun, when the executor is to be replaced.
DRAIN_S = 30.0


class Executor:
    """Owns one device and serves connections until no stub needs it.

    Args:
        device: becomes the executor's; closed at the end.
        linger_s: how long to stay, and to keep graphs, after the last connection has left.
        pool_bytes: of the workspace pool; 0: every graph has scratch of its own.
        run_timeout_s: how long a run may take until the device counts as broken; 0: no limit.
        idle_ns: see `JobQueue`.
        kinds: of services; see `SERVICES`.
        on_fault: called when the device broke or hangs, before any stub is told. In a process of
            its own it ends that, and does not return: what was lost with the process, the stubs
            repeat in the next one.
        on_hang: called instead when it hangs, where that is another matter.
    """

    def __init__(  # noqa: PLR0913 - what a process of its own and a stub choose differently
        self,
        device: Device,
        *,
        linger_s: float,
        pool_bytes: int = 0,
        run_timeout_s: float = 0.0,
        idle_ns: int = OTHERS_IDLE_NS,
        kinds: Mapping[str, str] = SERVICES,
        on_fault: Callable[[], None] = lambda: None,
        on_hang: Callable[[], None] | None = None,
    ) -> None:
        self.device = device
        self.on_fault = on_fault
        self.pool = Pool(device.reserve(pool_bytes))
        self.services = Services(self, linger_s, kinds)
        self.lanes = Lanes(device.lanes, self.pool, idle_ns)
        self.outstanding = Outstanding()
        self._heartbeat = Heartbeat(
            self.outstanding,
            self.lanes,
            self._show,
            run_timeout_s=run_timeout_s,
            idle_s=BEAT_S if on_hang is None else UNSEEN_S,
            on_fault=on_hang or on_fault,
        )
        self.timeline = Timeline()
        self.tensor_stores = DeviceTensorStores()
        self._linger_s = linger_s
        self._to_end = False
        self._asked_at = -HEALTH_S
        self._memory = MemoryLimit(0)
        self._end: Callable[[], None] = lambda: None
        self._measured_at = -MEMORY_S
        self._handlers: set[StubHandler] = set()
        self._left_at = 0.0
        self._left = threading.Event()  # the last connection has
        self._wake: int | None = None  # ends the pause of `serve`; an eventfd(2)
        self._lock = threading.Lock()

    def replace_at(self, memory: MemoryLimit, end: Callable[[], None]) -> None:
        """Have the executor replaced when it has too much memory.

        What runs is answered; the stubs repeat what waits in the next one.

        Args:
            memory: says when.
            end: ends the process.
        """
        self._memory, self._end = memory, end

    def end_when_left(self) -> None:
        """Stay for the stubs that are connected and do not linger; safe in a signal handler."""
        self._to_end = True

    def serve(self, listener: socket.socket) -> None:
        """Accept connections until there have been none for the linger time.

        Returns with the listener still open, so that the caller can take a last look at it under
        the lock that guards its address.
        """
        self._wake = wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            self._serve(listener, wake)
        finally:
            with self._lock:
                self._wake = None
                os.close(wake)

    def _serve(self, listener: socket.socket, wake: int) -> None:
        begun_at = time.monotonic()
        watched: list[socket.socket | int] = [listener, wake]
        while True:
            readable, _, _ = select.select(watched, [], [], self._pause_s())
            if wake in readable:
                os.eventfd_read(wake)
            if listener in readable:
                self.accept_from(listener)
            self.services.close_idle()
            self._ask_health()
            self._look_at_memory()
            if self.num_connections:
                continue
            idle_s = time.monotonic() - max(begun_at, self._left_at)
            if self._to_end or idle_s > self._linger_s:
                return

    def accept_from(self, listener: socket.socket) -> None:
        """Accept a connection that waits; where nothing is left for it, the others are served on.

        The pause is for what is used up to be given back, and so that asking is not all there is.
        """
        try:
            self.accept(listener.accept()[0])
        except (OSError, RuntimeError, MemoryError) as error:  # descriptors, threads, memory
            log.warning("a connection could not be accepted: %s: %s", type(error).__name__, error)
            time.sleep(POLL_S)

    def accept(self, sock: socket.socket) -> None:
        """Serve one connection in a thread of its own; other users' processes are turned away.

        Raises:
            RuntimeError: there is no thread for it; it is closed, and its stub tries again.
        """
        uid = peer_uid(sock)
        if uid != os.getuid():
            log.warning("a process of user %d was turned away", uid)
            sock.close()
            return
        handler = self.attend(sock)
        try:
            threading.Thread(target=handler.serve, daemon=True).start()
        except BaseException:
            self.forget(handler)
            sock.close()
            raise

    def attend(self, sock: socket.socket) -> StubHandler:
        """Return a connection that the caller serves."""
        handler = StubHandler(sock, self)
        with self._lock:
            self._handlers.add(handler)
            self._left.clear()
        return handler

    def forget(self, handler: StubHandler) -> None:
        """Know that a stub has left."""
        with self._lock:
            self._handlers.discard(handler)
            if not self._handlers:
                self._left_at = time.monotonic()
                self._left.set()
                if self._wake is not None:
                    os.eventfd_write(self._wake, 1)

    @property
    def num_connections(self) -> int:
        """How many stubs are connected."""
        with self._lock:
            return len(self._handlers)

    def peers(self) -> list[int]:
        """Return the processes that are connected."""
        with self._lock:
            return [handler.pid for handler in self._handlers]

    def report(self, request_id: int) -> Report:
        """Return what the executor holds."""
        memory = self.device.memory()
        kept_tensors, kept_bytes = self.tensor_stores.figures()
        holders = self.services.of(GRAPH).holders().values()
        return Report(
            id=request_id,
            device=self.device.name,
            connections=self.num_connections,
            graphs=len(holders),
            holders=sum(holders),
            prepared=sum(len(graph.costs) for graph in loaded_graphs(self)),
            free_bytes=memory.free_bytes,
            total_bytes=memory.total_bytes,
            pool=self.pool.figures(),
            evictions=self.services.evictions,
            kept_tensors=kept_tensors,
            kept_bytes=kept_bytes,
            defects=(*self.pool.integrity(), *defects(self)),
            chip=self.device.chip,
        )

    def join(self) -> None:
        """Wait until the last connection has left."""
        while self.num_connections:
            self._ask_health()
            self._left.wait(HEALTH_S if isinstance(self.device, Monitored) else None)

    def close(self) -> None:
        """Finish the queued runs, free every graph without a holder, and give the device back."""
        self.services.close_idle(now=True)
        self.lanes.close()
        self.services.close_idle(now=True)  # graphs whose runs have just ended
        self.device.close()
        self._heartbeat.close()
        self.outstanding.close()

    def _pause_s(self) -> float:
        """Return how long to wait before the next look: less while jobs or no connections exist."""
        return IDLE_S if self.num_connections and not len(self.lanes) else POLL_S

    def _ask_health(self) -> None:
        """Let the stubs see how the device is, for their metrics."""
        now = time.monotonic()
        if now - self._asked_at > HEALTH_S and isinstance(self.device, Monitored):
            self._asked_at = now
            self.outstanding.show_health(self.device.health())

    def _show(self) -> None:
        """Let the stubs see how the pool is, for their metrics."""
        figures = self.pool.figures()
        self.outstanding.show(
            PoolSample(
                size_bytes=figures.size_bytes,
                placed_bytes=figures.placed_bytes,
                leased_bytes=figures.leased_bytes,
                peak_bytes=figures.peak_bytes,
                evictions=self.services.evictions,
            )
        )

    def _look_at_memory(self) -> None:
        now = time.monotonic()
        if now - self._measured_at < MEMORY_S:
            return
        self._measured_at, nbytes = now, own_bytes()
        self.outstanding.show_memory(nbytes)
        if self._memory.exceeded(nbytes, self.services.changes):
            log.warning("memory is at its limit with %s: replaced", format_bytes(nbytes))
            self.lanes.finish(DRAIN_S)
            self._end()
