"""Requests as bytes, answers from bytes."""

import json

import numpy as np
from benchmarks.harness.requests import ended, http_request, succeeded, tensors

from builders.http_answers import http_answer

ROW = np.array([[101, 2023, 102]])
EMBEDDING = np.linspace(0, 1, 384, dtype=np.float32)


def parts(request):
    head, _, body = request.partition(b"\r\n\r\n")
    fields = dict(line.split(b": ") for line in head.split(b"\r\n")[1:])
    split = int(fields[b"Inference-Header-Content-Length"])
    assert int(fields[b"Content-Length"]) == len(body)
    return head, json.loads(body[:split]), body[split:]


def test_a_request_says_where_its_parts_end():
    """The two length headers say where the JSON ends and where the body ends."""
    head, said, raw = parts(http_request("m", {"ids": ROW}))
    assert head.startswith(b"POST /v2/models/m/infer HTTP/1.1")
    assert said["inputs"][0]["shape"] == [1, 3]
    assert said["inputs"][0]["datatype"] == "INT64"
    assert np.array_equal(np.frombuffer(raw, np.int64), ROW[0])


def test_texts_have_their_lengths_before_them():
    """BYTES elements each have four bytes of length before them."""
    _, said, raw = parts(http_request("m", {"text": [b"ab", b"c"]}))
    assert (said["inputs"][0]["datatype"], said["inputs"][0]["shape"]) == ("BYTES", [1, 2])
    assert raw == b"\x02\0\0\0ab\x01\0\0\0c"


def test_outputs_and_parameters_are_asked_for():
    """A sequence's step says to which sequence it belongs, and what it wants."""
    _, said, _ = parts(http_request("m", {"ids": ROW}, ["y"], {"sequence_id": 3}))
    assert said["parameters"]["sequence_id"] == 3
    assert said["outputs"] == [{"name": "y", "parameters": {"binary_data": True}}]


def test_an_answer_ends_with_its_last_byte_only():
    """No cut of an answer counts as a whole one."""
    whole = http_answer(EMBEDDING)
    assert ended(whole)
    assert not any(ended(whole[:cut]) for cut in range(len(whole)))


def test_tensors_are_read_back():
    """All of them, in their order."""
    found = tensors(http_answer(EMBEDDING, EMBEDDING[None, :2]))
    assert list(found) == ["out0", "out1"]
    assert np.array_equal(found["out0"], EMBEDDING)
    assert found["out1"].shape == (1, 2)


def test_only_a_200_is_a_success():
    """A refusal and a failure are not."""
    assert succeeded(http_answer(EMBEDDING))
    assert not succeeded(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
