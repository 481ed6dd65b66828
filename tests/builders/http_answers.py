"""Answers of the host over HTTP, as bytes."""

import json

__all__ = ["http_answer"]


def http_answer(*arrays):
    """Return an answer of status 200 with FP32 tensors `out0`, `out1` and so on."""
    outputs = [
        {
            "name": f"out{at}",
            "datatype": "FP32",
            "shape": list(array.shape),
            "parameters": {"binary_data_size": array.nbytes},
        }
        for at, array in enumerate(arrays)
    ]
    header = json.dumps({"outputs": outputs}).encode()
    body = header + b"".join(array.tobytes() for array in arrays)
    head = (
        "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
        f"Inference-Header-Content-Length: {len(header)}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
