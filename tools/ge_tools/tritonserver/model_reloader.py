"""Loading a model anew when one of its stubs has died, which the host does not do.

It is loaded as it was served: with the configuration that the server has of it, and with the files
that came with its load request, where any did.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from ge_backend.errors import ServerError
from ge_backend.executor.process.host_processes import Stub, stubs_of
from ge_backend.executor.process.reloads import note_reload
from ge_tools.tritonserver.api import LoadRequest, ServerApi
from ge_tools.tritonserver.directory import SHARED_MEMORY
from ge_tools.tritonserver.health import StubLoss, stub_losses
from ge_tools.tritonserver.stub_changes import StubChanges

__all__ = ["ModelReloader", "next_pause_s"]

log = logging.getLogger(__name__)

PERIOD_S = 1.0
# After the first number of looks that find all well it rests until stubs come or go: a look
# takes 6 ms. At the latest it looks again after the second number of periods.
CALM, REST = 10, 60
# For what the instances of a replaced model still have to answer.
GRACE_S = 10.0
# Between tries to load a model, each twice as long as the one before.
FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 60.0
# After this many, about a minute, living instances make room: there may be no memory for both.
REFUSALS = 6
# What the server says in the modes `none` and `poll`. Source: core r24.10 src/server.cc.
NO_CONTROL = "explicit model load / unload is not allowed"


@dataclass(slots=True)
class _Recovery:
    """A model that is being loaded anew.

    Attributes:
        times: how often one of its stubs has died.
        begin: when this one was found dead; CLOCK_MONOTONIC, as `due` is.
        asked: what loads the model as it was served: never what lies in its folder now.
        refusals: how often it could not be loaded beside its living instances.
        pause_s: between the last try and the next one, which is `due` then.
        unloading: whether the server was unloading it, or had, when its load failed.
    """

    times: int
    begin: float
    asked: LoadRequest
    refusals: int = 0
    pause_s: float = 0.0
    due: float = 0.0
    unloading: bool = False


class ModelReloader:
    """A thread that looks after a server's stubs.

    It looks once a second, and where all has been well for a while only when a stub ends or starts.
    A model is only loaded anew when two looks in a row find it so: one may fall into a load. Where
    that fails it is tried again with growing pauses, until it is ready or another client has loaded
    or unloaded it.

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
        self._recoveries: dict[str, _Recovery] = {}
        self._seen: dict[int, Stub] = {}  # those that have lived, the latest last
        self._regions: dict[int, str] = {}  # theirs, until they are forgotten
        self._tries = 0
        self._may_load = True
        self._reported: set[StubLoss] = set()  # those that cannot be mended
        self._before: set[StubLoss] = set()  # as the last look found them
        self._changes = StubChanges(SHARED_MEMORY, f"{run.parent.name}_")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="reloader", daemon=True)
        self._thread.start()

    def stubbed(self) -> set[str]:
        """Return the names of the models that have had stubs."""
        return {name for stub in list(self._seen.values()) for name in stub.models}

    def close(self) -> None:
        """Look no more; what is being loaded is not waited for."""
        self._stop.set()

    def _watch(self) -> None:
        with contextlib.closing(self._changes):
            calm = 0
            while not self._stop.wait(PERIOD_S):
                calm = 0 if self._changes.any() else calm + 1
                if (calm <= CALM or calm % REST == 0) and not self._check():
                    calm = 0

    def _check(self) -> bool:
        """Load anew what has lost stubs; return whether all is well."""
        try:
            self._end_replaced()
            stubs = stubs_of(self._server)
            self._see(stubs)
            self._changes.follow([stub.pid for stub in stubs])
            found = set(stub_losses(self._api, self._server))
            for loss in found & self._before:
                self._reload(loss)
                self._forget()
            self._load_the_missing({loss.model for loss in found})
            self._reported &= found
            self._before = found
        except ServerError as error:  # it starts, ends, or refuses
            log.debug("the server's models cannot be looked after: %s", error)
            return False
        except Exception:
            log.exception("looking after the server's stubs failed in an unforeseen way")
            return False
        return not (found or self._recoveries or self._replaced)

    def _see(self, stubs: Iterable[Stub]) -> None:
        for stub in stubs:
            if self._seen.get(stub.pid) != stub:
                self._seen.pop(stub.pid, None)
                self._seen[stub.pid] = stub
            self._regions[stub.pid] = stub.region

    def _reload(self, loss: StubLoss) -> None:
        """Load a model anew, where its time has come; instances that live answer meanwhile."""
        model = loss.model
        if not self._may_load:
            self._report(loss)
            return
        if not self._api.states(model):  # unloaded now, it would not come back with its folder
            self._report(loss, "; it is loaded anew once its folder is there")
            return
        recovery = self._recoveries.get(model)
        if recovery is None:
            begin = time.monotonic()
            try:
                asked = self._load_request(model)
            except (OSError, MemoryError) as error:
                self._report(
                    loss,
                    "; it is not loaded anew, since the files that came with its load request "
                    f"cannot be read ({error}); load it again with them",
                )
                return
            self._reported.add(loss)
            self._say(f"{loss}; it is loaded anew")
            recovery = _Recovery(times=note_reload(self._run, model), begin=begin, asked=asked)
            self._recoveries[model] = recovery
        elif time.monotonic() < recovery.due:
            return
        if loss.living and self._replace(loss, recovery):
            return
        old = self._stubs(model)
        try:
            self._api.unload(model)  # never ends for the dead one; a load goes on beside it
        except ServerError as error:
            self._postpone(model, recovery, error)
            return
        try:
            self._load(model, recovery)
        finally:
            self._end_later(old)

    def _load_request(self, model: str) -> LoadRequest:
        """Return what loads a model as it is served, with the files that came with its load.

        The host keeps these in a folder until it unloads the model.

        Raises:
            ServerError: the server does not answer.
            OSError: the files cannot be read.
        """
        asked = self._api.served(model)
        groups = self._api.python_instances(model)
        stubs = [stub for stub in self._seen.values() if stub.serves(model, groups)]
        folder = stubs[-1].brought if stubs else None
        return asked if folder is None else replace(asked, files=_files_of(folder))

    def _replace(self, loss: StubLoss, recovery: _Recovery) -> bool:
        """Load a model beside itself, now or later; return False once that is refused too often."""
        model, old = loss.model, self._stubs(loss.model)
        try:
            self._load_as(model, recovery.asked)
        except ServerError as error:
            recovery.refusals += 1
            if recovery.refusals < REFUSALS:
                serves = f"; {loss.living} of its {loss.expected} instances serve on"
                self._postpone(model, recovery, error, serves)
                return True
            if recovery.refusals == REFUSALS:
                recovery.pause_s = 0.0
            self._say(f"model {model!r} is away while it is loaded anew: {_reason(error)}")
            return False
        self._end_later(old)
        self._is_back(model)
        return True

    def _load_as(self, model: str, asked: LoadRequest) -> None:
        self._tries += 1  # the host does nothing for a configuration that it has been given before
        self._api.load(model, asked, self._tries)

    def _load(self, model: str, recovery: _Recovery) -> None:
        try:
            self._load_as(model, recovery.asked)
        except ServerError as error:
            self._postpone(model, recovery, error)
            seen = self._api.states(model)
            recovery.unloading = any("UNLOADING" in at or "unloaded" in at for at in seen)
        else:
            self._is_back(model)

    def _load_the_missing(self, losing: set[str]) -> None:
        """Load models whose load has failed, where the time has come and no other loads them.

        One without a state is not there at all: its folder is away.
        """
        for model in self._recoveries.keys() - losing:
            recovery = self._recoveries[model]
            if time.monotonic() < recovery.due:
                continue
            states = self._api.states(model)
            unloaded = any(reason == "unloaded" for _, reason in states)
            ready = any(state == "READY" for state, _ in states)
            if ready or (unloaded and not recovery.unloading):
                del self._recoveries[model]
            elif states and not any(state == "LOADING" for state, _ in states):
                self._load(model, recovery)

    def _postpone(
        self, model: str, recovery: _Recovery, error: ServerError, serves: str = ""
    ) -> None:
        if NO_CONTROL in str(error):
            self._may_load = False
            del self._recoveries[model]
            self._say(
                f"model {model!r} cannot be loaded anew, nor others: the server has no explicit "
                "model control"
            )
            return
        recovery.pause_s = next_pause_s(recovery.pause_s)
        recovery.due = time.monotonic() + recovery.pause_s
        self._say(
            f"model {model!r} could not be loaded anew{serves}; it is tried again in "
            f"{recovery.pause_s:g} s: {_reason(error)}"
        )

    def _report(self, loss: StubLoss, outlook: str = "") -> None:
        if loss not in self._reported:
            self._reported.add(loss)
            self._say(f"{loss}{outlook}")

    def _is_back(self, model: str) -> None:
        recovery = self._recoveries.pop(model)
        seconds = time.monotonic() - recovery.begin
        self._say(f"model {model!r} is back after {seconds:.1f} s, for time {recovery.times}")

    def _stubs(self, model: str) -> list[int]:
        groups = self._api.python_instances(model)
        return [stub.pid for stub in stubs_of(self._server) if stub.serves(model, groups)]

    def _end_later(self, stubs: Iterable[int]) -> None:
        self._replaced |= dict.fromkeys(stubs, time.monotonic() + GRACE_S)

    def _end_replaced(self) -> None:
        """End what is left of replaced models: the host waits for their dead ones for ever."""
        now = time.monotonic()
        stubs = {stub.pid for stub in stubs_of(self._server)}
        self._replaced = {pid: due for pid, due in self._replaced.items() if pid in stubs}
        for pid in [pid for pid, due in self._replaced.items() if due <= now]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _forget(self) -> None:
        """Remove the shared memory of stubs that have died, which the host does not."""
        living = {stub.pid for stub in stubs_of(self._server)}
        for pid in set(self._regions) - living:
            with contextlib.suppress(OSError):
                (SHARED_MEMORY / Path(self._regions.pop(pid)).name).unlink()


def _files_of(folder: Path) -> dict[str, bytes]:
    """Return the files of a model by their places in its folder, but what the host writes there.

    Raises:
        OSError: the folder is not there any more, or a file cannot be read.
    """
    found = (Path(place, name) for place, _, names in os.walk(folder) for name in names)
    files = {
        str(path.relative_to(folder)): path for path in found if path.parent.name != "__pycache__"
    }
    files.pop("config.pbtxt", None)
    if not files:
        raise FileNotFoundError(2, "no files in", str(folder))
    return {name: path.read_bytes() for name, path in files.items()}


def next_pause_s(pause_s: float) -> float:
    """Return how long to wait after one more failure, where it was this long before; 0: none."""
    return min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * pause_s))


def _reason(error: ServerError) -> str:
    """Return what the server said, without the traceback that its JSON has behind it."""
    return str(error).partition("\\n\\nAt:")[0]
