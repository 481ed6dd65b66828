"""Whether a server that is asked to end waits for answers that cannot come any more.

The host unloads a model when its last request is answered. What a stub held by itself, as with a
queue of the model's own, dies with it, and the host waits for that until its exit timeout is over
(seen on 2.51). Its metrics, which it serves to the end, name the models that it has not unloaded.
"""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable, Collection

from ge_backend.executor.process.host_processes import stubs_of

__all__ = ["Stranded"]

LOOK_S = 0.5
# A model is unloaded within a fraction of a second after its stubs have ended.
SURE_S = 2.0
ANSWER_S = 2.0
# Each model that the host holds has this, also where it is zero.
_HELD = re.compile(r'^nv_inference_request_success\{model="([^"]*)"', re.MULTILINE)


class Stranded:
    """Says which models keep a server from ending though none of their stubs is left.

    It says so when no stub of the server lives, every model that the server still holds had one,
    and both have been so for a while. Where the metrics cannot be read nothing is known.

    Args:
        server: its process.
        metrics: the URL of its metrics; "" where it has none.
        stubbed: returns the names of models that were seen to have stubs.
    """

    def __init__(self, server: int, metrics: str, stubbed: Callable[[], Collection[str]]) -> None:
        self._server = server
        self._metrics = metrics
        self._stubbed = stubbed
        self._looked = 0.0
        self._since = 0.0  # when it was first found so; 0: it was not
        self._models: list[str] = []

    def models(self) -> list[str]:
        """Return their names once that is sure; it looks twice a second at most."""
        now = time.monotonic()
        if self._metrics and now >= self._looked + LOOK_S:
            self._looked = now
            self._models = [] if stubs_of(self._server) else self._held()
            self._since = (self._since or now) if self._models else 0.0
        return self._models if self._models and now >= self._since + SURE_S else []

    def _held(self) -> list[str]:
        """Return the models that the server holds; none where one of them may be at work."""
        try:
            with urllib.request.urlopen(self._metrics, timeout=ANSWER_S) as answer:  # noqa: S310 - http
                page = answer.read().decode(errors="replace")
        except (OSError, ValueError):
            return []
        held = set(_HELD.findall(page))
        return sorted(held) if held <= set(self._stubbed()) else []
