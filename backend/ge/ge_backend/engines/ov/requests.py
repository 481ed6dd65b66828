"""What a compiled model is run by: as many requests as run at once, made before the first run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import openvino

from ge_backend.engines.ov.model import infer

__all__ = ["BorrowingRequest", "Requests"]

_Request = TypeVar("_Request")


class Requests(Generic[_Request]):
    """The requests of one compiled model, which its runs use again and again.

    None is made later: unlike setting tensors and running, it is not safe beside other threads (a
    process has ended of it, with OpenVINO 2026.4 on a CPU).

    Args:
        compiled: a compiled model that has not run yet.
        count: how many of its runs are computed at once; more wait for their turn.
        request: makes what is lent of a request of OpenVINO's.

    Attributes:
        compiled: the compiled model.
    """

    def __init__(self, compiled: Any, count: int, request: Callable[[Any], _Request]) -> None:
        self.compiled = compiled
        self._idle = [request(compiled.create_infer_request()) for _ in range(count)]
        self._free = threading.Semaphore(count)

    @contextmanager
    def taken(self) -> Iterator[_Request]:
        """Lend a request; that of the last run, if it is idle."""
        with self._free:
            request = self._idle.pop()
            try:
                yield request
            finally:
                self._idle.append(request)


class BorrowingRequest:
    """A request that has the caller's tensors only while it runs, and no states between runs.

    Attributes:
        outputs: the compiled model's.
    """

    def __init__(self, request: Any) -> None:
        self._request = request
        self._has_states = bool(request.query_state())
        compiled = request.get_compiled_model()
        self._no_inputs = [_smallest(port) for port in compiled.inputs]
        self.outputs = list(compiled.outputs)
        self._no_outputs = [_smallest(port) for port in self.outputs]

    def run(self, inputs: Sequence[Any], outputs: Mapping[int, Any]) -> None:
        """Run once.

        Args:
            inputs: a tensor for each, in order.
            outputs: tensors by output; what is computed besides is not kept.

        Raises:
            RuntimeError: or another one of `ENGINE_ERRORS`: it has failed.
        """
        if self._has_states:
            self._request.reset_state()
        try:
            self._set(enumerate(inputs), outputs.items())
            infer(self._request)
        finally:
            self._set(enumerate(self._no_inputs), enumerate(self._no_outputs))

    def _set(self, inputs: Iterable[tuple[int, Any]], outputs: Iterable[tuple[int, Any]]) -> None:
        for index, tensor in inputs:
            self._request.set_input_tensor(index, tensor)
        for index, tensor in outputs:
            self._request.set_output_tensor(index, tensor)


def _smallest(port: Any) -> Any:
    """Return the smallest tensor that a port takes, which stands there between runs."""
    shape = [dim.get_min_length() for dim in port.partial_shape]
    return openvino.Tensor(port.element_type, openvino.Shape(shape))
