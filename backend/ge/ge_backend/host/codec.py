"""Between the host's objects and ours: requests and tensors in, tensors and errors out."""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from ge_backend.errors import DeadlineExceeded, GeError, Status
from ge_backend.host.dlpack import export_bf16, import_bf16
from ge_backend.host.response_parameters import run_parameters
from ge_backend.host.room import Room
from ge_backend.metrics import Recorder
from ge_backend.model.layout.layout import Layout, OutputLayout
from ge_backend.serving.batching.progress import RunNote
from ge_backend.serving.batching.request import Request, check_request
from ge_backend.tensors import Array

__all__ = [
    "LONGEST_TIMEOUT_US",
    "HostRequest",
    "error_response",
    "read_request",
    "send_response",
    "write_response",
    "write_responses",
]

log = logging.getLogger(__name__)

# Bytes of an error's text. gRPC sends it behind the answer, with three letters for a byte that is
# not ASCII, and clients take 8 KiB of that: what is longer comes as another error.
MAX_BYTES, LAST_BYTES = 2000, 500
# A year, instead of whatever longer time a client says: deadlines are added to and sent as numbers
# of 64 bits.
LONGEST_TIMEOUT_US = 366 * 24 * 3600 * 10**6


@dataclass(slots=True, eq=False)
class HostRequest:
    """A request as it came to this stub: when, and until when it must begin to run.

    Nanoseconds of CLOCK_MONOTONIC; `deadline_ns` 0 is no deadline.
    """

    request: Any
    came_ns: int
    deadline_ns: int

    @classmethod
    def of(cls, request: Any, now_ns: int, default_timeout_us: int) -> HostRequest:
        """Return a request that has just come, with the client's `timeout` or a shorter default."""
        own_us = request.timeout()
        if not (own_us or default_timeout_us):
            return cls(request, now_ns, 0)
        shortest_us = min(us for us in (own_us, default_timeout_us) if us)
        return cls(request, now_ns, now_ns + 1000 * min(shortest_us, LONGEST_TIMEOUT_US))

    @property
    def timeout_text(self) -> str:
        """What a message says of the time that it had: a client may take it for milliseconds."""
        return f"its timeout is {(self.deadline_ns - self.came_ns) // 1000} microseconds"

    def too_late(self, reason: object) -> DeadlineExceeded:
        """Return the error of a request whose time is over."""
        return DeadlineExceeded(f"{reason}; {self.timeout_text}")

    @property
    def rows(self) -> int:
        """The first size of its first input, which counts against the model's batch size."""
        inputs = self.request.inputs()
        shape = inputs[0].shape() if inputs else ()
        return int(shape[0]) if shape else 1


def read_request(index: int, host_request: HostRequest, layout: Layout) -> Request:
    """Return the host's request as ours, checked; its arrays are private to this stub.

    The host has already copied each tensor out of shared memory; `as_numpy` hands that copy over.
    States and controls that it adds, and that the graph does not take from a request, are left.

    Raises:
        InvalidRequest: the request does not fit the model.
    """
    request = host_request.request
    sent = {tensor.name(): tensor for tensor in request.inputs()}
    tensors: dict[str, Array] = {}
    for item in layout.inputs:
        tensor = sent.get(item.name)
        if tensor is not None:
            bf16 = item.dtype.name == "BF16"
            tensors[item.name] = import_bf16(tensor) if bf16 else tensor.as_numpy()
    return check_request(
        index,
        tensors,
        layout,
        deadline_ns=host_request.deadline_ns,
        cancelled=request.is_cancelled,
        wanted=frozenset(request.requested_output_names()),
    )


def write_response(
    wanted: Container[str],
    outputs: Mapping[str, Array],
    layout: Layout,
    room: Room,
    runs: Sequence[RunNote] = (),
) -> Any:
    """Return the host's response with the outputs that the client asked for.

    Args:
        wanted: their names.
        outputs: all that there are, by name.
        layout: of the model.
        room: for what is sent.
        runs: what the response's parameters say; hosts that have none are asked for none.

    Raises:
        OutOfMemory: shared memory has no room for them.
    """
    sent = _sent(wanted, outputs, layout, room)
    tensors = [_tensor(item, array) for item, array in sent]
    if runs:
        return pb_utils.InferenceResponse(tensors, parameters=run_parameters(runs))
    return pb_utils.InferenceResponse(tensors)


def write_responses(
    wanted: Container[str], outputs: Mapping[str, Array], layout: Layout, room: Room, count: int
) -> list[Any]:
    """Return the responses to requests that want the same, of whom each has one row of `count`.

    Else as `write_response`.
    """
    sent = _sent(wanted, outputs, layout, room)
    tensors = [
        [_tensor(item, array[row : row + 1]) for row in range(count)] for item, array in sent
    ]
    return [pb_utils.InferenceResponse([one[row] for one in tensors]) for row in range(count)]


def _sent(
    wanted: Container[str], outputs: Mapping[str, Array], layout: Layout, room: Room
) -> list[tuple[OutputLayout, Array]]:
    """Return the outputs that are sent, for which there is room."""
    sent = [
        (item, outputs[item.name])
        for item in layout.outputs
        if item.name in wanted and item.name in outputs
    ]
    room.check([array for _, array in sent])
    return sent


def _tensor(item: OutputLayout, array: Array) -> Any:
    if item.dtype.name == "BF16":
        return pb_utils.Tensor.from_dlpack(item.name, export_bf16(array))
    return pb_utils.Tensor(item.name, np.ascontiguousarray(array))


def error_response(error: GeError) -> Any:
    """Return the response that fails one request with the error's own status and text.

    Of a text that is too long, as what a client has sent may be in it, the middle is left out.
    """
    code = getattr(pb_utils.TritonError, error.status.value)
    said = str(error).encode(errors="backslashreplace")
    if len(said) > MAX_BYTES:
        said = said[: MAX_BYTES - LAST_BYTES] + b" ... " + said[-LAST_BYTES:]
    return pb_utils.InferenceResponse(
        error=pb_utils.TritonError(said.decode(errors="ignore"), code)
    )


def send_response(request: Any, response: Any, recorder: Recorder) -> bool:
    """Send a request's only response through its sender; return False if that fails.

    The request is over then, too, as its sender is closed before anything is sent: it is logged,
    and counted as a failure.
    """
    try:
        sender = request.get_response_sender()
        sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    except Exception:
        log.exception("a response could not be sent")
        recorder.add("ge_request_failures_total", status=Status.INTERNAL.value)
        return False
    return True
