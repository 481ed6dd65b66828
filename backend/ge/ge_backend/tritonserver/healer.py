"""Loading a model anew when one of its stubs has died, which the host does not do."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ge_backend.errors import ServerError
from ge_backend.executor.process.heals import note_heal
from ge_backend.tritonserver.api import ServerApi
from ge_backend.tritonserver.directory import SHARED_MEMORY
from ge_backend.tritonserver.health import Ailment, ailments
from ge_backend.tritonserver.stubs import stubs_of

__all__ = ["Healer"]

log = logging.getLogger(__name__)

PERIOD_S = 1.0
# For what the instances of a replaced model still have to answer.
GRACE_S = 10.0


class Healer:
    """A thread that looks after a server's stubs.

    A model is only loaded anew when two looks in a row find it so: one may fall into a load.

    Args:
        api: of the server.
        server: its process.
        run: its folder of sockets.
        say: tells people what is done.
    """

    def __init__(self, api: ServerApi, server: int, run: Path, say: Callable[[str], None]) -> None:
        self._api = api
        self._server = server
        self._run = run
        self._say = say
        self._replaced: dict[int, float] = {}  # stubs of replaced models, and when they have to end
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="healer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more; what is being loaded is not waited for."""
        self._stop.set()

    def _watch(self) -> None:
        before: set[Ailment] = set()
        regions: dict[int, str] = {}
        while not self._stop.wait(PERIOD_S):
            try:
                self._end_replaced()
                regions |= {stub.pid: stub.region for stub in stubs_of(self._server)}
                found = set(ailments(self._api, self._server))
                for ailment in found & before:
                    self._heal(ailment)
                    self._forget(regions)
                before = found
            except ServerError as error:  # it starts, ends, or refuses
                log.debug("the server's models cannot be looked after: %s", error)
            except Exception:
                log.exception("looking after the server's stubs failed in an unforeseen way")

    def _heal(self, ailment: Ailment) -> None:
        begin = time.monotonic()
        self._say(f"{ailment}; it is loaded anew")
        old = [stub.pid for stub in stubs_of(self._server) if stub.model == ailment.model]
        times = note_heal(self._run, ailment.model)
        try:
            self._load(ailment, times)
        except ServerError as error:
            self._say(f"model {ailment.model!r} could not be loaded anew: {error}")
            return
        now = time.monotonic()
        self._replaced |= dict.fromkeys(old, now + GRACE_S)
        seconds = now - begin
        self._say(f"model {ailment.model!r} is back after {seconds:.1f} s, for time {times}")

    def _load(self, ailment: Ailment, times: int) -> None:
        """Load a model anew; instances that live answer meanwhile.

        Raises:
            ServerError: it cannot be loaded.
        """
        if ailment.living:
            try:
                self._api.replace(ailment.model, times)
            except ServerError as error:
                log.warning("model %r is away while it is loaded anew: %s", ailment.model, error)
            else:
                return
        self._api.unload(ailment.model)  # never ends for the dead one; a load goes on beside it
        self._api.load(ailment.model)

    def _end_replaced(self) -> None:
        """End what is left of replaced models: the host waits for their dead ones for ever."""
        now = time.monotonic()
        stubs = {stub.pid for stub in stubs_of(self._server)}
        self._replaced = {pid: due for pid, due in self._replaced.items() if pid in stubs}
        for pid in [pid for pid, due in self._replaced.items() if due <= now]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _forget(self, regions: dict[int, str]) -> None:
        """Remove the shared memory of stubs that have died, which the host does not."""
        living = {stub.pid for stub in stubs_of(self._server)}
        for pid in set(regions) - living:
            with contextlib.suppress(OSError):
                (SHARED_MEMORY / Path(regions.pop(pid)).name).unlink()
