"""Compiling of structures that takes no longer than a request may wait.

A library cannot be told to stop. What takes too long goes on in a thread of its own, which holds up
neither a request nor the process's end, and is used once it is done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import Generic, TypeVar

from ge_backend.errors import DeviceUnavailable, InvalidRequest
from ge_text.models.structure import Structure

__all__ = ["TimedCompiler", "on_a_deep_stack"]

T = TypeVar("T")

COMPILE_TIMEOUT_S = 10.0
MAX_LATE_COMPILATIONS = 2  # each takes a core for as long as it lasts
# The library compiles a rule within the rule that names it: with a grammar of 64 KiB it wants up to
# 64 MiB (tested with 1.9), where threads have 2 or 8 by themselves, and overflows end the process.
STACK_BYTES = 256 << 20
_STACK_SIZE = threading.Lock()  # it is that of every thread which begins meanwhile


class TimedCompiler(Generic[T]):
    """Compiles structures, each within `COMPILE_TIMEOUT_S`. For any thread.

    Args:
        compile_structure: without Python's lock wherever it takes long.
    """

    def __init__(self, compile_structure: Callable[[Structure], T]) -> None:
        self._compile = compile_structure
        self._late: dict[Structure, Future[T]] = {}
        self._lock = threading.Lock()

    def __call__(self, structure: Structure) -> T:
        """Return what is made of a structure.

        Raises:
            InvalidRequest: it takes too long, or cannot be compiled.
            DeviceUnavailable: others that take too long have not ended.
        """
        with self._lock:
            known = self._late.get(structure)
            if known is None:
                self._check_room()
        if known is not None and not known.done():
            raise _too_long(structure)
        compiling = known or _begun(partial(self._compile, structure))
        try:
            return compiling.result(COMPILE_TIMEOUT_S)
        except FutureTimeoutError:
            with self._lock:
                self._late[structure] = compiling
            raise _too_long(structure) from None

    def _check_room(self) -> None:
        """Forget what has ended but for its guide, and refuse more beside what has not."""
        late = [each for each in self._late.values() if not each.done()]
        if len(late) >= MAX_LATE_COMPILATIONS:
            raise DeviceUnavailable(
                f"no structure can be compiled now: {len(late)} that take too long are still being "
                "compiled; ask again later"
            )
        for structure in [each for each, future in self._late.items() if future.done()]:
            del self._late[structure]


def on_a_deep_stack(make: Callable[[], T]) -> T:
    """Return what is made, by a thread with room for what the library calls.

    Raises:
        DeviceUnavailable: there is no room for such a thread.
    """
    return _begun(make).result()


def _begun(make: Callable[[], T]) -> Future[T]:
    """Return what a thread with a deep stack makes now; it does not keep the process alive."""
    made: Future[T] = Future()

    def work() -> None:
        try:
            made.set_result(make())
        except Exception as error:  # noqa: BLE001 - handed to the thread that waits
            made.set_exception(error)
        except BaseException as error:  # a panic of Rust's, which has told itself on stderr
            made.set_exception(RuntimeError(f"the structure's compiler has failed: {error}"))
            raise SystemExit from error  # of this thread alone, and no log

    with _STACK_SIZE:
        usual = threading.stack_size(STACK_BYTES)
        try:
            threading.Thread(target=work, name="structure", daemon=True).start()
        except RuntimeError as error:
            raise DeviceUnavailable(f"no structure can be compiled now: {error}") from error
        finally:
            threading.stack_size(usual)
    return made


def _too_long(structure: Structure) -> InvalidRequest:
    return InvalidRequest(
        f"{structure.kind.value} cannot be compiled: it takes more than {COMPILE_TIMEOUT_S:.0f} s; "
        "make it simpler, as by smaller bounds and multipleOf"
    )
