"""Tensors and errors cross between the host's objects and ours unchanged."""

import time
from types import SimpleNamespace

import numpy as np
import pytest

from ge_backend.errors import ExecutorLost, GeError, InvalidRequest
from ge_backend.executor.protocol.messages import Run
from ge_backend.executor.protocol.wire import decode, encode
from ge_backend.model.layout.layout import InputLayout, Layout, OutputLayout
from ge_backend.tensors import DATA_TYPES

MS = 1_000_000


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
    from ge_backend.host.codec import HostRequest

    return HostRequest(request, 0, deadline_ns)


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
    from ge_backend.host.room import Room

    arrays = {"y": np.arange(4).reshape(2, 2)[:, :1], "z": np.zeros(1)}
    (tensor,) = write_response({"y"}, arrays, layout(), Room()).output_tensors()
    assert tensor.name() == "y"
    assert tensor.as_numpy().flags.c_contiguous
    assert np.array_equal(tensor.as_numpy(), arrays["y"])


def test_requests_that_want_the_same_get_a_row_each(pb_utils):
    """In their order, of the outputs that they want; there is one question for room."""
    from ge_backend.host.codec import write_responses

    asked = []
    room = SimpleNamespace(check=lambda arrays: asked.append([*arrays]))
    arrays = {"y": np.arange(6).reshape(3, 2)[:, :1], "z": np.zeros(3)}
    found = [one.output_tensors() for one in write_responses({"y"}, arrays, layout(), room, 3)]
    assert [[(t.name(), t.as_numpy().tolist()) for t in one] for one in found] == [
        [("y", [[0]])],
        [("y", [[2]])],
        [("y", [[4]])],
    ]
    assert len(asked) == 1
    assert [one.output_tensors() for one in write_responses((), arrays, layout(), room, 2)] == [
        []
    ] * 2


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


def test_an_answer_that_has_no_room_on_its_way_is_none(pb_utils):
    """Of outputs that nobody asked for nothing is sent, so they need no room."""
    from ge_backend.host import codec

    asked = []
    room = SimpleNamespace(check=lambda arrays: asked.append([*arrays]))
    wanted, other = np.zeros((1, 1)), np.zeros(1 << 20)
    assert not codec.write_response({"y"}, {"y": wanted, "z": other}, layout(), room).has_error()
    assert [[array.shape for array in arrays] for arrays in asked] == [[(1, 1)]]


def test_lost_executor_is_unavailable():
    """A dead executor is something a client may retry."""
    assert ExecutorLost.status.value == "UNAVAILABLE"


@pytest.mark.parametrize(
    ("own_us", "default_us", "deadline_ns"),
    [(0, 0, 0), (5000, 0, 105 * MS), (0, 7000, 107 * MS), (5000, 7000, 105 * MS), (9000, 7000, 107 * MS)],
)  # fmt: skip
def test_the_shorter_timeout_counts(pb_utils, own_us, default_us, deadline_ns):
    """The client's, in microseconds, may be shorter than the model's, not longer."""
    from ge_backend.host.codec import HostRequest

    request = pb_utils.InferenceRequest(timeout=own_us)
    host_request = HostRequest.of(request, 100 * MS, default_us)
    assert (host_request.request, host_request.came_ns, host_request.deadline_ns) == (
        request,
        100 * MS,
        deadline_ns,
    )


def test_a_timeout_is_said_in_its_unit(pb_utils):
    """Clients that mean milliseconds see what they have sent."""
    from ge_backend.host.codec import HostRequest

    host_request = HostRequest.of(pb_utils.InferenceRequest(timeout=30), 100 * MS, 0)
    assert host_request.timeout_text == "its timeout is 30 microseconds"


@pytest.mark.parametrize("timeout_us", [10**14, 5 * 10**15, 2**63 - 1, 2**64 - 1])
@pytest.mark.parametrize("default_us", [0, 2**62])
def test_whatever_timeout_a_client_says_a_message_can_hold(pb_utils, timeout_us, default_us):
    """It is a year at most; what an executor cannot read would fail the whole batch."""
    from ge_backend.host.codec import LONGEST_TIMEOUT_US, HostRequest

    now_ns = time.monotonic_ns()
    deadline_ns = HostRequest.of(
        pb_utils.InferenceRequest(timeout=timeout_us), now_ns, default_us
    ).deadline_ns
    assert deadline_ns == now_ns + 1000 * LONGEST_TIMEOUT_US
    run = Run(id=1, graph=1, arena=0, inputs=(), outputs=(), deadline_ns=deadline_ns)
    assert decode(encode(run)) == run


@pytest.mark.parametrize(("shapes", "rows"), [([(3, 7), (3,)], 3), ([()], 1), ([], 1)])
def test_rows_are_those_of_the_first_input(pb_utils, shapes, rows):
    """Inputs of one request have as many; one without is a row by itself."""
    from ge_backend.host.codec import HostRequest

    inputs = [pb_utils.Tensor("x", np.zeros(shape)) for shape in shapes]
    assert HostRequest.of(pb_utils.InferenceRequest(inputs), 0, 0).rows == rows
