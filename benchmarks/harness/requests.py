"""One inference request as the bytes of HTTP, and the tensors in the bytes of its answer.

Requests are made once, before anything is timed; answers are read only where they are checked.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["asked", "connect", "ended", "http_request", "succeeded", "tensors"]

Array = npt.NDArray[Any]
TYPES = {"INT64": np.int64, "FP32": np.float32, "UINT8": np.uint8, "INT32": np.int32}
NAMES = {np.dtype(kind): name for name, kind in TYPES.items()}
HEAD_END = b"\r\n\r\n"
CONTENT_LENGTH = b"\r\nContent-Length: "
HEADER_LENGTH = b"\r\nInference-Header-Content-Length: "


def http_request(
    model: str,
    inputs: Mapping[str, Array | Sequence[bytes]],
    outputs: Sequence[str] = (),
    parameters: Mapping[str, object] | None = None,
) -> bytes:
    """Return a whole HTTP/1.1 request with binary tensors both ways.

    Args:
        model: its name.
        inputs: arrays by name; a list of bytes is BYTES [1, len].
        outputs: what is asked for; all of the model's if empty.
        parameters: of the request, such as `sequence_id`.
    """
    made = [_tensor(name, value) for name, value in inputs.items()]
    raw = b"".join(data for _, data in made)
    head: dict[str, object] = {
        "inputs": [tensor for tensor, _ in made],
        "parameters": {"binary_data_output": True, **(parameters or {})},
    }
    if outputs:
        head["outputs"] = [{"name": n, "parameters": {"binary_data": True}} for n in outputs]
        head["parameters"] = dict(parameters or {})
    header = json.dumps(head).encode()
    first = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: localhost\r\n"
        f"Inference-Header-Content-Length: {len(header)}\r\n"
        f"Content-Length: {len(header) + len(raw)}\r\n\r\n"
    )
    return first.encode() + header + raw


def _tensor(name: str, value: Array | Sequence[bytes]) -> tuple[dict[str, object], bytes]:
    if isinstance(value, np.ndarray):
        kind, shape, raw = NAMES[value.dtype], list(value.shape), value.tobytes()
    else:
        kind, shape = "BYTES", [1, len(value)]
        raw = b"".join(len(each).to_bytes(4, "little") + each for each in value)
    said = {"name": name, "shape": shape, "datatype": kind}
    return {**said, "parameters": {"binary_data_size": len(raw)}}, raw


def ended(answer: bytes) -> bool:
    """Return whether an answer has arrived as a whole."""
    end = answer.find(HEAD_END)
    return end >= 0 and len(answer) >= end + len(HEAD_END) + _number(answer, CONTENT_LENGTH)


def succeeded(answer: bytes) -> bool:
    """Return whether an answer has status 200."""
    return answer.startswith(b"HTTP/1.1 200")


def tensors(answer: bytes) -> dict[str, Array]:
    """Return the tensors of an answer of status 200, in their order."""
    body = answer.index(HEAD_END) + len(HEAD_END)
    at = body + _number(answer, HEADER_LENGTH)
    found: dict[str, Array] = {}
    for output in json.loads(answer[body:at])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        raw = np.frombuffer(answer[at : at + size], TYPES[output["datatype"]])
        found[output["name"]] = raw.reshape(output["shape"])
        at += size
    return found


def connect(address: str) -> socket.socket:
    """Return a connection to `host:port` that sends at once what it is given."""
    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host, int(port)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def asked(sock: socket.socket, request: bytes) -> dict[str, Array]:
    """Return what a server answers to one request.

    Raises:
        ValueError: it is not of status 200; with what it says.
    """
    sock.sendall(request)
    answer = b""
    while not ended(answer):
        answer += sock.recv(1 << 16)
    if not succeeded(answer):
        raise ValueError(f"asked {sock.getpeername()}: {answer[:500].decode(errors='replace')}")
    return tensors(answer)


def _number(answer: bytes, name: bytes) -> int:
    start = answer.index(name) + len(name)
    return int(answer[start : answer.index(b"\r", start)])
