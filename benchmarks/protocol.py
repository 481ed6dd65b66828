"""One inference request as bytes, and the embedding in the bytes of its answer, over HTTP or gRPC.

The requests are made once, before anything is timed; answers are read only where they are checked.
"""

from __future__ import annotations

import json
from typing import cast

import numpy as np
from tritonclient.grpc import service_pb2

from benchmarks.rivals.forward import Ids, Rows

__all__ = [
    "GRPC_METHOD",
    "grpc_embedding",
    "grpc_request",
    "http_embedding",
    "http_ended",
    "http_request",
]

GRPC_METHOD = "/inference.GRPCInferenceService/ModelInfer"
INPUT = "input_ids"
HEAD_END = b"\r\n\r\n"
CONTENT_LENGTH = b"\r\nContent-Length: "
HEADER_LENGTH = b"\r\nInference-Header-Content-Length: "


def grpc_request(model: str, row: Ids) -> bytes:
    """Return a serialised ModelInferRequest for one row."""
    request = service_pb2.ModelInferRequest(model_name=model)
    tensor = request.inputs.add(name=INPUT, datatype="INT64")
    tensor.shape.extend([1, len(row)])
    request.raw_input_contents.append(row.tobytes())
    return cast("bytes", request.SerializeToString())


def grpc_embedding(answer: bytes) -> Rows:
    """Return FP32 [384] from a serialised ModelInferResponse."""
    response = service_pb2.ModelInferResponse.FromString(answer)
    return np.frombuffer(response.raw_output_contents[0], np.float32)


def http_request(model: str, row: Ids) -> bytes:
    """Return a whole HTTP/1.1 request for one row, with binary tensors both ways."""
    raw = row.tobytes()
    tensor = {
        "name": INPUT,
        "shape": [1, len(row)],
        "datatype": "INT64",
        "parameters": {"binary_data_size": len(raw)},
    }
    header = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    head = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: localhost\r\n"
        f"Inference-Header-Content-Length: {len(header)}\r\n"
        f"Content-Length: {len(header) + len(raw)}\r\n\r\n"
    )
    return head.encode() + header + raw


def http_ended(answer: bytes) -> bool:
    """Return whether an answer has arrived as a whole."""
    end = answer.find(HEAD_END)
    return end >= 0 and len(answer) >= end + len(HEAD_END) + _number(answer, CONTENT_LENGTH)


def http_embedding(answer: bytes) -> Rows:
    """Return FP32 [384] from an answer of status 200."""
    body = answer.index(HEAD_END) + len(HEAD_END)
    return np.frombuffer(answer[body + _number(answer, HEADER_LENGTH) :], np.float32)


def _number(answer: bytes, name: bytes) -> int:
    start = answer.index(name) + len(name)
    return int(answer[start : answer.index(b"\r", start)])
