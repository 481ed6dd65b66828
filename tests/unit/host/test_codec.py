"""Tensors and errors cross between the host's objects and ours unchanged."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from ge_backend.errors import ExecutorLost, GeError, InvalidRequest, OutOfMemory
from ge_backend.layout.layout import InputLayout, Layout, OutputLayout
from ge_backend.tensors import DATA_TYPES


def layout(dtype="INT64"):
    item = {"dtype": DATA_TYPES[dtype], "dims": (-1,), "axes": (0,), "names": ("length",)}
    return Layout(
        batched=True,
        axes=("length",),
        limits={},
        inputs=(InputLayout(name="x", fill=0.0, made="", **item),),
        outputs=(OutputLayout(name="y", **item),),
    )


def arrived(request, deadline_ns=0):
    from ge_backend.host.arrival import Arrival

    return Arrival(request, 0, deadline_ns)


def test_request_carries_tensors_rows_and_sizes(pb_utils):
    """A host request becomes a request with its own rows and its real length."""
    from ge_backend.host.codec import read_request

    array = np.arange(6).reshape(2, 3)
    given = pb_utils.InferenceRequest([pb_utils.Tensor("x", array)], ["y"])
    request = read_request(4, arrived(given, 77), layout())
    assert (request.index, request.rows, request.sizes, request.deadline_ns) == (4, 2, (3,), 77)
    assert request.wanted == {"y"}
    assert request.tensors["x"] is array


def test_a_request_can_be_asked_whether_it_was_cancelled(pb_utils):
    """The host is asked each time: a client may give up while the request waits."""
    from ge_backend.host.codec import read_request

    given = pb_utils.InferenceRequest([pb_utils.Tensor("x", np.zeros((1, 3), int))])
    request = read_request(0, arrived(given), layout())
    assert not request.cancelled()
    given.cancelled = True
    assert request.cancelled()


def test_wrong_dtype_is_an_invalid_request(pb_utils):
    """A tensor of another type is refused with both types named."""
    from ge_backend.host.codec import read_request

    given = pb_utils.InferenceRequest([pb_utils.Tensor("x", np.zeros((1, 3), np.float32))])
    with pytest.raises(InvalidRequest, match=r"'x' is float32; expected INT64"):
        read_request(0, arrived(given), layout())


def test_response_has_the_outputs_that_were_asked_for(pb_utils):
    """Outputs the client did not request are not sent."""
    from ge_backend.host.codec import write_response

    given = pb_utils.InferenceRequest(requested_output_names=["y"])
    arrays = {"y": np.arange(4).reshape(2, 2)[:, :1], "z": np.zeros(1)}
    (tensor,) = write_response(given, arrays, layout()).output_tensors()
    assert tensor.name() == "y"
    assert tensor.as_numpy().flags.c_contiguous
    assert np.array_equal(tensor.as_numpy(), arrays["y"])


@pytest.mark.parametrize("error", [*GeError.__subclasses__(), GeError])
def test_each_error_has_its_status(pb_utils, error):
    """Every error of the package becomes its own Triton status, text kept."""
    from ge_backend.host.codec import error_response

    answer = error_response(error("what happened")).error()
    assert (answer.code(), answer.message()) == (error.status.value, "what happened")


@pytest.mark.parametrize("letter", ["x", "é", "\ud800"])
def test_a_long_error_keeps_its_beginning_and_its_end(pb_utils, letter):
    """What a client has sent may be in it; gRPC's clients take 8 KiB, escaped."""
    from ge_backend.host.codec import error_response

    said = f"n is {letter * 10_000}; it has to be 1"
    text = error_response(GeError(said)).error().message()
    assert len(text.encode()) < 2100
    assert text.startswith("n is ")
    assert text.endswith("; it has to be 1")


@pytest.mark.parametrize(
    ("mib", "left", "free", "fits"),
    [
        ((9,), 20, 0, True),
        ((9,), 0, 10, True),
        ((9, 9), 12, 10, True),
        ((9, 9, 9), 12, 10, False),
        ((12,), 8, 10, False),
        ((12,), 8, None, True),
    ],
)
def test_a_response_that_shared_memory_has_no_room_for_is_an_error(
    pb_utils, monkeypatch, mib, left, free, fits
):
    """Sent through a sender it would be lost, and in a list it would fail all others."""
    from ge_backend.host import codec

    state = SimpleNamespace(f_bavail=left << 8, f_frsize=1 << 12)
    monkeypatch.setattr(codec.os, "statvfs", lambda folder: state)
    region = SimpleNamespace(free_memory=lambda: free << 20)
    inside = SimpleNamespace() if free is None else SimpleNamespace(shared_memory=region)
    monkeypatch.setitem(sys.modules, "c_python_backend_utils", inside)
    outputs = {f"y{place}": np.zeros(size << 20, np.uint8) for place, size in enumerate(mib)}
    request = pb_utils.InferenceRequest([], [*outputs])
    not_asked_for = {"z": np.zeros(99 << 20, np.uint8)}
    if fits:
        response = codec.write_response(request, outputs | not_asked_for, layout())
        assert len(response.output_tensors()) == len(mib)
    else:
        with pytest.raises(OutOfMemory, match=f"takes {sum(mib)} MiB"):
            codec.write_response(request, outputs, layout())


def test_texts_take_room_too(pb_utils, monkeypatch):
    """Each with its length before it."""
    from ge_backend.host import codec

    state = SimpleNamespace(f_bavail=0, f_frsize=1 << 12)
    monkeypatch.setattr(codec.os, "statvfs", lambda folder: state)
    region = SimpleNamespace(free_memory=lambda: (64 << 10) + 1000)
    inside = SimpleNamespace(shared_memory=region)
    monkeypatch.setitem(sys.modules, "c_python_backend_utils", inside)
    texts = np.array([b"x" * 246, b"y" * 246] * 2, dtype=object)
    request = pb_utils.InferenceRequest([], ["y"])
    codec.write_response(request, {"y": texts}, layout())
    texts[0] += b"z"
    with pytest.raises(OutOfMemory):
        codec.write_response(request, {"y": texts}, layout())


def test_lost_executor_is_unavailable():
    """A dead executor is something a client may retry."""
    assert ExecutorLost.status.value == "UNAVAILABLE"
