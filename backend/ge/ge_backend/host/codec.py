"""Between the host's objects and ours: tensors in, tensors and errors out."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from ge_backend.errors import GeError, Status
from ge_backend.host.arrival import Arrival
from ge_backend.host.dlpack import export_bf16, import_bf16
from ge_backend.host.room import check_room
from ge_backend.metrics import Recorder
from ge_backend.model.layout.layout import Layout
from ge_backend.serving.batching.request import Request, check_request
from ge_backend.tensors import Array

__all__ = ["error_response", "read_request", "send_response", "write_response"]

log = logging.getLogger(__name__)

# Bytes of an error's text. gRPC sends it behind the answer, with three letters for a byte that is
# not ASCII, and clients take 8 KiB of that: what is longer comes as another error.
MOST_BYTES, LAST_BYTES = 2000, 500


def read_request(index: int, arrival: Arrival, layout: Layout) -> Request:
    """Return the host's request as ours, checked; its arrays are private to this stub.

    The host has already copied each tensor out of shared memory; `as_numpy` hands that copy over.
    States and controls that it adds, and that the graph does not take from a request, are left.

    Raises:
        InvalidRequest: the request does not fit the model.
    """
    types = {item.name: item.dtype.name for item in layout.inputs}
    tensors: dict[str, Array] = {}
    for tensor in arrival.request.inputs():
        name = tensor.name()
        if name in types:
            tensors[name] = import_bf16(tensor) if types[name] == "BF16" else tensor.as_numpy()
    return check_request(
        index,
        tensors,
        layout,
        deadline_ns=arrival.deadline_ns,
        cancelled=arrival.request.is_cancelled,
        wanted=frozenset(arrival.request.requested_output_names()),
    )


def write_response(request: Any, outputs: dict[str, Array], layout: Layout) -> Any:
    """Return the host's response with the outputs that the client asked for.

    Raises:
        OutOfMemory: shared memory has no room for them.
    """
    wanted = request.requested_output_names()
    arrays = {name: array for name, array in outputs.items() if name in wanted}
    check_room(arrays.values())
    bf16 = {output.name for output in layout.outputs if output.dtype.name == "BF16"}
    return pb_utils.InferenceResponse(
        output_tensors=[
            pb_utils.Tensor.from_dlpack(name, export_bf16(array))
            if name in bf16
            else pb_utils.Tensor(name, np.ascontiguousarray(array))
            for name, array in arrays.items()
        ]
    )


def error_response(error: GeError) -> Any:
    """Return the response that fails one request with the error's own status and text.

    Of a text that is too long, as what a client has sent may be in it, the middle is left out.
    """
    code = getattr(pb_utils.TritonError, error.status.value)
    said = str(error).encode(errors="backslashreplace")
    if len(said) > MOST_BYTES:
        said = said[: MOST_BYTES - LAST_BYTES] + b" ... " + said[-LAST_BYTES:]
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
