"""Requests as bytes, answers from bytes."""

import json

import numpy as np
import pytest

pytest.importorskip("tritonclient.grpc")

from benchmarks.protocol import (
    grpc_embedding,
    grpc_request,
    http_embedding,
    http_ended,
    http_request,
)
from tritonclient.grpc import service_pb2

ROW = np.array([101, 2023, 102])
EMBEDDING = np.linspace(0, 1, 384, dtype=np.float32)


def http_answer():
    header = json.dumps({"outputs": [{"name": "sentence_embedding"}]}).encode()
    body = header + EMBEDDING.tobytes()
    head = (
        "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
        f"Inference-Header-Content-Length: {len(header)}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def test_grpc_request_holds_the_row():
    """A serialised request parses back to the row."""
    request = service_pb2.ModelInferRequest.FromString(grpc_request("m", ROW))
    assert request.model_name == "m"
    assert list(request.inputs[0].shape) == [1, 3]
    assert np.array_equal(np.frombuffer(request.raw_input_contents[0], np.int64), ROW)


def test_grpc_embedding_is_read_back():
    """The embedding is the first raw output."""
    answer = service_pb2.ModelInferResponse(raw_output_contents=[EMBEDDING.tobytes()])
    assert np.array_equal(grpc_embedding(answer.SerializeToString()), EMBEDDING)


def test_http_request_has_right_lengths():
    """The two length headers say where the JSON ends and where the body ends."""
    head, _, body = http_request("m", ROW).partition(b"\r\n\r\n")
    fields = dict(line.split(b": ") for line in head.split(b"\r\n")[1:])
    split = int(fields[b"Inference-Header-Content-Length"])
    assert head.startswith(b"POST /v2/models/m/infer HTTP/1.1")
    assert int(fields[b"Content-Length"]) == len(body)
    assert json.loads(body[:split])["inputs"][0]["shape"] == [1, 3]
    assert np.array_equal(np.frombuffer(body[split:], np.int64), ROW)


def test_http_answer_ends_with_its_last_byte_only():
    """No cut of an answer counts as a whole one."""
    whole = http_answer()
    assert http_ended(whole)
    assert not any(http_ended(whole[:end]) for end in range(len(whole)))


def test_http_embedding_is_read_back():
    """The embedding is what follows the JSON header of the body."""
    assert np.array_equal(http_embedding(http_answer()), EMBEDDING)
