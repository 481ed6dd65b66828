"""Tensors and errors cross between the host's objects and ours unchanged."""

import numpy as np
import pytest

from ge_backend.errors import ExecutorLost, GeError, InvalidRequest
from ge_backend.model.layout.layout import InputLayout, Layout, OutputLayout
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


def test_what_the_graph_takes_from_no_request_is_not_read(pb_utils):
    """A state that the host adds is left where it is: one of BF16 has no numpy type."""
    from ge_backend.host.codec import read_request

    class State(pb_utils.Tensor):
        def as_numpy(self):
            raise pb_utils.TritonModelException("BF16 cannot be converted to NumPy")

    added = State("h", np.zeros((1, 1), np.uint16))
    given = pb_utils.InferenceRequest([added, pb_utils.Tensor("x", np.zeros((1, 3), int))])
    assert read_request(0, arrived(given), layout()).tensors.keys() == {"x"}


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


def test_an_answer_that_has_no_room_on_its_way_is_none(pb_utils, monkeypatch):
    """Of outputs that nobody asked for nothing is sent, so they need no room."""
    from ge_backend.host import codec

    asked = []
    monkeypatch.setattr(codec, "check_room", lambda arrays: asked.append([*arrays]))
    given = pb_utils.InferenceRequest(requested_output_names=["y"])
    wanted, other = np.zeros((1, 1)), np.zeros(1 << 20)
    assert not codec.write_response(given, {"y": wanted, "z": other}, layout()).has_error()
    assert [[array.shape for array in arrays] for arrays in asked] == [[(1, 1)]]


def test_lost_executor_is_unavailable():
    """A dead executor is something a client may retry."""
    assert ExecutorLost.status.value == "UNAVAILABLE"
