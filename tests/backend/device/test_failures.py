"""Turning engines' exceptions into ours."""

import pytest

from ge_backend.device.failures import failure, quiet_failures, reason
from ge_backend.errors import GraphFailed, OutOfMemory


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("one line", "one line"),
        ("\n\n  first \nstack\nstack", "first"),
        (
            "The following operation failed in the TorchScript interpreter.\nRuntimeError: sizes differ\n",
            "RuntimeError: sizes differ",
        ),
        (
            "The following operation failed in the TorchScript interpreter.\nstack\nRuntimeError: CUDA error: no luck\nCompile with",
            "RuntimeError: CUDA error: no luck",
        ),
        ("", "RuntimeError"),
        ("x" * 5000, "x" * 600 + " ..."),
    ],
)
def test_the_reason_is_the_line_that_tells_it(text, line):
    """A reason is one line, whichever end of the engine's text it stands at."""
    assert reason(RuntimeError(text)) == line


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("std::bad_alloc"),
        RuntimeError("Failed to allocate memory for requested buffer of size 70368744177664"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"),
        RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
    ],
)
def test_lack_of_memory_is_recognised(error):
    """What engines say when memory is used up becomes OutOfMemory."""
    assert isinstance(failure(error, "m.onnx"), OutOfMemory)


def test_all_else_is_a_failed_graph():
    """Other errors are GraphFailed and name the model."""
    error = failure(RuntimeError("shapes differ"), "m.onnx")
    assert isinstance(error, GraphFailed)
    assert str(error) == "m.onnx failed to run: shapes differ"


def test_clients_see_no_folders(caplog):
    """The log has the whole of it, and what is sent names the file alone."""
    text = (
        "[ONNXRuntimeError] : Node /embed/Gather at /onnxruntime_src/onnxruntime/core/a.cc:12 of "
        "/srv/models/m/1/m.onnx\nmore"
    )
    error = failure(RuntimeError(text), "/srv/models/m/1/m.onnx")
    assert str(error) == (
        "m.onnx failed to run: [ONNXRuntimeError] : Node /embed/Gather at a.cc:12 of m.onnx"
    )
    assert f"/srv/models/m/1/m.onnx failed to run: {text}" in caplog.text


def test_what_the_caller_tells_is_no_warning(caplog):
    """A bucket that is tried at load and does not run is said once, by whoever tried it."""
    with quiet_failures():
        failure(RuntimeError("too small"), "m/model.onnx")
    assert caplog.text == ""
    failure(RuntimeError("too small"), "m/model.onnx")
    assert "m/model.onnx failed to run: too small" in caplog.text


def test_a_key_that_is_missing_is_told_as_one():
    """Python says the key alone."""
    assert reason(KeyError("sdpa")) == "KeyError: 'sdpa'"
