"""A thread that does all that torch computes of language models on a CPU, for all callers.

OpenMP keeps helpers for each thread that begins parallel work, and they spin for a moment between
two pieces of it: they are ready at once then. Where one thread has loaded a model and two take
turns at its steps, there are more helpers than cores; libgomp then lets all of them sleep after
next to nothing (`GOMP_SPINCOUNT` in GCC's manual of libgomp), and a step takes twice as long.

OpenVINO has threads of its own, so its models are called directly. Handing a step over
and back takes 0.5 ms where its weights have just been through the processor's cache.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast

from ge_text.models.base import LanguageModel
from ge_text.models.open import OpenedLanguage, OpenLanguage, open_language

__all__ = ["OwnThread"]

DIRECT = ("openvino",)  # engines whose models run in the thread that asks
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class OwnThread:
    """Opens models that share one thread; their work is done in the order in which it is asked for.

    The thread ends with the last of them.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="language")

    def open(self, asked: OpenLanguage) -> OpenedLanguage:
        """See `open_language`."""
        opened = self.run(open_language, asked)
        if opened.engine in DIRECT:
            return opened
        return replace(opened, model=cast("LanguageModel", _Threaded(opened.model, self)))

    def run(
        self, work: Callable[_Given, _Result], *given: _Given.args, **named: _Given.kwargs
    ) -> _Result:
        """Return what this returns in the thread; raise what it raises."""
        return self._thread.submit(work, *given, **named).result()


class _Threaded:
    """A `LanguageModel` that another one is: what it does is done in a thread."""

    def __init__(self, model: LanguageModel, thread: OwnThread) -> None:
        self._model, self._thread = model, thread  # which it keeps

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._model, name)
        return partial(self._thread.run, found) if callable(found) else found
